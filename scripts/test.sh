#!/usr/bin/env bash
# Runs the tests and ends with "N passed, N failed".
#
#   test.sh test           what a stranger runs, as root (make test): unit, overlays, core
#   test.sh clusters       besides, every step of the table STEP_TABLE below (make test-clusters)
#   test.sh changed        of that table, the steps whose paths have changed since CI_BASE, in CI_MINUTES: 25 where all
#                          of them have run before, so that their times are known, and else 75
#   test.sh all            everything, with FULL=1 (make test-all), as before a release: also the packages rpm, nix,
#                          okd, kind and release, arch, vm, fuzz, upstream-compared and upstream-bats
#   test.sh STEP [STEP...] single steps
#   test.sh list           prints steps=[...], a JSON list for the nightly workflow: every step of "all", and those of
#                          "clusters" for the other lines
#   test.sh table FOLDER   prints a table of these, in Markdown, from each results.tsv below FOLDER
#
# FULL=1 has the steps do their long parts, too; lab/test/README.md lists them. LINE=1.35 tests that line: "clusters" is
# then without what is the same for all lines. Step lines tests what is compiled for the other lines, without clusters.
# Logs and test2json records of every step go to _out/test/ (_out/LINE/test/); times.tsv there has the seconds
# of each step, those of processors, its result, and when it began.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

# Every step but those of "make test", in the order in which they begin: what it mostly takes (p: processors, c: clusters,
# which wait; a: packages of other kinds, in "all" only), its minutes on a slow machine where nothing is compiled yet,
# and the paths that it tests. A change of one below none of all these paths is in doubt: every step is chosen; and so it
# is with a change below SHARED. What is below APART is tested by lint and module alone.
STEP_TABLE='
lint                p 6 .
module              p 12 .
nodes               c 12 LAB lab/cmd/localcluster crio kubelet patches scheduler terminal lab/test/cluster lab/test/e2e lab/test/report
sharing             c 14 LAB crio kubelet patches scheduler terminal lab/test/imagegc lab/test/layershare lab/test/peers lab/test/tenants
placement           c 20 LAB kubectllayers kubelet patches scheduler terminal lab/test/qosaware lab/test/scheduler
integration         p 9 agent api cmd deploy extender imageref internal kubectllayers kubelet memlimit ocimanifest patches/kubernetes prefetch resolver scheduler terminal lab/test/integration lab/test/kubectl lab/test/oldserver lab/test/deploy
resolver            c 14 LAB cmd/layer-prefetcher cmd/layer-resolver internal/controlplane internal/registrytest ocimanifest prefetch resolver scheduler terminal lab/test/prefetch lab/test/resolver
agent               c 20 LAB agent cmd/layer-agent lab/dashboards internal/monitoring kubectllayers ocimanifest scheduler terminal lab/test/agent lab/test/containerd lab/test/kubectl lab/test/monitoring
extender            c 16 LAB cmd/layer-extender extender internal/monitoring scheduler lab/test/agents lab/test/extender
skew                c 12 LAB crio kubelet patches scheduler lab/test/skew
deploy              c 14 LAB cmd lab/cmd lab/demos extender internal/monitoring kubectllayers ocimanifest resolver scheduler terminal lab/test/demos lab/test/deploy
critest             c 6 LAB crio patches/cri-o scheduler lab/test/critest lab/test/suites
race                p 3 crio imageref kubelet resolver scheduler
upstream-cri-o      p 6 crio patches/cri-o
upstream-kubernetes p 12 kubelet patches/kubernetes
rebase              p 3 crio docs/patches.md kubelet patches scripts/patches.sh
lines               p 40 lines patches scripts/patches.sh
eval                p 6 README.md agent api lab/cmd/layersim docs/evaluation.md extender imageref lab/eval scheduler terminal
stock               c 30 LAB cmd extender internal/controlplane internal/monitoring internal/registrytest kubectllayers ocimanifest resolver scheduler terminal lab/test/demos/console lab/test/deploy lab/test/extender lab/test/resolver lab/test/scheduler
generated           p 22 kubelet patches/kubernetes scripts/generate.sh
rpm                 a 19 PRODUCT docs/install-rpm.md rpm lab/test/rpm lab/test/engine
kind                a 19 PRODUCT lab/demos kind lab/test/demos lab/test/engine lab/test/kind
okd                 a 12 PRODUCT internal/controlplane okd-machine-os rpm lab/test/engine lab/test/okd
nix                 a 8 PRODUCT flake.lock flake.nix nix lab/test/nix
release             a 60 .
conformance         a 240 PRODUCT LAB lab/test/conformance lab/test/suites
chaos               a 90 PRODUCT LAB lab/bench/process lab/bench/timing lab/test/chaos
arch                a 30 PRODUCT lab/test/arch
vm                  a 15 PRODUCT LAB docs/install-binaries.md lab/test/vm
'
# What packages have in them, and what every test on a cluster is made of.
PRODUCT="agent api cmd crio deploy extender imageref internal kubectllayers kubelet memlimit ocimanifest patches prefetch resolver scheduler terminal"
LAB="api deploy imageref internal/auditlog lab/cluster internal/kustomize lab/nodeimages internal/poll lab/scenario internal/testkit lab/test/livetest"
STEP_TABLE=${STEP_TABLE//PRODUCT/$PRODUCT} STEP_TABLE=${STEP_TABLE//LAB/$LAB}
SHARED=(.ci Makefile go.mod go.sum lab/go.mod lab/go.sum lab/run scripts/build.sh scripts/install-deps.sh scripts/lib.sh scripts/test.sh scripts/tree.sh versions.env)
# Paths that lint and module alone test.
APART=(.editorconfig .github .gitignore .golangci.yml .shellcheckrc '*.md' LICENSE docs nix flake.lock flake.nix renovate.json rpm okd-machine-os kind lab/test/layout lab/test/template lab/test/README.md lab/test/checks.sh lab/test/registry.sh
  lab/test/arch lab/test/choice lab/test/engine lab/test/formulas lab/test/kind lab/test/nix lab/test/okd lab/test/release lab/test/rpm lab/test/upstream lab/test/vm lab/test/core scripts lab/bench lab/sbom)

# What is the same for every line.
OF_ALL_LINES=(lint module race rebase lines eval)

OUT=$OUTPUT/test
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
  [ -z "$FULL" ] || vet=()
  (cd "$dir" && CGO_ENABLED=${CGO_ENABLED:-0} "${WRAP[@]}" "$GOTESTSUM" --format standard-quiet --format-hide-empty-pkg \
    --jsonfile "$OUT/$name.json" -- "${vet[@]}" "$@")
}

