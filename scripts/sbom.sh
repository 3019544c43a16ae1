#!/usr/bin/env bash
# Prints the software bill of materials (CycloneDX JSON) of a binary that build.sh made,
# _build/bin/patched[-<arch>]/NAME.
#
#   sbom.sh BINARY
. "$(dirname "$0")/lib.sh"

[ $# = 1 ] || die "usage: sbom.sh BINARY"
[ -x "$1" ] || die "$1 is missing: scripts/build.sh makes it"
name=$(basename "$1")
arch=$(basename "$(dirname "$1")")
arguments=(--name "$name")
case $name in
crio)
  arguments+=(--version "$(our_version cri-o)" --upstream "$(upstream_module cri-o)@$CRIO_VERSION")
  use_arch "$(case $arch in patched-*) echo "${arch#patched-}" ;; esac)"
  libraries=$(c_libraries)
  while read -r library version _; do
    arguments+=(--c-library "$library=$version")
  done <<<"$libraries"
  ;;
kube*) arguments+=(--version "$(our_version kubernetes)" --workspace "$(our_version kubernetes)"
--upstream "$(upstream_module kubernetes)@$KUBERNETES_VERSION") ;;
layer-resolver) arguments+=(--version "$(our_version kubernetes)") ;;
*) die "no bill of materials for $name: it is not written in Go" ;;
esac
unset GOARCH
mkdir -p "$BUILD/bin"
(cd "$ROOT" && GOFLAGS=-buildvcs=false go build -o "$BUILD/bin/sbom" ./cmd/sbom) >&2
"$BUILD/bin/sbom" "${arguments[@]}" "$1"
