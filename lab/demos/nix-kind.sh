#!/usr/bin/env bash
# From the source to what CRI-O reports, with Nix and kind: builds crio, copies it into a node that runs a stock CRI-O, has
# it list images with their layers, and puts the stock one back. Each command is printed before it runs.
#
#   nix-kind.sh NODE
#
# NODE is a container of kind whose CRI-O is stock and of the same minor version: of a cluster as in CRI-O's own tutorial
# (docs/install-kind.md). KIND_EXPERIMENTAL_PROVIDER=podman for podman.
. "$(dirname "$0")/../../scripts/lib.sh"
# shellcheck source=../../kind/lib.sh
. "$ROOT/kind/lib.sh"
# shellcheck source=steps.sh
. "$ROOT/lab/demos/steps.sh"
cd "$ROOT"

[ $# -eq 1 ] || die "usage: nix-kind.sh NODE"
use_engine
inside="$ENGINE exec $1"
crio=$($inside sh -c 'command -v crio') || die "node $1 has no crio: kind's own node images run containerd"

undo() {
  trap - EXIT
  step "$inside mv $crio.stock $crio"
  step "$inside systemctl restart crio"
  ready "$inside"
  images none "$inside"
  step "rm _out/crio"
}

mkdir -p _out
images none "$inside"
step "nix build .#crio --out-link _out/crio"
step "$inside cp -a $crio $crio.stock"
trap undo EXIT
step "$ENGINE cp _out/crio/bin/crio $1:$crio.new"
step "$inside mv $crio.new $crio"
step "$inside systemctl restart crio"
ready "$inside"
images layers "$inside"
undo
