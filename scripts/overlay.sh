#!/usr/bin/env bash
# Copies what is developed in this repository into a tree of upstream source,
# before the patches. Packages (nix/, rpm/) call it; tree.sh does the same in its
# own trees. Needs nothing but a shell and coreutils.
#
#   overlay.sh cri-o|kubernetes TREE   the component's overlay package
#   overlay.sh PROGRAM TREE            kube-scheduler, layer-extender or kubectl-layers, into a Kubernetes tree:
#                                      layer-locality/, a module without requirements that the tree's go.work
#                                      names, for go -C layer-locality build -tags "$SCHEDULER_TAGS" ./cmd/PROGRAM
. "$(dirname "$0")/lib.sh"

usage="usage: overlay.sh cri-o|kubernetes|kube-scheduler|layer-extender|kubectl-layers TREE"
[ $# = 2 ] || die "$usage"
[ -f "$2/go.mod" ] || die "$2 holds no go.mod: not a source tree"

case $1 in
cri-o | kubernetes) copy_overlay "$1" "$2" ;;
kube-scheduler | layer-extender | kubectl-layers)
  [ -f "$2/go.work" ] || die "$2 holds no go.work: not a Kubernetes tree"
  product_files "$1" | while read -r file; do
    install -D -m 0644 "$ROOT/$file" "$2/layer-locality/$file"
  done
  scheduler_module >"$2/layer-locality/go.mod"
  grep -q '\./layer-locality$' "$2/go.work" ||
    sed -i "s/^go .*/go $(go_of "$2/go.work")/; "'s,^\t\.$,\t.\n\t./layer-locality,' "$2/go.work"
  ;;
*) die "unknown overlay '$1'; $usage" ;;
esac
