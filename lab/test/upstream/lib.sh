# Sourced by scripts/test.sh: upstream's own tests around the patches, on the unpatched tree
# and on the patched one, compared test by test.
# shellcheck shell=bash

# A row: its name, its kind, and what go test gets. Every row has to pass on both trees. A test
# that cannot pass here on either is left out with -skip: specs of ContainerEvents close the channel
# of the server that is tested next, and the streaming server sets its URL while specs of attach,
# exec and port forwarding read it.
#
#   unit         packages of Kubernetes
#   race         the same with the race detector
#   integration  packages of Kubernetes that start an apiserver with etcd
#   gated        the same, and once more with our feature gate on in the patched tree
#   cri-o        packages of CRI-O, with the race detector
UPSTREAM_ROWS='
noderestriction unit         ./plugin/pkg/admission/noderestriction/...
describe        unit         k8s.io/kubectl/pkg/describe/...
nodeshutdown    unit         ./pkg/kubelet/nodeshutdown/...
apply           gated        ./test/integration/apiserver/apply -run ^(TestApplyStatus|TestApplyStatusWithCBOR|TestApplyResetFields|TestFieldsWipingConsistency|TestUpdateStatusWithOldVersion)$
etcd            integration  ./test/integration/etcd
dryrun          gated        ./test/integration/dryrun
auth-node       gated        ./test/integration/auth -run ^TestNode
node            gated        ./test/integration/node
nodelifecycle   unit         ./pkg/controller/nodelifecycle/...
attachdetach    unit         ./pkg/controller/volume/attachdetach/...
kubelet-app     unit         ./cmd/kubelet/app/...
eviction        unit         ./pkg/kubelet/eviction/...
stats           unit         ./pkg/kubelet/stats/...
kubelet-race    race         ./pkg/kubelet/nodestatus/... ./pkg/kubelet/images/... ./pkg/kubelet/kuberuntime/...
crio-storage    cri-o        ./internal/storage/... ./internal/lib/... ./internal/ociartifact/...
crio-server     cri-o        ./server/ -ginkgo.skip=ContainerEvents|Container(Attach|Exec|Portforward).should.succeed
'

# upstream_compared [NAME...]: runs these rows, by default all of them.
upstream_compared() {
  local name kind arguments status=0 known
  known=$(awk 'NF { print $1 }' <<<"$UPSTREAM_ROWS")
  for name in "$@"; do
    grep -qxF -e "$name" <<<"$known" || die "unknown row '$name': ${known//$'\n'/, }"
  done
  while read -r name kind arguments; do
    if [ -z "$name" ] || { [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; }; then continue; fi
    # shellcheck disable=SC2086 # they are words
    upstream_row "$name" "$kind" $arguments </dev/null || status=1
  done <<<"$UPSTREAM_ROWS"
  return "$status"
}

# upstream_row NAME KIND ARGS...: runs a row on both trees and compares. Records of the
# unpatched tree are in _out/test/unpatched-NAME.json, which test.sh does not count.
# shellcheck disable=SC2034 # go_test reads CGO_ENABLED and WRAP
upstream_row() {
  local name=$1 kind=$2 component=kubernetes tree modules status=0
  local CGO_ENABLED=0 GOFLAGS=$GOFLAGS PATH=$PATH WRAP=()
  shift 2
  case $kind in
  unit) ;;
  race) CGO_ENABLED=1 && set -- -race "$@" ;;
  integration | gated) PATH=$BUILD/bin/tools:$PATH && set -- -count=1 -timeout 30m "$@" ;;
  cri-o)
    component=cri-o CGO_ENABLED=1 GOFLAGS+=' -mod=mod'
    # As in the step upstream-cri-o.
    WRAP=(unshare --mount --propagation shared)
    modules=$(upstream_modules) || return 1
    set -- -race -modfile "$modules" -tags "test $CRIO_TAGS" "$@"
    ;;
  *) die "row $name: unknown kind '$kind'" ;;
  esac
  tree=$(scripts/tree.sh upstream "$component") || return 1
  upstream_run "unpatched-$name" unpatched "$tree" "$@" || status=1
  tree=$(scripts/tree.sh patched "$component") || return 1
  upstream_run "upstream-compared-$name" patched "$tree" "$@" || status=1
  upstream_same "$name" "$OUT/unpatched-$name.json" "$OUT/upstream-compared-$name.json" || status=1
  [ "$kind" = gated ] || return "$status"
  upstream_gate "$tree" "$BUILD/overlay" || return 1
  upstream_run "upstream-compared-$name-gate" patched "$tree" -overlay "$BUILD/overlay/gate.json" "$@" || status=1
  upstream_same "$name with NodeStatusImageLayers" "$OUT/unpatched-$name.json" "$OUT/upstream-compared-$name-gate.json" || status=1
  return "$status"
}

