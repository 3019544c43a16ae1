#!/usr/bin/env bash
# Builds binaries into _build/bin/<flavour>/, each only if its inputs changed.
#
#   build.sh FLAVOUR [NAME...] [FLAVOUR [NAME...]]...
#
#   patched  crio pinns kubelet kube-apiserver kube-controller-manager, kube-scheduler with the
#            plugin LayerLocality, layer-extender, layer-resolver, layer-agent, layer-prefetcher and
#            kubectl-layers
#   stock    crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler from
#            unmodified upstream source; kubeadm, kubectl and kube-proxy when named; for Kubernetes' own tests
#            e2e.test, ginkgo, and agnhost, nonewprivs and sample-apiserver of their images, too
#   tools    etcd registry runc crictl critest; coredns, local-path-provisioner, containerd and
#            containerd-shim-runc-v2 (with -1.7 or -2.4: of that version), containerd's ctr, kwok
#            and helm when named
#   lab      what only the demo and make test run: demo registry layer-resolver runc. This layer-resolver
#            has Kubernetes' versions of libraries; that of a release has those of go.mod. This runc is the
#            system's, unless that is older than 1.1
#
# Without a NAME: all of the flavour. LINE=1.35 builds those of that line, into _build/1.35/bin; tools are the same for
# all lines. ARCH=amd64|arm64 in the environment builds
# for that architecture, into _build/bin/<flavour>-<arch> if it is not the
# machine's own. OS=darwin|windows builds kubectl-layers for that system, into
# _build/bin/patched-<os>-<arch>. Results are kept in $LAYERLOCALITY_CACHE (default
# ~/.cache/layer-locality) by the hash of source, recipe and Go version, so a
# second clone or a CI run finds them there.
. "$(dirname "$0")/lib.sh"

# The trees are separate main modules; a go.work above them does not apply to
# them.
unset GOWORK
# The user's settings would change the binaries, but not the hash they are kept
# by.
unset GOAMD64 GOARM64 GOEXPERIMENT CGO_CFLAGS CGO_LDFLAGS CGO_CPPFLAGS

use_arch "${ARCH:-}"
OS=${OS:-}
case $OS in
"" | linux) OS='' ;;
darwin | windows)
  export GOOS=$OS
  [ "$*" = "patched kubectl-layers" ] || die "only 'patched kubectl-layers' can be built for $OS"
  ;;
*) die "unknown system '$OS': linux, darwin or windows" ;;
esac

# group_of FLAVOUR/NAME: prints what it is compiled in one go with. A tool with a source of its own is alone.
group_of() {
  case $1 in
  patched/crio | patched/pinns) echo cri-o ;;
  stock/crio | stock/pinns) echo stock-cri-o ;;
  patched/layer-resolver | patched/layer-agent | patched/layer-prefetcher) echo own ;;
  # Another Kubernetes may lack what its libraries need.
  lab/layer-resolver) if [ "$LINE" = "$DEFAULT_LINE" ]; then echo workspace; else echo own; fi ;;
  patched/kubelet | patched/kube-* | patched/layer-extender | patched/kubectl-layers | lab/demo | lab/registry | tools/etcd | tools/crictl) echo workspace ;;
  stock/kubelet | stock/kube-* | stock/kubeadm | stock/kubectl | stock/ginkgo | stock/agnhost | stock/nonewprivs | stock/sample-apiserver) echo stock-kubernetes ;;
  stock/e2e.test) echo stock-tests ;;
  lab/runc) echo tools/runc ;;
  tools/*) echo "$1" ;;
  *) die "there is no ${1%%/*} ${1#*/}" ;;
  esac
}

