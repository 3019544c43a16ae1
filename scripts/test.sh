#!/usr/bin/env bash
# Runs the tests and ends with "N passed, N failed".
#
#   test.sh test           what every change has to pass, as root (make test)
#   test.sh all            everything, as root (make test-all): also what takes long and rarely
#                          breaks; a release needs it
#   test.sh STEP [STEP...] single steps: compile, lint, unit (no root, no patched tree), race, scheduler,
#                          integration, eval, fuzz, rebase, generated, upstream-cri-o,
#                          upstream-kubernetes, upstream-compared, upstream-bats, e2e, agent, stock, skew, critest, vm, nix, rpm, okd, kind,
#                          release, arch
#
# FULL=1, which "all" sets, has the steps do their long parts, too; CONTRIBUTING.md lists them.
# Logs and test2json records of every step go to _out/test/; times.tsv there has the seconds
# of each step, those of processors, its result, and when it began.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
OUT=$ROOT/_out/test
# As scripts/build.sh compiles, so that tests, linters and binaries share what is compiled.
export GOFLAGS="-trimpath -buildvcs=false"
export FULL=${FULL:-}

# A command to run go_test's tests under.
WRAP=()

# go_test STEP DIR ARGS...: runs go test in DIR; passes, failures and skips are counted
# from the records in _out/test/STEP*.json. Step lint vets our packages. go test would vet all
# that they are built on besides, a quarter of the processors' time on a new machine: with FULL alone.
go_test() {
  local name=$1 dir=$2 vet=(-vet=off)
  shift 2
  if [ -n "$COMPILE" ]; then
    compile "$dir" "$@"
    return
  fi
  [ -z "$FULL" ] || vet=()
  (cd "$dir" && CGO_ENABLED=${CGO_ENABLED:-0} "${WRAP[@]}" "$GOTESTSUM" --format standard-quiet --format-hide-empty-pkg \
    --jsonfile "$OUT/$name.json" -- "${vet[@]}" "$@")
}