step_lint() { scripts/lint.sh; }

# workspace STEP ARGS...: go_test in the workspace, whose packages the binaries are compiled from, too. ARGS has the tags.
workspace() {
  local name=$1 tree tags=$SCHEDULER_TAGS
  shift
  if [ "$1" = -tags ]; then
    tags+=,$2
    shift 2
  fi
  tree=$(scripts/tree.sh workspace) || return 1
  PATH=$BUILD/bin/tools:$PATH go_test "$name" "$tree" -tags "$tags" "$@"
}

# Unit tests, on the patched types. Of another line, what is compiled for it: the rest is the same for all.
step_unit() {
  if [ "$LINE" = "$DEFAULT_LINE" ]; then
    workspace unit ./...
  else
    workspace unit ./api/... ./cmd/kube-scheduler/... ./cmd/layer-extender/... ./extender/... ./kubectllayers/... ./scheduler/...
  fi
}

# What is compiled into CRI-O and the kubelet, in their trees.
step_overlays() {
  local tree status=0
  workspace overlays-kubernetes k8s.io/kubernetes/pkg/kubelet/imagelayers/... || status=1
  tree=$(scripts/tree.sh patched cri-o) || return 1
  CGO_ENABLED=1 GOFLAGS="$GOFLAGS -mod=mod" go_test overlays-cri-o "$tree" -tags "test $CRIO_TAGS" ./internal/imagelayers/... ./internal/layershare/... ./internal/layercache/... || status=1
  return "$status"
}

# The core of it on one real cluster.
step_core() { raise_inotify && lab_binaries && workspace core -tags e2e -count=1 -timeout 20m ./lab/test/core/...; }

# The two modules of this repository by themselves, as go test ./... has them in a clone: on stock Kubernetes.
step_module() {
  local status=0
  go_test module . ./... || status=1
  # Go would take an earlier result although a file outside the module, such as a document, has changed.
  go_test module-lab lab -count=1 ./... || status=1
  return "$status"
}