# package_of FLAVOUR/NAME: the main package, as its group's folder names it.
package_of() {
  case $1 in
  patched/kube-scheduler | patched/layer-* | patched/kubectl-layers) echo "./cmd/${1#*/}" ;;
  lab/registry) echo ./lab/cluster/registry ;;
  lab/demo) echo ./lab/cmd/demo ;;
  lab/*) echo "./cmd/${1#*/}" ;;
  tools/etcd) echo go.etcd.io/etcd/server/v3 ;;
  tools/crictl) echo sigs.k8s.io/cri-tools/cmd/crictl ;;
  */crio) echo ./cmd/crio ;;
  stock/e2e.test) echo k8s.io/kubernetes/test/e2e ;;
  stock/ginkgo) echo github.com/onsi/ginkgo/v2/ginkgo ;;
  stock/agnhost | stock/nonewprivs) echo "k8s.io/kubernetes/test/images/${1#*/}" ;;
  stock/sample-apiserver) echo k8s.io/sample-apiserver ;;
  *) echo "k8s.io/kubernetes/cmd/${1#*/}" ;;
  esac
}

# tool_module NAME: the module of a tool and its pinned version.
tool_module() {
  case $1 in
  etcd) echo "go.etcd.io/etcd/server/v3 $ETCD_VERSION" ;;
  registry) echo "github.com/distribution/distribution/v3 $DISTRIBUTION_VERSION" ;;
  runc) echo "github.com/opencontainers/runc $RUNC_VERSION" ;;
  crictl | critest) echo "sigs.k8s.io/cri-tools $CRI_TOOLS_VERSION" ;;
  coredns) echo "github.com/coredns/coredns $COREDNS_VERSION" ;;
  containerd | containerd-shim-runc-v2 | ctr) echo "github.com/containerd/containerd/v2 $CONTAINERD_VERSION" ;;
  containerd-1.7 | containerd-shim-runc-v2-1.7) echo "github.com/containerd/containerd $CONTAINERD_1_7_VERSION" ;;
  containerd-2.4 | containerd-shim-runc-v2-2.4) echo "github.com/containerd/containerd/v2 $CONTAINERD_2_4_VERSION" ;;
  local-path-provisioner) echo "github.com/rancher/local-path-provisioner $LOCAL_PATH_PROVISIONER_VERSION" ;;
  kwok) echo "sigs.k8s.io/kwok $KWOK_VERSION" ;;
  helm) echo "helm.sh/helm/v4 $HELM_VERSION" ;;
  krew | validate-krew-manifest) echo "sigs.k8s.io/krew $KREW_VERSION" ;;
  butane) echo "github.com/coreos/butane $BUTANE_VERSION" ;;
  ignition-validate) echo "github.com/coreos/ignition/v2 $IGNITION_VERSION" ;;
  *) die "unknown tool '$1'" ;;
  esac
}

kubernetes_version() { if [ "${1%-*}" = stock ]; then echo "$KUBERNETES_VERSION"; else our_version kubernetes; fi; }

# kubernetes_ldflags GROUP: one line for all that is compiled with Kubernetes: -X is for those that have such a variable.
kubernetes_ldflags() {
  local v module flags=(-s -w)
  v=$(kubernetes_version "$1")
  for module in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=(-X "$module.gitVersion=$v" -X "$module.gitMajor=1" -X "$module.gitMinor=$(echo "$v" | cut -d. -f2)" -X "$module.gitTreeState=clean")
  done
  echo "${flags[*]} -X main.version=$v -X sigs.k8s.io/cri-tools/pkg/version.Version=$CRI_TOOLS_VERSION"
}

# enter GROUP: goes to the folder from which the group is compiled, and sets TAGS, FLAGS (arguments of go build)
# and the environment. It makes the source tree, if that is not there.
enter() {
  local tree module version
  export GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0
  TAGS='' FLAGS=()
  case $1 in
  workspace)
    tree=$("$ROOT/scripts/tree.sh" workspace)
    TAGS=$SCHEDULER_TAGS FLAGS=(-ldflags "$(kubernetes_ldflags "$1")")
    ;;
  stock-kubernetes | stock-tests)
    tree=$("$ROOT/scripts/tree.sh" upstream kubernetes)
    FLAGS=(-ldflags "$(kubernetes_ldflags "$1")")
    [ "$1" = stock-kubernetes ] || VERB="test" FLAGS+=(-c)
    ;;
  cri-o | stock-cri-o)
    if [ "$1" = cri-o ]; then tree=$("$ROOT/scripts/tree.sh" patched cri-o); else tree=$("$ROOT/scripts/tree.sh" upstream cri-o); fi
    use_c
    export CGO_ENABLED=1 GOFLAGS="$GOFLAGS -mod=mod"
    TAGS=$CRIO_TAGS FLAGS=(-ldflags "$CRIO_LDFLAGS")
    ;;
  own)
    tree=$ROOT
    FLAGS=(-ldflags "-s -w -X main.version=$(kubernetes_version "$1")")
    ;;
  tools/*) enter_tool "${1#*/}" ;;
  esac
  cd "$tree"
}

