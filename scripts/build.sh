#!/usr/bin/env bash
# Builds binaries into _build/bin/<flavour>/, each only if its inputs changed.
#
#   build.sh patched [NAME...]   crio pinns kubelet kube-apiserver kube-controller-manager,
#                                kube-scheduler with the plugin LayerLocality, layer-extender,
#                                layer-resolver, layer-agent and kubectl-layers
#   build.sh stock   [NAME...]   the same from unmodified upstream source, but for the last four;
#                                kubeadm, kubectl and kube-proxy when named
#   build.sh tools   [NAME...]   etcd registry runc crictl critest; coredns,
#                                local-path-provisioner, containerd and containerd-shim-runc-v2
#                                (with -1.7 or -2.4: of that version), containerd's ctr, kwok and
#                                helm when named
#
# Without a NAME: all of the flavour. ARCH=amd64|arm64 in the environment builds
# for that architecture, into _build/bin/<flavour>-<arch> if it is not the
# machine's own. OS=darwin|windows builds kubectl-layers for that system, into
# _build/bin/patched-<os>-<arch>. Results are kept in $LAYERLOCALITY_CACHE (default
# ~/.cache/layer-locality) by the hash of source, recipe and Go version, so a
# second clone or a CI run finds them there.
. "$(dirname "$0")/lib.sh"

export GOFLAGS="-trimpath -buildvcs=false -mod=mod"
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

# progress LABEL LOG TOTAL PID: says how far a compilation is until it ends: on a
# terminal in one line, elsewhere once a minute.
progress() {
  local n=0 line
  while kill -0 "$4" 2>/dev/null; do
    sleep 1
    n=$((n + 1))
    line="$1: $(wc -l <"$2")${3:+ of at most $3} packages, $n s"
    if [ -t 2 ]; then
      printf '\r==> %s\033[K' "$line" >&2
    elif [ $((n % 60)) -eq 0 ]; then
      say "$line"
    fi
  done
  [ ! -t 2 ] || printf '\r\033[K' >&2
}

# go_build LABEL OUTPUT ARGS...: runs go build or go test -c and prints its
# progress.
go_build() {
  local label=$1 output=$2 log started pid total=''
  shift 2
  log=$BUILD/log/build-$(basename "$output").log
  mkdir -p "$BUILD/log"
  started=$(date +%s)
  if [ -t 2 ]; then # nobody else waits for it, and it takes seconds
    total=$(go list -deps ${TAGS:+-tags "$TAGS"} "${@: -1}" 2>"$log" | wc -l) || die "$label: see $log"
  fi
  go "$VERB" -v ${TAGS:+-tags "$TAGS"} -o "$output" "$@" >"$log" 2>&1 &
  pid=$!
  progress "$label" "$log" "$total" "$pid"
  wait "$pid" || {
    tail -n 20 "$log" >&2
    die "$label: build failed; the whole log is $log"
  }
  say "$label: built in $(($(date +%s) - started)) s"
}

# source_tree ORIGIN: prints the tree to build from, which is made only if a
# build needs it.
source_tree() {
  case $FLAVOUR-$1 in
  *-scheduler | *-extender | *-kubectl) "$ROOT/scripts/tree.sh" scheduler ;;
  patched-*) "$ROOT/scripts/tree.sh" patched "$1" ;;
  *) "$ROOT/scripts/tree.sh" upstream "$1" ;;
  esac
}

kubernetes_version() { if [ "$FLAVOUR" = patched ]; then our_version kubernetes; else echo "$KUBERNETES_VERSION"; fi; }

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

# The recipe of layer-resolver and layer-agent. It and the next two are not in the hash of the
# other binaries.
compile_own() {
  local VERB=build TAGS=""
  (cd "$ROOT" && GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 \
    go_build "$1" "$2" -ldflags "-s -w -X main.version=$(kubernetes_version)" "./cmd/$1")
}

# The recipe of layer-extender, which is compiled as kube-scheduler is.
compile_extender() {
  local VERB=build TAGS=$SCHEDULER_TAGS tree version=k8s.io/component-base/version
  tree=$(source_tree extender)
  (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 \
    go_build layer-extender "$1" -ldflags "-s -w -X $version.gitVersion=$(kubernetes_version) -X $version.gitTreeState=clean" ./cmd/layer-extender)
}

# The recipe of kubectl-layers, a client that is compiled there too, because the stock types have
# no layers. It runs on machines of users: GOOS says on which.
compile_kubectl() {
  local VERB=build TAGS=$SCHEDULER_TAGS tree
  tree=$(source_tree kubectl)
  (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 \
    go_build kubectl-layers "$1" -ldflags "-s -w -X main.version=$(kubernetes_version)" ./cmd/kubectl-layers)
}

