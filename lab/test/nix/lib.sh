# Nix without nixpkgs, for tests: lab/test/nix/shim replaces it. Sourced after
# lab/test/checks.sh. The store is $LAYERLOCALITY_CACHE/nix/<hash of compilers and shim>:
# unchanged inputs are not built again. There is no daemon and no /nix.
# shellcheck shell=bash

# vendored COMPONENT: has its tree in the store's folder, which lasts longer than a clone.
vendored() {
  local tree copy
  tree=$("$ROOT/scripts/tree.sh" vendored "$1")
  copy=$STORE/vendored/${tree##*/}
  [ ! -d "$copy" ] || return 0
  mkdir -p "$STORE/vendored"
  rm -rf "$copy.tmp"
  cp -r --reflink=auto "$tree" "$copy.tmp"
  mv "$copy.tmp" "$copy"
}

# prepare: sets STORE and makes it; installs Nix if it is missing.
prepare() {
  local goroot
  [ -n "$(type -P nix)" ] || scripts/install-deps.sh nix
  goroot=$(cd "$("$ROOT/scripts/tree.sh" vendored cri-o)" && go env GOROOT)
  STORE=$CACHE/nix/$({
    "$goroot/bin/go" version
    cc --version
    pkg-config --modversion libseccomp
    cat lab/test/nix/shim/*
  } | sha256sum | cut -c1-16)
  mkdir -p "$STORE/home" "$STORE/roots"
  touch "$STORE"
  with_lock nix-vendored vendored cri-o
  with_lock nix-vendored vendored kubernetes
  find "$CACHE/nix" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} +
  # Read by the shim's builder; Nix does not hash it.
  cat >"$STORE/host.sh.$$" <<EOF
export PATH=$goroot/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export GOCACHE=$(go env GOCACHE) GOMODCACHE=$(go env GOMODCACHE) GONOSUMDB=$(go env GONOSUMDB)
PROXY=$(go env GOPROXY)
SUMDB=$(go env GOSUMDB)
VENDORED=$STORE/vendored
EOF
  mv "$STORE/host.sh.$$" "$STORE/host.sh"
}

# in_store COMMAND...: runs a command of Nix with a separate store.
in_store() {
  env TMPDIR="$WORK" HOME="$STORE/home" XDG_CACHE_HOME="$STORE/home/cache" NIX_STORE_DIR="$STORE/store" \
    NIX_STATE_DIR="$STORE/var" NIX_LOCALSTATE_DIR="$STORE/var" NIX_LOG_DIR="$STORE/log" NIX_CONF_DIR="$STORE/etc" \
    NIX_CONFIG="experimental-features = nix-command flakes
sandbox = false
build-users-group =
substituters =
flake-registry =" \
    "$@"
}
nix() { in_store nix "$@"; }

# flake COMMAND TREE[#ATTRIBUTE] ARGS...: runs it with the shim as nixpkgs.
flake() {
  local command=$1 tree=$2
  shift 2
  # shellcheck disable=SC2086 # "flake show" are two words
  nix $command --override-input nixpkgs "path:$ROOT/lab/test/nix/shim" --no-write-lock-file "path:$tree" "$@"
}

# clone: makes TREE, this repository as git would clone it, with uncommitted edits.
clone() {
  TREE=$WORK/tree
  mkdir "$TREE"
  git ls-files -co --exclude-standard | while read -r path; do
    [ ! -f "$path" ] || echo "$path"
  done | xargs -d '\n' cp --parents -t "$TREE"
}

# build NAME ATTRIBUTE: builds it and keeps the result as a root of the store.
build() { flake build "$TREE#$2" --print-build-logs --out-link "$STORE/roots/$1"; }