# enter_tool NAME: the same for a tool, and sets PACKAGE and VERB.
enter_tool() {
  local name=$1
  read -r module version <<<"$(tool_module "$name")"
  FLAGS=(-ldflags "-s -w") PACKAGE=. VERB=build
  case $name in
  runc | critest | local-path-provisioner | kwok | helm | krew | validate-krew-manifest | butane | ignition-validate)
    tree=$(module_dir "$module" "$version")
    # The archives of some modules have vendor/modules.txt, and not what it lists.
    export GOFLAGS="$GOFLAGS -mod=readonly"
    ;;
  *) tree=$BUILD/tools/$name ;;
  esac
  case $name in
  runc)
    TAGS=seccomp
    export CGO_ENABLED=1
    ;;
  critest) VERB="test" PACKAGE=./cmd/critest FLAGS=(-c) ;;
  kwok | helm | krew | validate-krew-manifest) PACKAGE=./cmd/$name ;;
  butane) PACKAGE=./internal ;;
  ignition-validate) PACKAGE=./validate ;;
  # Without snapshotters that need C libraries, and with its version, as upstream's Makefile has it.
  containerd* | ctr)
    TAGS="no_btrfs no_zfs no_devmapper" FLAGS=(-ldflags "-s -w -X $module/version.Version=$version")
    PACKAGE=$module/cmd/${name%-[0-9].[0-9]}
    main_module "$name" "$PACKAGE"
    ;;
  # With the plugins that kubeadm configures
  # (https://coredns.io/2017/07/25/compile-time-enabling-or-disabling-plugins/).
  coredns)
    parts "$name" 'coremain.Run()' coremain \
      plugin/{cache,errors,forward,health,kubernetes,loadbalance,loop,metrics,ready,reload}
    ;;
  registry)
    parts "$name" '_ = registry.RootCmd.Execute()' registry \
      registry/auth/{htpasswd,silly,token} registry/proxy registry/storage/driver/{filesystem,inmemory}
    ;;
  esac
}

# main_module NAME PACKAGE: makes a module that requires the tool's: such a main package cannot be built in place,
# because its go.mod has replace directives for its own repository.
main_module() {
  [ "$(cat "$tree/.version" 2>/dev/null)" != "$version" ] || return 0
  rm -rf "$tree"
  mkdir -p "$tree"
  (
    cd "$tree"
    go mod init "layerlocality.io/build/$1"
    go get "$module@$version"
    go get "$2@$version"
  ) >"$tree/get.log" 2>&1 || die "$1: cannot resolve $module@$version; see $tree/get.log"
  echo "$version" >"$tree/.version"
}

# parts NAME CALL PACKAGE...: makes a main package of servers that are made of parts: CALL, of the first
# package of the module, with the others. Upstream's own main packages have the parts for all clouds, too,
# whose libraries take minutes to compile.
parts() {
  local name=$1 call=$2 package blank=''
  shift 2
  mkdir -p "$tree"
  {
    printf 'package main\n\nimport (\n'
    for package in "$@"; do
      printf '\t%s"%s/%s"\n' "$blank" "$module" "$package"
      blank='_ '
    done
    printf ')\n\nfunc main() { %s }\n' "$call"
  } >"$tree/main.go.new"
  ! cmp -s "$tree/main.go.new" "$tree/main.go" || [ "$(cat "$tree/.version" 2>/dev/null)" != "$version" ] || return 0
  mv "$tree/main.go.new" "$tree/main.go"
  rm -f "$tree/go.mod" "$tree/go.sum"
  (cd "$tree" && go mod init "layerlocality.io/build/$name" && go get "$module@$version" && go mod tidy) >"$tree/get.log" 2>&1 ||
    die "$name: cannot resolve $module@$version; see $tree/get.log"
  echo "$version" >"$tree/.version"
}