# The recipe of the tools that only a kind node or a benchmark has: a main package of a
# module, by default that in its root.
compile_module() {
  local VERB=build TAGS="" tree module version
  read -r module version <<<"$(origin "$1")"
  tree=$(module_dir "$module" "$version")
  (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false -mod=readonly" CGO_ENABLED=0 \
    go_build "$1 $version" "$2" -ldflags "-s -w" "${3:-.}")
}

# The recipe of containerd, which layer-agent is tested with, and of the shim between it and
# runc: without snapshotters that need C libraries, and with its version, as upstream's Makefile has it.
compile_containerd() {
  local VERB=build TAGS="no_btrfs no_zfs no_devmapper" module version
  read -r module version <<<"$(origin "$1")"
  local GOFLAGS="$GOFLAGS '-ldflags=-s -w -X $module/version.Version=$version'"
  CGO_ENABLED=0 go_module_build "$1" "$module/cmd/${1%-[0-9].[0-9]}" "$2"
}

# compile_parts NAME OUTPUT CALL PACKAGE...: the recipe of servers that are made of parts: CALL, of the first
# package of the module, with the others. Upstream's own main packages have the parts for all clouds, too,
# whose libraries take minutes to compile.
compile_parts() {
  local VERB=build TAGS="" name=$1 output=$2 call=$3 dir=$BUILD/tools/$1 module version package blank=''
  read -r module version <<<"$(origin "$name")"
  shift 3
  rm -rf "$dir"
  mkdir -p "$dir"
  {
    printf 'package main\n\nimport (\n'
    for package in "$@"; do
      printf '\t%s"%s/%s"\n' "$blank" "$module" "$package"
      blank='_ '
    done
    printf ')\n\nfunc main() { %s }\n' "$call"
  } >"$dir/main.go"
  (cd "$dir" && go mod init "layerlocality.io/build/$name" && go get "$module@$version" && go mod tidy) >"$dir/get.log" 2>&1 ||
    die "$name: cannot resolve $module@$version; see $dir/get.log"
  (cd "$dir" && CGO_ENABLED=0 go_build "$name $version" "$output" -ldflags "-s -w" .)
}
# With the plugins that kubeadm configures
# (https://coredns.io/2017/07/25/compile-time-enabling-or-disabling-plugins/).
compile_coredns() {
  compile_parts coredns "$1" 'coremain.Run()' coremain \
    plugin/{cache,errors,forward,health,kubernetes,loadbalance,loop,metrics,ready,reload}
}
compile_registry() {
  compile_parts registry "$1" '_ = registry.RootCmd.Execute()' registry \
    registry/auth/{htpasswd,silly,token} registry/proxy registry/storage/driver/{filesystem,inmemory}
}

# Where a binary comes from: "cri-o", "kubernetes", "scheduler", "extender" and "kubectl" (this
# repository in a workspace with the patched Kubernetes), "own" (this repository), or
# the pin of a tool.
origin() {
  case $1 in
  layer-resolver | layer-agent) if [ "$FLAVOUR" = patched ]; then echo own; else die "there is no $FLAVOUR $1"; fi ;;
  layer-extender) if [ "$FLAVOUR" = patched ]; then echo extender; else die "there is no $FLAVOUR layer-extender"; fi ;;
  kubectl-layers) if [ "$FLAVOUR" = patched ]; then echo kubectl; else die "there is no $FLAVOUR kubectl-layers"; fi ;;
  crio | pinns) echo cri-o ;;
  kube-scheduler) if [ "$FLAVOUR" = patched ]; then echo scheduler; else echo kubernetes; fi ;;
  kubelet | kube-apiserver | kube-controller-manager | kube-proxy | kubeadm | kubectl) echo kubernetes ;;
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
  *) die "unknown binary '$1'" ;;
  esac
}

# go_module_build NAME PACKAGE: builds a main package of a module that cannot be
# built in place because its go.mod has replace directives for its own
# repository.
go_module_build() {
  local dir=$BUILD/tools/$1 module version
  read -r module version <<<"$(origin "$1")"
  rm -rf "$dir"
  mkdir -p "$dir"
  (
    cd "$dir"
    go mod init "layerlocality.io/build/$1"
    go get "$module@$version"
    go get "$2@$version"
  ) >"$dir/get.log" 2>&1 || die "$1: cannot resolve $module@$version; see $dir/get.log"
  (cd "$dir" && go_build "$1 $version" "$3" "$2")
}