# What many goroutines share, with the race detector; the rest with FULL.
step_race() {
  local status=0
  CGO_ENABLED=1 go_test race . -race ./crio/... ./kubelet/... ./imageref/... ./scheduler/index/... ./scheduler/qosaware/account/... ./resolver/registry/... ./resolver/keychains/... ./resolver/limits/... ./resolver/policy/... || status=1
  [ -n "$FULL" ] || return "$status"
  CGO_ENABLED=1 workspace race-full -race ./resolver/... ./cmd/layer-resolver/... ./agent/... ./cmd/layer-agent/... ./prefetch/... ./cmd/layer-prefetcher/... ./extender/... ./cmd/layer-extender/... ./scheduler/... || status=1
  return "$status"
}

# Scheduler, apiserver and etcd in one process, as in upstream's integration tests; the
# resolver, the agent and our scheduler with their own apiserver and etcd.
step_integration() {
  local status=0
  scripts/install-deps.sh prometheus &&
    scripts/build.sh tools etcd helm patched kube-apiserver kube-scheduler kubectl-layers stock kube-apiserver kube-scheduler || return 1
  workspace integration-kubectl -tags integration -count=1 ./lab/test/kubectl/... || status=1
  workspace integration-resolver -tags integration -count=1 ./resolver/... ./cmd/layer-resolver/... ./cmd/layer-agent/... ./cmd/layer-prefetcher/... ./lab/test/deploy/chart/... ./lab/test/oldserver/... || status=1
  workspace integration-scheduler -tags integration -count=1 ./lab/test/integration/... || status=1
  if [ -n "$FULL" ]; then upstream_preemption || status=1; fi
  lab/dashboards/schema/fetch.sh >/dev/null &&
    workspace integration-dashboards -tags integration -count=1 ./lab/dashboards/... || status=1
  return "$status"
}

# Upstream's integration tests of preemption, with QosAware in place of its plugins.
upstream_preemption() {
  # shellcheck source=../lab/test/integration/upstream.sh
  . lab/test/integration/upstream.sh
  mkdir -p "$BUILD/overlay" && upstream_overlay "$BUILD/kubernetes" "$BUILD/overlay" || return 1
  GOWORK=$BUILD/workspace/go.work PATH=$BUILD/bin/tools:$PATH \
    go_test integration-preemption "$BUILD/kubernetes" -tags "$SCHEDULER_TAGS,inplace" -overlay "$BUILD/overlay/overlay.json" -count=1 -timeout 30m ./lab/test/integration/scheduler/preemption/...
}

# A small evaluation, as a user runs it, and the figures at the top of README.md.
step_eval() { SIZE=small SEEDS=1 lab/eval/eval.sh && lab/eval/claims.sh; }