# While step compile runs, go_test only compiles.
COMPILE=''
# compile DIR ARGS...: compiles the packages that go_test would run with ARGS, and what they are
# built on, into Go's build cache. Nothing is linked: go test links again in any case.
compile() {
  local dir=$1 args=()
  shift
  while [ $# -gt 0 ]; do
    case $1 in
    -tags | -overlay) args+=("$1" "$2") && shift ;;
    -race | ./* | k8s.io/*) args+=("$1") ;;
    esac
    shift
  done
  (cd "$dir" && CGO_ENABLED=${CGO_ENABLED:-0} go list -export -test "${args[@]}" >/dev/null)
}

# All binaries of clusters and all tests, compiled before the first cluster runs. Beside
# compilers, clusters and what waits for them are slow, and use processors all the while.
step_compile() {
  local COMPILE=1 name status=0
  for name in unit race scheduler integration upstream-cri-o upstream-kubernetes e2e agent stock skew critest; do
    say "$name"
    "step_$name" || status=1
  done
  say kind
  scripts/build.sh stock kubeadm kubectl kube-proxy && scripts/build.sh tools coredns local-path-provisioner || status=1
  return "$status"
}

step_lint() { scripts/lint.sh; }
step_unit() { go_test unit . ./...; }

# What many goroutines share, with the race detector. All that the rest of the resolver and
# layer-extender are built on would be compiled for it again, half an hour on a new machine beside
# other steps: they have their turn with FULL, as the scheduler has in its step.
step_race() {
  local tree status=0
  CGO_ENABLED=1 go_test race . -race ./crio/... ./kubelet/... ./imageref/... ./scheduler/index/... ./scheduler/qosaware/account/... ./resolver/registry/... ./resolver/policy/... ${FULL:+./scheduler/qosaware/book/... ./resolver/controller/... ./cmd/layer-resolver/...} || status=1
  [ -n "$FULL" ] || return "$status"
  tree=$(scripts/tree.sh scheduler) || return 1
  CGO_ENABLED=1 GOFLAGS="$GOFLAGS -tags=$SCHEDULER_TAGS" go_test race-extender "$tree" -race ./extender/... ./cmd/layer-extender/... ./scheduler/safe/... ./scheduler/packing/... ./scheduler/congestion/... ./scheduler/internal/pernode/... || status=1
  return "$status"
}

# Code that is built against the patched Kubernetes, tested there; the unit step tests the
# same code against stock Kubernetes.
step_scheduler() {
  local tree GOFLAGS="$GOFLAGS -tags=$SCHEDULER_TAGS"
  tree=$(scripts/tree.sh scheduler) || return 1
  CGO_ENABLED=${FULL:+1} go_test scheduler "$tree" ${FULL:+-race} ./...
}

# Scheduler, apiserver and etcd in one process, as in upstream's integration tests; the
# resolver, the agent and our scheduler with their own apiserver and etcd.
step_integration() {
  local tree status=0
  scripts/install-deps.sh prometheus && scripts/build.sh tools etcd helm && scripts/build.sh patched kube-apiserver kube-scheduler kubectl-layers && scripts/build.sh stock kube-apiserver kube-scheduler &&
    tree=$(scripts/tree.sh scheduler) || return 1
  go_test integration-kubectl . -tags integration -count=1 ./test/kubectl/... || status=1
  go_test integration-resolver . -tags integration -count=1 ./resolver/... ./cmd/layer-resolver/... ./cmd/layer-agent/... ./test/deploy/chart/... ./test/oldserver/... ./test/nodepatch/... || status=1
  GOFLAGS="$GOFLAGS -tags=$SCHEDULER_TAGS,integration" PATH=$BUILD/bin/tools:$PATH \
    go_test integration-scheduler "$tree" -count=1 ./test/integration/... || status=1
  if [ -n "$FULL" ]; then upstream_preemption || status=1; fi
  scripts/install-deps.sh chromium && internal/eval/page/assets.sh >/dev/null &&
    go_test integration-page . -tags integration -count=1 ./internal/eval/page/... || status=1
  internal/dashboards/schema/fetch.sh >/dev/null &&
    go_test integration-dashboards . -tags integration -count=1 ./internal/dashboards/... || status=1
  return "$status"
}

# Upstream's integration tests of preemption, with QosAware in place of its plugins.
upstream_preemption() {
  # shellcheck source=../test/integration/upstream.sh
  . test/integration/upstream.sh
  mkdir -p "$BUILD/overlay" && upstream_overlay "$BUILD/kubernetes" "$BUILD/overlay" || return 1
  GOWORK=$BUILD/scheduler/go.work GOFLAGS="$GOFLAGS -tags=$SCHEDULER_TAGS,inplace" PATH=$BUILD/bin/tools:$PATH \
    go_test integration-preemption "$BUILD/kubernetes" -overlay "$BUILD/overlay/overlay.json" -count=1 -timeout 30m ./test/integration/scheduler/preemption/...
}

# A small evaluation, as a user runs it, and the figures at the top of README.md.
step_eval() { SIZE=small SEEDS=1 internal/eval/eval.sh && internal/eval/claims.sh; }

# Every fuzz target of the repository, for a few seconds each. Fuzzing compiles all that a
# package is built on with counters: those built on Kubernetes' libraries have their turn with
# FULL, and that of internal/eval/sim, on all of Kubernetes, only runs its seeds.
step_fuzz() {
  local file target count=0 heavy=(':(exclude,glob)internal/eval/sim/*_test.go')
  [ -n "$FULL" ] || heavy+=(':(exclude)agent' ':(exclude)api' ':(exclude)resolver' ':(exclude)scheduler/imagemanifests' ':(exclude)scheduler/nodelayers' ':(exclude)scheduler/qosaware' ':(exclude)scheduler/congestion' ':(exclude)scheduler/safe' ':(exclude)extender' ':(exclude)kubectllayers/collect' ':(exclude)kubectllayers/inventory' ':(exclude)kubectllayers/target' ':(exclude)kubectllayers/why')
  while IFS=: read -r file target; do
    target=${target#func } target=${target%%(*}
    fuzz "$target" "./$(dirname "$file")" || return 1
    count=$((count + 1))
  done < <(git grep --untracked '^func Fuzz' -- '*_test.go' "${heavy[@]}")
  [ "$count" -gt 0 ] || die "no fuzz target found"
}

# Go 1.26 may end a fuzz run that found nothing with a bare "context deadline exceeded" on
# a busy machine (golang/go#75804): such a run is repeated.
fuzz() {
  local log=$OUT/fuzz-$1.log time=3s
  [ -z "$FULL" ] || time=20s
  go_test "fuzz-$1" . -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$2" >"$log" 2>&1 && cat "$log" && return
  cat "$log"
  if ! grep -q 'context deadline exceeded' "$log" || grep -q 'Failing input written' "$log"; then return 1; fi
  echo "again: golang/go#75804"
  go_test "fuzz-$1" . -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$2"
}

# The versions to which the series apply according to docs/patches.md, and what of CRI-O's can be dropped: that is
# compiled once for the same patches.
step_rebase() {
  local known
  scripts/patches.sh rebase cri-o v1.35.2 &&
    scripts/patches.sh rebase cri-o v1.36.1 &&
    scripts/patches.sh rebase cri-o v1.36.2 &&
    scripts/patches.sh rebase kubernetes v1.36.3 || return 1
  known=$(succeeded compiled cri-o scripts/patches.sh <(grep '^| cri-o ' docs/patches.md && echo "$CRIO_TAGS"))
  if [ -e "$known" ]; then
    touch "$known"
    echo "CRI-O without what can be dropped: compiled earlier with the same patches"
    return
  fi
  scripts/patches.sh compile cri-o && mkdir -p "${known%/*}" && touch "$known"
}

# succeeded NAME COMPONENT FILE...: prints the path of the file that is there if something succeeded earlier with the
# same patches and these files.
succeeded() {
  echo "$CACHE/$1/$({
    tree_hash "$2"
    cat "${@:3}"
    go version
  } | sha256sum | cut -c1-16)"
}

# What generators made for the patched Kubernetes, made again and compared: once for the
# same inputs.
step_generated() {
  local known
  known=$(succeeded generated kubernetes scripts/generate.sh)
  if [ -e "$known" ]; then
    touch "$known"
    echo "skipped: the generated code of patches/kubernetes: compared earlier with the same inputs"
    echo "0 passed, 0 failed"
    return
  fi
  scripts/generate.sh check && mkdir -p "${known%/*}" && touch "$known"
}

# With private but shared mounts, as under systemd: a test makes recursive read-only binds
# and expects / to be a shared mount.
step_upstream-cri-o() {
  local tree status=0 CGO_ENABLED=1 GOFLAGS="$GOFLAGS -mod=mod" WRAP=(unshare --mount --propagation shared)
  tree=$(scripts/tree.sh patched cri-o) || return 1
  go_test upstream-cri-o "$tree" -tags "test $CRIO_TAGS" ./internal/imagelayers/... ./internal/layershare/... ./internal/storage/... || status=1
  go_test upstream-cri-o-server "$tree" -tags "test $CRIO_TAGS" ./server/ -ginkgo.skip=ContainerEvents || status=1
  upstream_events "$tree" || status=1
  return "$status"
}

# Upstream's specs of ContainerEvents by themselves: two seconds later they close the channel
# of whatever server is tested then. And they do not wait until all events have been sent,
# so they panic on a busy machine: then they are repeated.
upstream_events() {
  local attempt
  for attempt in 1 2 3; do
    go_test upstream-cri-o-events "$1" -tags "test $CRIO_TAGS" -count=1 -run '^TestServer$' ./server/ -ginkgo.focus=ContainerEvents && return
    echo "attempt $attempt of 3 at the specs of ContainerEvents failed"
  done
  return 1
}

step_upstream-kubernetes() {
  local tree
  tree=$(scripts/tree.sh patched kubernetes) || return 1
  go_test upstream-kubernetes "$tree" \
    ./pkg/kubelet ./pkg/kubelet/imagelayers/... ./pkg/kubelet/nodestatus/... ./pkg/kubelet/kuberuntime/... \
    ./pkg/kubelet/images/... ./pkg/kubelet/apis/config/... ./pkg/registry/core/node/... \
    ./pkg/apis/core/... ./pkg/api/testing/... ./pkg/features/... ./pkg/generated/openapi/... \
    ./pkg/scheduler/... ./cmd/kube-scheduler/... \
    ./plugin/pkg/admission/noderestriction/... ./pkg/kubelet/nodeshutdown/... k8s.io/kubectl/pkg/describe/... \
    ./test/compatibility_lifecycle/... k8s.io/api/... k8s.io/client-go/applyconfigurations/... \
    k8s.io/component-helpers/node/... k8s.io/kubelet/config/... \
    k8s.io/apiserver/pkg/endpoints/handlers/...
}

# More of upstream's tests, on the unpatched tree and on the patched one, compared. ROWS names
# rows of test/upstream/lib.sh; by default all run.
step_upstream-compared() {
  local rows=()
  # shellcheck source=../test/upstream/lib.sh
  . test/upstream/lib.sh
  read -ra rows <<<"${ROWS:-}"
  scripts/build.sh tools etcd && upstream_compared "${rows[@]}"
}

# CRI-O's own tests for bats, with the stock binary and with the patched one.
step_upstream-bats() {
  raise_inotify && scripts/install-deps.sh bats && scripts/build.sh tools registry runc crictl && scripts/build.sh stock crio pinns && scripts/build.sh patched crio pinns &&
    go_test upstream-bats . -tags e2e -count=1 -timeout 40m ./test/upstream/bats/...
}

cluster_binaries() {
  scripts/build.sh tools && scripts/build.sh stock && scripts/build.sh patched
}
# containerd and its shim, with FULL in three versions.
containerds() {
  local version names=()
  for version in '' ${FULL:+-1.7 -2.4}; do names+=("containerd$version" "containerd-shim-runc-v2$version"); done
  scripts/build.sh tools "${names[@]}"
}
step_e2e() {
  local status=0
  raise_inotify && scripts/install-deps.sh prometheus && cluster_binaries && containerds || return 1
  go_test e2e . -tags e2e -count=1 -timeout 40m -p 2 ./internal/cluster/... ./test/cluster/... ./test/e2e/... ./test/scheduler/... ./test/qosaware/... ./test/resolver/... ./test/extender/... ./test/agents/... ./test/deploy/... ./test/demos/... ./test/imagegc/... ./test/layershare/... ./test/report/... || status=1
  if [ -n "$FULL" ] && [ -z "$COMPILE" ]; then CGO_ENABLED=0 make demo-agent || status=1; fi
  return "$status"
}
# Real clusters with layer-agent: not in e2e, whose lane is the longest one where all is compiled.
step_agent() {
  raise_inotify && scripts/install-deps.sh prometheus && cluster_binaries && containerds && go_test agent . -tags e2e -count=1 -timeout 40m -p 1 ./test/agent/... ./test/containerd/... ./test/kubectl/live/... ./test/monitoring/...
}
# Everything is stock but scheduler or extender, and resolver.
step_stock() {
  raise_inotify && cluster_binaries && STOCK_NODES=1 go_test stock . -tags e2e -count=1 -timeout 40m -p 1 \
    -run '^(TestAncestor|TestRollingUpdate|TestNeverPulled|TestHeldImages|TestDeploy)$/^(|images|by-namespace)$' ./test/scheduler/... ./test/resolver/... ./test/extender/... ./test/deploy/...
}
step_skew() { cluster_binaries && go_test skew . -tags e2e -count=1 -timeout 30m ./test/skew/...; }
step_critest() { cluster_binaries && { [ -z "$FULL" ] || scripts/build.sh tools containerd containerd-shim-runc-v2; } && go_test critest . -tags e2e -count=1 -timeout 30m ./test/critest/...; }

# A node in a virtual machine.
step_vm() { scripts/install-deps.sh vm && cluster_binaries && go_test vm . -tags e2e -count=1 -timeout 40m ./test/vm/...; }

# The packages. Each test prints one line per check and ends with "N passed, N failed".
step_nix() { scripts/install-deps.sh nix && test/nix/run.sh; }
step_rpm() { scripts/install-deps.sh rpm && test/rpm/run.sh; }
step_okd() { scripts/install-deps.sh rpm okd && test/okd/run.sh; }
step_kind() { scripts/install-deps.sh kind && test/kind/run.sh; }
# Without QEMU, tests say which checks they skip.
step_release() { scripts/install-deps.sh rpm cross && { scripts/install-deps.sh qemu || true; } && test/release/run.sh; }
step_arch() { scripts/install-deps.sh cross && { scripts/install-deps.sh qemu || true; } && test/arch/run.sh; }

# failures LOG: prints each check that failed with its reason, which stands below it, and the end
# of the log.
failures() {
  awk '/^FAILED: / { failed = 1; print; next } failed && /^    / { print; next } { failed = 0 }' "$1" | head -n 300
  tail -n 40 "$1"
}

# run STEP...: runs them one after the other, each with its log, its result and its times.
run() {
  local name started seconds cpu
  for name in "$@"; do
    started=$(date +%s)
    say "$name: started; log _out/test/$name.log"
    if (
      trap 'times >"$OUT/$name.times"' EXIT
      "step_$name"
    ) >"$OUT/$name.log" 2>&1; then
      echo 0 >"$OUT/$name.exit"
    else
      echo 1 >"$OUT/$name.exit"
    fi
    seconds=$(($(date +%s) - started))
    cpu=$(processor_seconds "$OUT/$name.times") || cpu=0 # it was killed
    if [ "$(cat "$OUT/$name.exit")" = 0 ]; then
      say "$name: ok, $seconds s, $cpu s of processors"
    else
      say "$name: FAILED after $seconds s; from _out/test/$name.log:"
      failures "$OUT/$name.log" >&2
    fi
    printf '%s\t%d\t%d\t%d\t%d\n' "$name" "$seconds" "$cpu" "$(cat "$OUT/$name.exit")" "$((started - STARTED))" >>"$OUT/times.tsv"
  done
}

# lane STEP...: these, and then what is left of the rest. Who makes the folder has the step.
lane() {
  local name
  run "$@"
  for name in "${REST[@]}"; do
    if mkdir "$OUT/$name.taken" 2>/dev/null; then run "$name"; fi
  done
}

# processor_seconds FILE: adds up what bash's times wrote, such as 1m2.345s.
processor_seconds() { tr ' ' '\n' <"$1" | awk -F'[ms]' '{ sum += 60 * $1 + $2 } END { printf "%d", sum }'; }

# Adds up the results. A step with test records counts its tests, a step that counts
# checks its checks, any other step counts as one. A step that failed without a failed
# test (it did not build) counts as one failure.
summary() {
  local name exit records passed=0 failed=0 skipped=0 p f s
  for name in "$@"; do
    exit=$(cat "$OUT/$name.exit" 2>/dev/null || echo 1)
    mapfile -t records < <(find "$OUT" -name "$name*.json" -size +0 | sort)
    p=0 f=0 s=0
    if [ ${#records[@]} -gt 0 ]; then
      read -r p f s < <(cat "${records[@]}" | jq -rn '
        reduce (inputs | select(.Test) | .Action) as $a ({};
          if $a == "pass" or $a == "fail" or $a == "skip" then .[$a] += 1 else . end)
        | "\(.pass // 0) \(.fail // 0) \(.skip // 0)"')
      [ "$exit" = 0 ] || [ "$f" -gt 0 ] || f=1
    elif read -r p f < <(tail -n 1 "$OUT/$name.log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p'); then
      s=$(grep -c '^skipped: ' "$OUT/$name.log") || true
      [ "$exit" = 0 ] || [ "$f" -gt 0 ] || f=1
    elif [ "$exit" = 0 ]; then p=1 f=0; else p=0 f=1; fi
    printf '%-22s %6d passed %4d failed %4d skipped\n' "$name" "$p" "$f" "$s"
    if [ "$f" -gt 0 ]; then sed -n 's/^FAILED: /  failed /p; s/^=== FAIL: /  failed /p' "$OUT/$name.log" | cut -c1-300; fi
    if [ "$s" -gt 0 ] && [[ $name == upstream-* ]]; then
      echo "  skipped by upstream's own conditions, as on the unpatched tree; reasons in _out/test/$name.log"
    elif [ "$s" -gt 0 ] && [ ${#records[@]} = 0 ]; then
      sed -n 's/^skipped: /  skipped /p' "$OUT/$name.log" | cut -c1-300
    elif [ "$s" -gt 0 ]; then
      # One line for each package and reason, with the tests.
      cat "${records[@]}" | jq -rn '
        [[inputs | select(.Test)] | group_by(.Package + " " + .Test)[]
        | select(any(.Action == "skip"))
        | {package: (.[0].Package | split("/") | .[-1]), test: .[0].Test, reason: ([.[] | select(.Action == "output") | .Output
          | select(startswith("    ")) | gsub("^\\s+|\\s+$"; "") | sub("^[a-z_]+\\.go:[0-9]+: "; "")] | join(" "))}]
        | group_by([.package, .reason])[]
        | "  skipped \(.[0].package), \(length): \(.[0].reason): \([.[].test] | join(", "))"' | cut -c1-300
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  done
  echo
  echo "$(($(date +%s) - STARTED)) s; _out/test/times.tsv has the time of each step"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

# First, one after the other, what keeps all processors busy, and the integration tests: upstream's
# test apiserver has to start in half a minute. Then three lanes: one mostly computes, the others mostly
# wait for clusters, for their pods and for downloads. A lane that has done its own steps takes from the rest
# what no other one has taken: which one is free first differs between machines. What several lanes look at
# on the machine has names of its own, so that no test sees what another one does.
FIRST=(compile lint unit race scheduler integration)
PROCESSOR=(eval rebase generated upstream-cri-o upstream-kubernetes skew)
CLUSTERS=(e2e)
NODES=(critest stock)
REST=(agent rpm kind okd nix)

# Up to five clusters run at once, two of them of skew, and each of their nodes takes 14 inotify instances: more than
# the 128 that most kernels allow.
INOTIFY=/proc/sys/fs/inotify/max_user_instances
INOTIFY_BEFORE=$(cat "$INOTIFY" 2>/dev/null || true)
raise_inotify() {
  [ "${INOTIFY_BEFORE:-0}" -ge 512 ] || { echo 512 >"$INOTIFY"; } 2>/dev/null ||
    die "clusters that run at once need more inotify instances: run 'sysctl -w fs.inotify.max_user_instances=512'"
}

# Compilers touch new memory all the time. In virtual machines that takes a third less time with
# huge pages for all, as Debian's kernels have it by default; others want to be asked for them.
HUGE_PAGES=/sys/kernel/mm/transparent_hugepage/enabled
HUGE_PAGES_BEFORE=$(sed -n 's/.*\[\(.*\)\].*/\1/p' "$HUGE_PAGES" 2>/dev/null || true)
use_huge_pages() { [ "$HUGE_PAGES_BEFORE" != madvise ] || { echo always >"$HUGE_PAGES"; } 2>/dev/null || true; }

restore_settings() {
  [ "$(cat "$INOTIFY")" = "$INOTIFY_BEFORE" ] || echo "$INOTIFY_BEFORE" >"$INOTIFY"
  [ "$HUGE_PAGES_BEFORE" != madvise ] || { echo madvise >"$HUGE_PAGES"; } 2>/dev/null || true
}

case ${1:-} in
test | all)
  [ "$(id -u)" = 0 ] || die "the cluster tests make network namespaces and mounts: run as root, or 'make test-unit'"
  if [ "$1" = all ]; then
    FULL=1
    PROCESSOR+=(fuzz release upstream-compared arch vm)
    REST+=(upstream-bats)
  fi
  steps=("${FIRST[@]}" "${PROCESSOR[@]}" "${CLUSTERS[@]}" "${NODES[@]}" "${REST[@]}")
  ;;