# own_hash COMMAND: prints the hash of everything in this repository that a command of its
# module is made from.
own_hash() {
  local files='{{range .GoFiles}}{{$.Dir}}/{{.}} {{end}}'
  {
    cat "$ROOT/go.mod" "$ROOT/go.sum"
    (cd "$ROOT" && GOFLAGS=-buildvcs=false go list -deps -f "{{if .Module}}{{if .Module.Main}}$files{{end}}{{end}}" "./cmd/$1") |
      xargs cat
  } | sha256sum | cut -c1-16
}

# inputs FLAVOUR/NAME: prints everything that a binary is made from.
inputs() {
  local name=${1#*/} group
  group=$(group_of "$1")
  toolchain
  echo "$GOARCH $1 $OS"
  case $1 in
  tools/* | lab/runc) tool_module "$name" ;;
  lab/*) (cd "$ROOT" && { workspace_files | grep -v -e '_test\.go$' -e '\.md$' -e '/testdata/' | xargs -d '\n' cat && cat lab/go.mod; } | sha256sum) ;;
  patched/layer-resolver | patched/layer-agent | patched/layer-prefetcher) own_hash "$name" ;;
  esac
  case $1 in
  tools/etcd) echo "$KUBERNETES_VERSION" ;; # its libraries
  tools/crictl | lab/* | patched/kube*) tree_hash kubernetes ;;
  esac
  case $1 in
  patched/kube-scheduler | patched/layer-extender | patched/kubectl-layers) product_hash "$name" ;;
  patched/crio | patched/pinns) tree_hash cri-o ;;
  stock/crio | stock/pinns) pinned_version cri-o ;;
  stock/*) pinned_version kubernetes ;;
  esac
  case $group in
  cri-o | stock-cri-o)
    # What is linked in from outside.
    c_libraries
    echo "$CRIO_TAGS $CRIO_LDFLAGS"
    ;;
  workspace | stock-kubernetes | stock-tests) kubernetes_ldflags "$group" ;;
  own) kubernetes_version "$group" ;;
  esac
  # The recipe.
  declare -f enter enter_tool main_module parts compile compile_pinns package_of
}

# compile GROUP FOLDER PACKAGE...: compiles and links all of them side by side, into the folder.
compile() (
  VERB=build
  group=$1 folder=$2
  shift 2
  enter "$group"
  case $group in
  tools/*)
    folder=$folder/${group#*/}
    count "$PACKAGE" >"$(packages_file "$group")"
    ;;
  *) folder=$folder/ ;;
  esac
  go "$VERB" -v ${TAGS:+-tags "$TAGS"} "${FLAGS[@]}" -o "$folder" "${@:-$PACKAGE}"
)