# upstream_gate TREE FOLDER: writes FOLDER/gate.json, for go test -overlay: our gate is on by default.
upstream_gate() {
  local gates=$1/pkg/features/kube_features.go
  mkdir -p "$2" && sed '/^\tNodeStatusImageLayers: {$/,/^\t}/s/Default: false/Default: true/' "$gates" >"$2/kube_features.go" || return 1
  [ "$(diff "$gates" "$2/kube_features.go" | grep -c '^>.*Default: true')" = 1 ] || die "kube_features.go has another form: see lab/test/upstream/lib.sh"
  jq -n --arg gates "$gates" --arg to "$2/kube_features.go" '{Replace: {($gates): $to}}' >"$2/gate.json"
}

# upstream_modules: prints CRI-O's go.mod, but for a copy of containers/storage in which a lock that
# several readers hold is not marked as locked again by each: the race detector sees that, where
# two pulls read.
upstream_modules() {
  local tree from to=$BUILD/upstream-modules
  tree=$(scripts/tree.sh upstream cri-o) && from=$(cd "$tree" && go list -mod=mod -m -f '{{.Dir}}' go.podman.io/storage) || return 1
  rm -rf "$to" && mkdir -p "$to" && cp -r --no-preserve=mode "$from" "$to/storage" || return 1
  sed -i 's/^\tl\.locked = true$/\tif !l.locked {\n\t\tl.locked = true\n\t}/' "$to/storage/pkg/lockfile/lockfile.go"
  [ "$(diff "$from/pkg/lockfile/lockfile.go" "$to/storage/pkg/lockfile/lockfile.go" | grep -c 'if !l.locked')" = 2 ] ||
    die "containers/storage has another lockfile.go: see lab/test/upstream/lib.sh"
  cp "$tree/go.mod" "$tree/go.sum" "$to/" && go mod edit -replace "go.podman.io/storage=$to/storage" "$to/go.mod" && echo "$to/go.mod"
}

# upstream_run RECORD FLAVOUR TREE ARGS...: a second time if it fails, because some of upstream's
# tests give up early on a busy machine.
upstream_run() {
  local record=$1 flavour=$2 tree=$3 attempt roots=$BUILD/roots
  shift 3
  # Upstream's test server looks for its package's folder where the compiler says that it is,
  # and with -trimpath where Bazel says.
  mkdir -p "$roots/$flavour/k8s.io"
  ln -sfn "$tree" "$roots/$flavour/k8s.io/kubernetes"
  for attempt in 1 2; do
    TEST_SRCDIR=$roots TEST_WORKSPACE=$flavour go_test "$record" "$tree" -vet=off "$@" && return
    echo "$record: attempt $attempt of 2 failed"
  done
  return 1
}

# upstream_results RECORDS: prints a line for each test: package, name, and how it ended last.
upstream_results() {
  jq -rn 'reduce (inputs | select(.Test and (.Action | IN("pass", "fail", "skip")))) as $e ({};
      .["\($e.Package) \($e.Test)"] = $e.Action)
    | to_entries[] | "\(.key) \(.value)"' "$1" | sort
}

# upstream_same NAME UNPATCHED PATCHED: compares records. The patched tree may have more tests.
upstream_same() {
  local differences results
  upstream_results "$2" >"${2%.json}.results" && upstream_results "$3" >"${3%.json}.results" || return 1
  results=$(wc -l <"${2%.json}.results")
  differences=$(comm -23 "${2%.json}.results" "${3%.json}.results")
  if [ "$results" = 0 ]; then
    echo "$1: no test was compared"
  elif [ -n "$differences" ]; then
    echo "$1: these ended like that on the unpatched tree only:"
    echo "$differences"
  else
    echo "$1: $results tests end as on the unpatched tree; the patched one has $(comm -13 "${2%.json}.results" "${3%.json}.results" | wc -l) more"
    return
  fi
  return 1
}