compile() {
  local name=$1 output=$2 from tree module version
  local VERB=build TAGS="" v
  case $name in
  crio)
    tree=$(source_tree cri-o)
    TAGS=$CRIO_TAGS
    use_c
    (cd "$tree" && CGO_ENABLED=1 go_build "crio ($FLAVOUR)" "$output" -ldflags "$CRIO_LDFLAGS" ./cmd/crio)
    ;;
  pinns)
    tree=$(source_tree cri-o)
    mkdir -p "$BUILD/log"
    use_c
    "${CC:-cc}" -std=c99 -Os -Wall -Wextra -static -o "$output" "$tree"/pinns/src/*.c >"$BUILD/log/build-pinns.log" 2>&1 ||
      die "pinns: build failed; see $BUILD/log/build-pinns.log"
    ;;
  kubelet | kube-* | kubeadm | kubectl)
    from=$(origin "$name")
    tree=$(source_tree "$from")
    [ "$from" != scheduler ] || TAGS=$SCHEDULER_TAGS
    v=$(kubernetes_version)
    for module in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      set -- "$@" -X "$module.gitVersion=$v" -X "$module.gitMajor=1" \
        -X "$module.gitMinor=$(echo "$v" | cut -d. -f2)" -X "$module.gitTreeState=clean"
    done
    shift 2
    # A go.work joins the staging modules: -mod=readonly there.
    (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 \
      go_build "$name ($FLAVOUR)" "$output" -ldflags "-s -w $*" "./cmd/$name")
    ;;
  etcd) CGO_ENABLED=0 go_module_build etcd go.etcd.io/etcd/server/v3 "$output" ;;
  runc | crictl | critest)
    read -r module version <<<"$(origin "$name")"
    tree=$(module_dir "$module" "$version")
    case $name in
    runc)
      TAGS=seccomp
      (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false -mod=readonly" CGO_ENABLED=1 \
        go_build "runc $version" "$output" -ldflags "-s -w" .)
      ;;
    crictl)
      (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false -mod=readonly" CGO_ENABLED=0 \
        go_build "crictl $version" "$output" -ldflags "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=$version" ./cmd/crictl)
      ;;
    critest)
      VERB="test"
      (cd "$tree" && GOFLAGS="-trimpath -buildvcs=false -mod=readonly" CGO_ENABLED=0 \
        go_build "critest $version" "$output" -c ./cmd/critest)
      ;;
    esac
    ;;
  esac
}

build_one() {
  local name=$1 from hash cached bin=$BUILD/bin/$FLAVOUR${CROSS:+-$GOARCH}
  [ -z "$OS" ] || bin=$BUILD/bin/$FLAVOUR-$OS-$GOARCH
  from=$(origin "$name")
  {
    toolchain
    echo "$GOARCH $name $FLAVOUR $from${OS:+ $OS}"
    # What is linked in from outside.
    case $name in crio | pinns) c_libraries ;; esac
    case $FLAVOUR-$from in
    *-scheduler) scheduler_hash ;;
    *-extender) extender_hash ;;
    *-kubectl) kubectl_hash ;;
    *-own) own_hash "$name" ;;
    patched-*) tree_hash "$from" ;;
    stock-*) pinned_version "$from" ;;
    esac
    case $from in
    kubernetes | scheduler) kubernetes_version ;;
    own) declare -f compile_own ;;
    extender)
      kubernetes_version
      declare -f compile_extender
      ;;
    kubectl)
      kubernetes_version
      declare -f compile_kubectl
      ;;
    esac
    case $name in
    coredns | registry) declare -f compile_parts "compile_$name" ;;
    local-path-provisioner | kwok | helm) declare -f compile_module ;;
    containerd* | ctr) declare -f compile_containerd ;;
    esac
    echo "$CRIO_TAGS $CRIO_LDFLAGS"
    declare -f go_build go_module_build compile # the recipe
  } | sha256sum | cut -c1-16 >"$BUILD/.hash-$name"
  hash=$(cat "$BUILD/.hash-$name")
  cached=$CACHE/bin/$name-$FLAVOUR-$hash
  if [ ! -x "$cached" ]; then
    mkdir -p "$CACHE/bin"
    say "$name ($FLAVOUR): fetching modules, compiling"
    case $name in
    layer-extender) compile_extender "$cached.tmp.$$" ;;
    kubectl-layers) compile_kubectl "$cached.tmp.$$" ;;
    layer-resolver | layer-agent) compile_own "$name" "$cached.tmp.$$" ;;
    coredns | registry) "compile_$name" "$cached.tmp.$$" ;;
    local-path-provisioner) compile_module "$name" "$cached.tmp.$$" ;;
    kwok | helm) compile_module "$name" "$cached.tmp.$$" "./cmd/$name" ;;
    containerd* | ctr) compile_containerd "$name" "$cached.tmp.$$" ;;
    *) compile "$name" "$cached.tmp.$$" ;;
    esac
    mv "$cached.tmp.$$" "$cached"
  fi
  touch "$cached"
  mkdir -p "$bin"
  ln -sfn "$cached" "$bin/$name"
}

# Removes cached binaries that were not used for two weeks.
prune() { find "$CACHE/bin" -type f -mtime +14 -delete; }

build_all() {
  local name
  for name in "$@"; do build_one "$name"; done
  prune
}

FLAVOUR=${1:-}
[ $# -gt 0 ] && shift
case $FLAVOUR in
patched | stock)
  if [ $# -eq 0 ]; then
    set -- crio pinns kubelet kube-apiserver kube-controller-manager kube-scheduler
    [ "$FLAVOUR" = stock ] || set -- "$@" layer-extender layer-resolver layer-agent kubectl-layers
  fi
  ;;
tools) [ $# -gt 0 ] || set -- etcd registry runc crictl critest ;;
*) die "usage: build.sh patched|stock|tools [NAME...]" ;;
esac
with_lock build build_all "$@"