'') die "usage: test.sh test | all | STEP..." ;;
*)
  steps=("$@")
  for name in "${steps[@]}"; do
    [ "$(type -t "step_$name")" = function ] || die "unknown step '$name'"
  done
  ;;
esac
command -v jq >/dev/null || die "jq is missing: 'make deps' installs it"
# A run at the same time would lose its results, and its settings of the machine.
mkdir -p "$BUILD"
other=$(cat "$BUILD/.tests" 2>/dev/null || true)
! grep -qs 'scripts/test\.sh' "/proc/${other:-none}/cmdline" ||
  die "other tests run in this clone, process $other: wait for them, or use another clone"
echo $$ >"$BUILD/.tests"
rm -rf "$OUT"
mkdir -p "$OUT"
STARTED=$(date +%s)
trap restore_settings EXIT
use_huge_pages
printf 'step\tseconds\tprocessors\tfailed\tbegan\n' >"$OUT/times.tsv"
GOTESTSUM=$(go_tool gotest.tools/gotestsum "$GOTESTSUM_VERSION")

if [ "${1:-}" = test ] || [ "${1:-}" = all ]; then
  raise_inotify
  run "${FIRST[@]}"
  # Process groups of their own, so that each can be ended with everything it started.
  set -m
  lane "${PROCESSOR[@]}" &
  lanes=("$!")
  lane "${NODES[@]}" &
  lanes+=("$!")
  lane "${CLUSTERS[@]}" &
  lanes+=("$!")
  set +m
  # A second signal, as make sends one after that of the terminal, must not end the end.
  trap 'trap "" INT TERM; kill -- "${lanes[@]/#/-}" 2>/dev/null || true; restore_settings' EXIT
  wait "${lanes[@]}" || true # a lane that was killed has no result of its steps: the summary says so
  trap restore_settings EXIT
else
  run "${steps[@]}"
fi
summary "${steps[@]}"