# Every fuzz target of the repository, for a few seconds each. Fuzzing compiles all that a
# package is built on with counters: those built on Kubernetes' libraries have their turn with
# FULL, and that of lab/eval/sim, on all of Kubernetes, only runs its seeds.
step_fuzz() {
  local file target count=0 heavy=(':(exclude,glob)lab/eval/sim/*_test.go')
  [ -n "$FULL" ] || heavy+=(':(exclude)agent' ':(exclude)api' ':(exclude)resolver' ':(exclude)scheduler/imagemanifests' ':(exclude)scheduler/nodelayers' ':(exclude)scheduler/qosaware' ':(exclude)scheduler/congestion' ':(exclude)scheduler/safe' ':(exclude)extender' ':(exclude)kubectllayers/collect' ':(exclude)kubectllayers/inventory' ':(exclude)kubectllayers/plan')
  while IFS=: read -r file target; do
    target=${target#func } target=${target%%(*}
    fuzz "$target" "$(dirname "$file")" || return 1
    count=$((count + 1))
  done < <(git grep --untracked '^func Fuzz' -- '*_test.go' "${heavy[@]}")
  [ "$count" -gt 0 ] || die "no fuzz target found"
}

# Go 1.26 may end a fuzz run that found nothing with a bare "context deadline exceeded" on
# a busy machine (golang/go#75804): such a run is repeated.
fuzz() {
  local log=$OUT/fuzz-$1.log time=3s module=. package=./$2
  case $2 in lab/*) module=lab package=./${2#lab/} ;; esac
  [ -z "$FULL" ] || time=20s
  go_test "fuzz-$1" "$module" -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$package" >"$log" 2>&1 && cat "$log" && return
  cat "$log"
  if ! grep -q 'context deadline exceeded' "$log" || grep -q 'Failing input written' "$log"; then return 1; fi
  echo "again: golang/go#75804"
  go_test "fuzz-$1" "$module" -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$package"
}

# The versions to which the series apply according to docs/patches.md, and what of CRI-O's can be dropped: that is
# compiled once for the same patches.
step_rebase() {
  local known
  scripts/patches.sh rebase cri-o v1.35.2 &&
    scripts/patches.sh rebase cri-o v1.36.1 &&
    scripts/patches.sh rebase cri-o v1.36.2 &&
    scripts/patches.sh rebase kubernetes v1.36.3 &&
    scripts/patches.sh rebase kubernetes v1.36.5 || return 1
  known=$(succeeded compiled cri-o scripts/patches.sh <(grep '^| cri-o ' docs/patches.md && echo "$CRIO_TAGS"))
  if [ -e "$known" ]; then
    touch "$known"
    echo "CRI-O without what can be dropped: compiled earlier with the same patches"
    return
  fi
  scripts/patches.sh compile cri-o && mkdir -p "${known%/*}" && touch "$known"
}

# Of each other line: the form of its patches, and the tests of what is compiled for it.
step_lines() {
  local line log passed=0 failed=0 p f
  for line in $(lines); do
    [ "$line" != "$DEFAULT_LINE" ] || continue
    say "$line"
    log=$OUT/lines-$line.log
    { LINE=$line scripts/patches.sh lint && LINE=$line scripts/test.sh unit overlays; } 2>&1 | tee "$log" || true
    read -r p f < <(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p') || p=0 f=1
    passed=$((passed + p)) failed=$((failed + f))
  done
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
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
  go_test upstream-cri-o "$tree" -tags "test $CRIO_TAGS" ./internal/imagelayers/... ./internal/layershare/... ./internal/layercache/... ./internal/storage/... ./internal/ociartifact/... || status=1
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
    k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager/...
}

# More of upstream's tests, on the unpatched tree and on the patched one, compared. ROWS names
# rows of lab/test/upstream/lib.sh; by default all run.
step_upstream-compared() {
  local rows=()
  # shellcheck source=../lab/test/upstream/lib.sh
  . lab/test/upstream/lib.sh
  read -ra rows <<<"${ROWS:-}"
  scripts/build.sh tools etcd && upstream_compared "${rows[@]}"
}

# CRI-O's own tests for bats, with the stock binary and with the patched one.
step_upstream-bats() {
  raise_inotify && scripts/install-deps.sh bats && scripts/build.sh tools registry runc crictl stock crio pinns patched crio pinns &&
    go_test upstream-bats lab -tags e2e -count=1 -timeout 40m ./test/upstream/bats/...
}

lab_binaries() { scripts/build.sh lab tools etcd crictl patched crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler; }
cluster_binaries() { scripts/build.sh tools stock patched; }
# containerd and its shim, with FULL in three versions.
containerds() {
  local version names=()
  for version in '' ${FULL:+-1.7 -2.4}; do names+=("containerd$version" "containerd-shim-runc-v2$version"); done
  scripts/build.sh tools "${names[@]}"
}
# on_clusters STEP FOLDER...: tests below lab that start clusters, one package after the other. They are built here and not in
# the workspace, on types that have no layers: as stock clients of a patched apiserver. Those of another line than the
# default are built in its workspace.
on_clusters() {
  local name=$1 folders
  shift
  mapfile -t folders < <(printf './%s/...\n' "$@")
  raise_inotify && cluster_binaries || return 1
  if [ "$LINE" = "$DEFAULT_LINE" ]; then
    go_test "$name" lab -tags e2e -count=1 -timeout 40m -p 1 "${folders[@]}"
  else
    workspace "$name" -tags e2e -count=1 -timeout 40m -p 1 "${folders[@]/#.\//./lab/}"
  fi
}
step_nodes() { on_clusters nodes cluster test/cluster test/e2e test/report; }
step_sharing() { on_clusters sharing test/imagegc test/layershare test/peers test/tenants; }
step_placement() { on_clusters placement test/scheduler test/qosaware; }
step_resolver() { containerds && on_clusters resolver test/resolver test/prefetch; }
step_extender() { scripts/install-deps.sh prometheus && on_clusters extender test/extender test/agents; }
step_deploy() {
  local status=0
  containerds && scripts/build.sh stock kubectl && on_clusters deploy test/deploy test/demos || status=1
  if [ -n "$FULL" ]; then make demo D=agent || status=1; fi
  return "$status"
}
step_agent() { scripts/install-deps.sh prometheus && containerds && on_clusters agent test/agent test/containerd test/kubectl/live test/monitoring; }
# Everything is stock but scheduler or extender, and resolver.
step_stock() {
  raise_inotify && cluster_binaries && STOCK_NODES=1 go_test stock lab -tags e2e -count=1 -timeout 40m -p 1 \
    -run '^(TestAncestor|TestRollingUpdate|TestNeverPulled|TestHeldImages|TestDeploy)$/^(|images|by-namespace)$' ./test/scheduler/... ./test/resolver/... ./test/extender/... ./test/deploy/...
}
step_skew() { on_clusters skew test/skew; }
step_critest() { { [ -z "$FULL" ] || containerds; } && on_clusters critest test/critest; }

# Kubernetes' conformance tests, on a stock cluster and on one of ours, which SCHEDULER names; FOCUS selects some.
step_conformance() {
  raise_inotify && scripts/install-deps.sh conformance && cluster_binaries &&
    scripts/build.sh tools coredns stock kubectl kube-proxy ginkgo e2e.test agnhost nonewprivs sample-apiserver &&
    go_test conformance lab -tags e2e -count=1 -timeout 9h ./test/conformance/...
}

# Components are killed at random, for CHAOS_SECONDS. What is left to do afterwards may take as long as three pulls that
# are tried again.
step_chaos() { raise_inotify && cluster_binaries && go_test chaos lab -tags e2e -count=1 -timeout $((${CHAOS_SECONDS:-3600} + 2400))s ./test/chaos/...; }

# A node in a virtual machine.
step_vm() { scripts/install-deps.sh vm && on_clusters vm test/vm; }

# The packages. Each test prints one line per check and ends with "N passed, N failed".
step_nix() { scripts/install-deps.sh nix && lab/test/nix/run.sh; }
step_rpm() { scripts/install-deps.sh rpm && lab/test/rpm/run.sh; }
step_okd() { scripts/install-deps.sh rpm okd && lab/test/okd/run.sh; }
step_kind() { scripts/install-deps.sh kind && lab/test/kind/run.sh; }
# Without QEMU, tests say which checks they skip.
step_release() { scripts/install-deps.sh rpm cross && { scripts/install-deps.sh qemu || true; } && lab/test/release/run.sh; }
step_arch() { scripts/install-deps.sh cross && { scripts/install-deps.sh qemu || true; } && lab/test/arch/run.sh; }

# failures LOG: prints each check that failed with its reason, which stands below it, and the end
# of the log.
failures() {
  awk '/^FAILED: / { failed = 1 } !/^(FAILED: |    )/ { failed = 0 } failed && ++n <= 300' "$1"
  tail -n 40 "$1"
}

# of_step STEP COLUMN: what STEP_TABLE has of it: 2 is its kind, 3 its minutes, 4 and on its paths.
of_step() { awk -v step="$1" -v column="$2" '$1 == step { for (i = column; i <= (column == 4 ? NF : column); i++) print $i }' <<<"$STEP_TABLE"; }
# of_kind KIND: the steps of this kind.
of_kind() { awk -v kind="$1" '$2 == kind { print $1 }' <<<"$STEP_TABLE"; }

# oldest_first KIND: the steps of this kind, those first that passed here longest ago: what does not fit into CI_MINUTES
# is not the same each time.
oldest_first() {
  local name
  for name in $(of_kind "$1"); do
    echo "$(stat -c %Y "$CACHE/minutes/$name" 2>/dev/null || echo 0) $name"
  done | sort -ns -k1,1 | cut -d' ' -f2
}

# left_out STEP: prints why a step that is chosen does not run now; nothing if it runs.
left_out() {
  local name=$1 minutes gone
  if [ "$(of_step "$name" 2)" = a ] && [ -z "${AGAIN:-}" ] && [ -e "$(remembered "$name")" ]; then
    echo "passed earlier with the same inputs (AGAIN=1 runs it again)"
  elif [ -n "${LIMIT:-}" ]; then
    minutes=$(cat "$CACHE/minutes/$name" 2>/dev/null || of_step "$name" 3)
    gone=$((($(date +%s) - ${CI_STARTED:-$STARTED}) / 60))
    # What is too long for any run is taken as one that just fits: it runs when it is the first.
    [ "$minutes" -le "$((LIMIT - BEGAN))" ] || minutes=$((LIMIT - BEGAN))
    [ "$((gone + minutes))" -le "$LIMIT" ] || echo "it takes $minutes minutes, and $gone of $LIMIT are gone"
  fi
}

# remembered STEP: prints the path of the file that is there if the step passed with what its paths have now.
remembered() {
  local paths
  mapfile -t paths < <(of_step "$1" 4)
  git rev-parse HEAD >/dev/null 2>&1 || return 0 # without git nothing is remembered
  echo "$CACHE/passed/$1-$({
    echo "$FULL"
    go version
    git ls-files -co --exclude-standard -z -- "${paths[@]}" "${SHARED[@]}" | xargs -0 sha256sum 2>/dev/null
  } | sha256sum | cut -c1-16)"
}

# run STEP...: runs them one after the other, each with its log, its result and its times. What passes is noted: the
# commit, for "changed"; what it takes here.
run() {
  local name started seconds cpu why inputs commit
  mkdir -p "$CACHE/passed" "$CACHE/minutes"
  for name in "$@"; do
    why=$(left_out "$name")
    if [ -n "$why" ]; then
      say "$name: left out: $why"
      echo "skipped: $name: $why" >"$OUT/$name.log"
      echo "0 passed, 0 failed" >>"$OUT/$name.log"
      echo 0 >"$OUT/$name.exit"
      continue
    fi
    started=$(date +%s)
    # Before it runs: what changes meanwhile has not passed.
    inputs='' commit=''
    [ "$(of_step "$name" 2)" != a ] || inputs=$(remembered "$name")
    [ -n "$(git status --porcelain 2>/dev/null)" ] || commit=$(git rev-parse HEAD 2>/dev/null) || true
    say "$name: started; log ${OUT#"$ROOT"/}/$name.log"
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
      [ -z "$commit" ] || echo "$commit" >"$CACHE/passed/$name"
      [ -z "$inputs" ] || touch "$inputs"
      [ -n "$FULL" ] || echo $(((seconds + 59) / 60)) >"$CACHE/minutes/$name"
    else
      say "$name: FAILED after $seconds s, with $(df -m --output=avail "$OUT" | tail -n 1) MB of disk and $(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) MB of memory free; from ${OUT#"$ROOT"/}/$name.log:"
      failures "$OUT/$name.log" >&2
    fi
    printf '%s\t%d\t%d\t%d\t%d\n' "$name" "$seconds" "$cpu" "$(cat "$OUT/$name.exit")" "$((started - STARTED))" >>"$OUT/times.tsv"
  done
}

# lane KINDS: runs what is chosen, those of KINDS first; what another lane has begun is its own. Who makes the
# folder has the step.
lane() {
  local kind name
  for kind in '' "$1" p c a; do
    for name in "${STEPS[@]}"; do
      [ "$(of_step "$name" 2)" = "$kind" ] || continue
      if mkdir "$OUT/$name.taken" 2>/dev/null; then run "$name"; fi
    done
  done
}

# changed: prints the steps whose paths have changed since CI_BASE, the last state that landed; if it is not known, those
# whose paths have changed since they passed on this machine. Says why of each.
changed() {
  local name base files known=${CI_BASE:-} paths doubtful
  mkdir -p "$CACHE/passed"
  # What no row names.
  mapfile -t doubtful < <({
    printf '%s\n' "${APART[@]}"
    awk '$4 != "." { for (i = 4; i <= NF; i++) print $i }' <<<"$STEP_TABLE"
  } | sed 's/^/:(exclude)/')
  if [ -z "$known" ] && known=$(git merge-base HEAD origin/main 2>/dev/null) && [ "$known" = "$(git rev-parse HEAD)" ]; then known=''; fi
  for name in $(oldest_first p) $(oldest_first c); do
    # What passed here may be older than what landed: what did not fit into CI_MINUTES the last time is still to run.
    base=$(cat "$CACHE/passed/$name" 2>/dev/null || true)
    if [ -n "$known" ] && ! git merge-base --is-ancestor "${base:-none}" "$known" 2>/dev/null; then
      base=$known
      echo "$base" >"$CACHE/passed/$name"
    fi
    if [ -z "$base" ] || ! git cat-file -e "$base^{commit}" 2>/dev/null; then
      say "$name: chosen: what has landed is not known (CI_BASE), and it never passed on this machine"
      echo "$name"
      continue
    fi
    mapfile -t paths < <(of_step "$name" 4)
    files=$(git diff --name-only "$base" -- "${paths[@]}" "${SHARED[@]}")
    [ -n "$files" ] || files=$(git diff --name-only "$base" -- . "${doubtful[@]}")
    if [ -n "$files" ]; then
      say "$name: chosen: $(wc -l <<<"$files") files changed since ${base:0:12}, $(head -n 1 <<<"$files") for one"
      echo "$name"
    else
      say "$name: left out: nothing that it tests has changed since ${base:0:12}"
    fi
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
      # A record of a run that was ended, or on a full disk, may stop inside a line.
      read -r p f s < <(cat "${records[@]}" | jq -Rrn '
        reduce (inputs | fromjson? | select(.Test) | .Action) as $a ({};
          if $a == "pass" or $a == "fail" or $a == "skip" then .[$a] += 1 else . end)
        | "\(.pass // 0) \(.fail // 0) \(.skip // 0)"')
      [ "$exit" = 0 ] || [ "$f" -gt 0 ] || f=1
    elif read -r p f < <(tail -n 1 "$OUT/$name.log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p'); then
      s=$(grep -c '^skipped: ' "$OUT/$name.log") || true
      [ "$exit" = 0 ] || [ "$f" -gt 0 ] || f=1
    elif [ "$exit" = 0 ]; then p=1 f=0; else p=0 f=1; fi
    printf '%-22s %6d passed %4d failed %4d skipped\n' "$name" "$p" "$f" "$s"
    printf '%s\t' "$LINE" "$name" "$KUBERNETES_VERSION" "$CRIO_VERSION" "$p" "$f" >>"$OUT/results.tsv"
    echo "$s" >>"$OUT/results.tsv"
    if [ "$f" -gt 0 ]; then sed -n 's/^FAILED: /  failed /p; s/^=== FAIL: /  failed /p' "$OUT/$name.log" | cut -c1-300; fi
    if [ "$s" -gt 0 ] && [[ $name == upstream-* ]]; then
      echo "  skipped by upstream's own conditions, as on the unpatched tree; reasons in ${OUT#"$ROOT"/}/$name.log"
    elif [ "$s" -gt 0 ] && [ ${#records[@]} = 0 ]; then
      sed -n 's/^skipped: /  skipped /p' "$OUT/$name.log" | cut -c1-300
    elif [ "$s" -gt 0 ]; then
      # One line for each package and reason, with the tests.
      cat "${records[@]}" | jq -Rrn '
        [[inputs | fromjson? | select(.Test)] | group_by(.Package + " " + .Test)[]
        | select(any(.Action == "skip"))
        | {package: (.[0].Package | split("/") | .[-1]), test: .[0].Test, reason: ([.[] | select(.Action == "output") | .Output
          | select(startswith("    ")) | gsub("^\\s+|\\s+$"; "") | sub("^[a-z_]+\\.go:[0-9]+: "; "")] | join(" "))}]
        | group_by([.package, .reason])[]
        | "  skipped \(.[0].package), \(length): \(.[0].reason): \([.[].test] | join(", "))"' | cut -c1-300
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  done
  echo
  echo "$(($(date +%s) - STARTED)) s; ${OUT#"$ROOT"/}/times.tsv has the time of each step"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

# Up to four clusters run at once, two of them of skew, and each of their nodes takes 14 inotify instances: more than
# the 128 that most kernels allow.
INOTIFY=/proc/sys/fs/inotify/max_user_instances
INOTIFY_BEFORE=$(cat "$INOTIFY" 2>/dev/null || true)
raise_inotify() {
  [ "${INOTIFY_BEFORE:-0}" -ge 512 ] || { echo 512 >"$INOTIFY"; } 2>/dev/null ||
    die "clusters that run at once need more inotify instances: run 'sysctl -w fs.inotify.max_user_instances=512'"
}

restore_settings() {
  [ "$(cat "$INOTIFY")" = "$INOTIFY_BEFORE" ] || echo "$INOTIFY_BEFORE" >"$INOTIFY"
  restore_huge_pages
}

# every_step: prints the names of the steps of "all".
every_step() {
  printf '%s\n' core unit overlays
  awk 'NF { print $1 }' <<<"$STEP_TABLE"
  printf '%s\n' fuzz upstream-compared upstream-bats
}

# cluster_steps LINE: prints the names of the steps of "clusters" for that line.
cluster_steps() {
  printf '%s\n' core unit overlays
  awk '$2 == "p" || $2 == "c" { print $1 }' <<<"$STEP_TABLE" |
    if [ "$1" = "$DEFAULT_LINE" ]; then cat; else grep -vxF "$(printf '%s\n' "${OF_ALL_LINES[@]}")"; fi
}

# nightly: prints "LINE STEP" for all that the nightly workflow runs.
nightly() {
  local line
  every_step | sed "s/^/$DEFAULT_LINE /"
  for line in $(lines); do
    [ "$line" = "$DEFAULT_LINE" ] || cluster_steps "$line" | sed "s/^/$line /"
  done
}

# table FOLDER: prints a row for each step and a column for each line.
table() {
  # A result that is missing is one of a machine that was lost, or took too long.
  awk -F'\t' '
    NR == FNR {
      split($0, of, " ")
      if (!(of[1] in titles)) { lines[++columns] = of[1]; titles[of[1]] = of[1] }
      if (!(of[2] in known)) { steps[++rows] = of[2]; known[of[2]] }
      cell[of[1], of[2]] = "**no result**"
      next
    }
    { titles[$1] = "Kubernetes " $3 ", CRI-O " $4 }
    { cell[$1, $2] = ($6 ? "**" $6 " failed**, " : "") $5 " passed" ($7 ? ", " $7 " skipped" : "") }
    END {
      head = "| step |"; rule = "| --- |"
      for (c = 1; c <= columns; c++) { head = head " " titles[lines[c]] " |"; rule = rule " --- |" }
      print head "\n" rule
      for (r = 1; r <= rows; r++) {
        row = "| " steps[r] " |"
        for (c = 1; c <= columns; c++) row = row " " cell[lines[c], steps[r]] " |"
        print row
      }
    }' <(nightly) <(find "$1" -name results.tsv -exec cat {} +)
}

LIMIT=''
# Two lanes for what a stranger runs: the cluster waits while the others compute. Three for all: one that mostly
# computes, and two with clusters.
lanes_of=(p c)
case ${1:-} in
test | clusters | changed | all)
  [ "$(id -u)" = 0 ] || die "the cluster tests make network namespaces and mounts: run as root, or 'make test STEP=unit'"
  STEPS=(core unit overlays)
  [ "$1" = test ] || lanes_of=(p c c)
  case $1 in
  clusters) mapfile -t STEPS < <(cluster_steps "$LINE") ;;
  changed)
    mapfile -t STEPS < <(changed)
    [ ${#STEPS[@]} -gt 0 ] || exit 0
    LIMIT=${CI_MINUTES:-25}
    for name in "${STEPS[@]}"; do [ -n "${CI_MINUTES:-}" ] || [ -e "$CACHE/minutes/$name" ] || LIMIT=75; done
    ;;
  all)
    FULL=1
    mapfile -t STEPS < <(every_step)
    ;;
  esac
  ;;
list)
  echo "steps=$(nightly | jq -Rnc '[inputs | split(" ") | {line: .[0], step: .[1]}]')"
  exit
  ;;
table)
  table "${2:?"usage: test.sh table FOLDER"}"
  exit
  ;;
'') die "usage: test.sh test | clusters | changed | all | STEP..." ;;
*)
  STEPS=("$@")
  for name in "${STEPS[@]}"; do
    [ "$(type -t "step_$name")" = function ] || die "unknown step '$name'"
  done
  lanes_of=()
  ;;
esac
case $* in
test) scripts/install-deps.sh ;;
unit | module) command -v jq >/dev/null || die "jq is missing: 'make deps' installs it" ;;
*) scripts/install-deps.sh dev ;;
esac
# A run at the same time would lose its results, and its settings of the machine.
mkdir -p "$BUILD"
[ -w "$BUILD" ] || die "$BUILD is another user's: run this as root, or remove it"
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

if [ ${#lanes_of[@]} -gt 0 ]; then
  raise_inotify
  # What clusters run is compiled before the first one: beside compilers they are slow, and take processors all the while.
  [ "$1" != test ] || lab_binaries
  for name in "${STEPS[@]}"; do
    case $1-$(of_step "$name" 2) in *-c | *-a) cluster_binaries && break ;; esac
  done
fi
BEGAN=$((($(date +%s) - ${CI_STARTED:-$STARTED}) / 60)) # minutes
# Process groups of their own, so that each can be ended with everything it started.
set -m
lanes=()
for kind in "${lanes_of[@]}"; do
  lane "$kind" &
  lanes+=("$!")
done
if [ ${#lanes[@]} = 0 ]; then
  run "${STEPS[@]}" &
  lanes+=("$!")
fi
set +m
# A second signal, as make sends one after that of the terminal, must not end the end.
trap 'trap "" INT TERM; kill -- "${lanes[@]/#/-}" 2>/dev/null || true; restore_settings' EXIT
wait "${lanes[@]}" || true # a lane that was killed has no result of its steps: the summary says so
trap restore_settings EXIT
summary "${STEPS[@]}"