# count PACKAGE...: prints how many packages of what these are made from are not compiled yet.
count() { go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' ${TAGS:+-tags "$TAGS"} "$@" | wc -l; }

# fetch GROUP PACKAGE...: fetches all modules that a group is compiled from, and counts.
fetch() (
  group=$1
  shift
  enter "$group"
  count "$@"
)

# packages_file GROUP: where fetch_all notes the number of packages of a group.
packages_file() { echo "$BUILD/log/packages-${1//\//-}"; }

minutes() { if [ "$1" -lt 90 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi; }

# left: how long what is not there yet will take on this machine, from what it has compiled so far, once that is a binary
# or 200 packages. To link a binary takes about as long as to compile 25 packages.
left() {
  local done_units=$((COMPILED + 25 * READY)) units=$((25 * WANTED)) group
  [ "$READY" -gt 0 ] || [ "$COMPILED" -ge 200 ] || return 0
  for group in "${GROUP_NAMES[@]}"; do
    [ -s "$(packages_file "$group")" ] || return 0
    units=$((units + $(cat "$(packages_file "$group")")))
  done
  units=$((units > done_units ? units - done_units : 0))
  echo ", about $(minutes $((units * ($(date +%s) - BEGAN) / done_units))) left"
}

# watch LOG FOLDER PID: shows how far a compilation is until it ends: on a terminal in one line, elsewhere in a line
# per binary.
watch() {
  local before=$COMPILED file seen=' ' first
  while kill -0 "$3" 2>/dev/null; do
    sleep 1
    COMPILED=$((before + $(grep -vc ' ' "$1" || true)))
    [ "$COMPILED" -gt 0 ] || BEGAN=$(date +%s)
    for file in "$2"/*; do
      if [ ! -f "$file" ] || [[ $seen == *" $file "* ]]; then continue; fi
      seen+="$file "
      READY=$((READY + 1))
      [ -t 2 ] || say "$READY of $WANTED: $(basename "${file/%\/server/\/etcd}"), after $(minutes $(($(date +%s) - STARTED)))$(left)"
    done
    if [ ! -t 2 ] && [ -z "$TOLD" ] && first=$(left) && [ -n "$first" ]; then
      say "after $(minutes $(($(date +%s) - STARTED)))$first"
      TOLD=1
    fi
    [ ! -t 2 ] || printf '\r==> %s\033[K' "$READY of $WANTED binaries, $COMPILED packages, $(minutes $(($(date +%s) - STARTED)))$(left)" >&2
  done
  [ ! -t 2 ] || printf '\r\033[K' >&2
}

# build_group GROUP FLAVOUR/NAME...: builds them, and moves them to where they are kept.
build_group() {
  local group=$1 item pid log folder file ready=$READY packages=()
  log=$BUILD/log/build-${group//\//-}.log
  folder=$CACHE/bin/.building-$$
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  for item in "$@"; do
    if [[ $item == */pinns ]]; then
      compile_pinns "$group" "$folder"
    elif [[ $group != tools/* ]]; then
      packages+=("$(package_of "$item")")
    fi
  done
  if [ ${#packages[@]} -gt 0 ] || [[ $group == tools/* ]]; then
    compile "$group" "$folder" "${packages[@]}" >"$log" 2>&1 &
    pid=$! JOBS+=("$!")
    watch "$log" "$folder" "$pid"
    wait "$pid" || {
      { grep -v '^[a-zA-Z0-9._/@-]*$' "$log" || true; } | tail -n 20 >&2
      die "$*: build failed; the whole log is $log"
    }
  fi
  for item in "$@"; do
    file=$folder/${item#*/}
    [ "$item" != tools/etcd ] || file=$folder/server # the last part of its path
    [ "$OS" != windows ] || file+=.exe
    mv "$file" "${CACHED[$item]}"
  done
  rmdir "$folder"
  READY=$((ready + $#))
}

compile_pinns() (
  mkdir -p "$BUILD/log"
  enter "$1"
  "${CC:-cc}" -std=c99 -Os -Wall -Wextra -static -o "$2/pinns" pinns/src/*.c >"$BUILD/log/build-pinns.log" 2>&1 ||
    die "pinns: build failed; see $BUILD/log/build-pinns.log"
)

# fetch_all: fetches what each group is compiled from, and notes its number of packages.
fetch_all() {
  local group item packages
  for group in "${GROUP_NAMES[@]}"; do
    packages=()
    # The module of a tool is made where it is compiled, and counted there.
    [[ $group != tools/* ]] || { echo 300 >"$(packages_file "$group")" && continue; }
    for item in ${ITEMS[$group]}; do
      [[ $item == */pinns ]] || packages+=("$(package_of "$item")")
    done
    fetch "$group" "${packages[@]}" >"$(packages_file "$group")" 2>"$BUILD/log/fetch.log" || return 0
  done
}

# build FLAVOUR/NAME...: builds what is missing, group by group.
build() {
  local item group hash bin missing=() fetcher
  for item in "$@"; do
    group=$(group_of "$item")
    if [ "$item" = lab/runc ] && runc features >/dev/null 2>&1; then # which is there from 1.1 on
      CACHED[$item]=$(command -v runc)
      continue
    fi
    inputs "$item" | sha256sum | cut -c1-16 >"$BUILD/.hash"
    hash=$(cat "$BUILD/.hash")
    CACHED[$item]=$CACHE/bin/${item#*/}-${item%%/*}-$hash
    [ -x "${CACHED[$item]}" ] || {
      [ -n "${ITEMS[$group]:-}" ] || GROUP_NAMES+=("$group")
      ITEMS[$group]+="$item "
      missing+=("$item")
    }
  done
  WANTED=${#missing[@]}
  if [ "$WANTED" -gt 0 ]; then
    mkdir -p "$CACHE/bin" "$BUILD/log"
    say "fetching modules, compiling $WANTED: ${missing[*]#*/}"
    # What is compiled later is fetched meanwhile.
    for group in "${GROUP_NAMES[@]}"; do : >"$(packages_file "$group")"; done
    fetch_all &
    fetcher=$! JOBS+=("$!")
    for group in "${GROUP_NAMES[@]}"; do
      # shellcheck disable=SC2086 # names
      build_group "$group" ${ITEMS[$group]}
    done
    wait "$fetcher" || true # who needs what could not be fetched has said so
    say "compiled $WANTED in $(minutes $(($(date +%s) - STARTED)))"
  fi
  for item in "$@"; do
    [[ ${CACHED[$item]} != "$CACHE"/* ]] || touch "${CACHED[$item]}"
    bin=$BUILD/bin/${item%%/*}${CROSS:+-$GOARCH}
    [ -z "$OS" ] || bin=$BUILD/bin/${item%%/*}-$OS-$GOARCH
    mkdir -p "$bin"
    ln -sfn "${CACHED[$item]}" "$bin/${item#*/}"
  done
  # Cached binaries that were not used for two weeks.
  find "$CACHE/bin" -type f -mtime +14 -delete
}

# By FLAVOUR/NAME, where it is kept; by group, which of them are missing. Groups in the order in which they are built.
declare -A CACHED=() ITEMS=()
GROUP_NAMES=()
# Binaries that are wanted and that are ready; packages that were compiled; when that began.
WANTED=0 READY=0 COMPILED=0
STARTED=$(date +%s)
BEGAN=$STARTED
TOLD=''

# defaults FLAVOUR: prints what is built if no name follows.
defaults() {
  case $1 in
  patched) echo crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler layer-extender layer-resolver layer-agent layer-prefetcher kubectl-layers ;;
  stock) echo crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler ;;
  tools) echo etcd registry runc crictl critest ;;
  lab) echo demo registry layer-resolver runc ;;
  esac
}
usage='usage: build.sh patched|stock|tools|lab [NAME...] [patched|stock|tools|lab [NAME...]]...'
wanted=()
[ $# -gt 0 ] || die "$usage"
while [ $# -gt 0 ]; do
  flavour=$1
  shift
  case $flavour in patched | stock | tools | lab) ;; *) die "$usage" ;; esac
  names=()
  while [ $# -gt 0 ]; do
    case $1 in patched | stock | tools | lab) break ;; esac
    names+=("$1")
    shift
  done
  # shellcheck disable=SC2207 # names
  [ ${#names[@]} -gt 0 ] || names=($(defaults "$flavour"))
  if [ "$flavour" = tools ] && [ "$LINE" != "$DEFAULT_LINE" ]; then
    LINE='' "$ROOT/scripts/build.sh" tools "${names[@]}"
    mkdir -p "$BUILD/bin"
    ln -sfn "../../bin/tools${CROSS:+-$GOARCH}" "$BUILD/bin/"
    continue
  fi
  wanted+=("${names[@]/#/$flavour/}")
done
[ ${#wanted[@]} -gt 0 ] || exit 0
# Jobs are process groups of their own, so that each can be ended with everything it started.
JOBS=()
clean_up() {
  for job in "${JOBS[@]}"; do kill -- "-$job" 2>/dev/null || true; done
  rm -rf "$CACHE/bin/.building-$$"
  restore_huge_pages
}
trap clean_up EXIT
set -m
use_huge_pages
with_lock build build "${wanted[@]}"
