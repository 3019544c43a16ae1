#!/usr/bin/env bash
# Prints the software bill of materials (CycloneDX JSON) of a binary that build.sh made,
# _build/bin/patched[-<os>][-<arch>]/NAME, or one of the demo's, and copies the license texts of everything in it to
# FOLDER/<module>@<version>.
#
#   sbom.sh BINARY FOLDER
. "$(dirname "$0")/lib.sh"

[ $# = 2 ] || die "usage: sbom.sh BINARY FOLDER"
[ -x "$1" ] || die "$1 is missing: scripts/build.sh makes it"
name=$(basename "$1")
arch=$(basename "$(dirname "$1")")
# The system that it is for, if that is not Linux: it may have other packages in it.
case $arch in
patched-darwin-*) system=darwin ;;
patched-windows-*) system=windows ;;
*) system='' ;;
esac
mkdir -p "$2"
arguments=(--name "$name" --licenses "$2")
case $name in
crio)
  source=$("$ROOT/scripts/tree.sh" patched cri-o)
  arguments+=(--version "$(our_version cri-o)" --upstream "$(upstream_module cri-o)@$CRIO_VERSION")
  use_arch "$(case $arch in patched-*) echo "${arch#patched-}" ;; esac)"
  libraries=$(c_libraries)
  while read -r library version _; do
    case $library in
    glibc) license=LGPL-2.1-or-later ;;
    libseccomp) license=LGPL-2.1-only ;;
    esac
    arguments+=(--c-library "$library=$version=$license")
  done <<<"$libraries"
  c_licenses "$2"
  ;;
kube* | layer-extender | demo | registry | etcd | crictl)
  case $name in
  kube-scheduler | kubectl-layers | layer-extender | demo | registry | etcd | crictl) part=(workspace) ;;
  *) part=(patched kubernetes) ;;
  esac
  source=$("$ROOT/scripts/tree.sh" "${part[@]}")
  arguments+=(--version "$(our_version kubernetes)" --workspace "$(our_version kubernetes)"
  --upstream "$(upstream_module kubernetes)@$KUBERNETES_VERSION")
  ;;
layer-resolver | layer-agent | layer-prefetcher)
  source=$ROOT
  arguments+=(--version "$(our_version kubernetes)")
  ;;
*) die "no bill of materials for $name: it is not written in Go" ;;
esac
unset GOARCH
(cd "$source" && go_license "$2")
mkdir -p "$BUILD/bin"
CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" go -C "$ROOT/lab" build -o "$BUILD/bin/sbom" ./cmd/sbom >&2
GOFLAGS=-buildvcs=false ${system:+env GOOS="$system"} "$BUILD/bin/sbom" "${arguments[@]}" --source "$source" "$1"
