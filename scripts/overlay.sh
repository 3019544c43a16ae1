#!/usr/bin/env bash
# Copies what is developed in this repository into a tree of upstream source,
# before the patches. Packages (nix/, rpm/) call it; tree.sh does the same in its
# own trees. Needs nothing but a shell and coreutils.
#
#   overlay.sh cri-o|kubernetes TREE   the component's overlay package
#   overlay.sh scheduler TREE          into a Kubernetes tree: layer-locality/, a module without
#                                      requirements that the tree's go.work names, for
#                                      go -C layer-locality build -tags "$SCHEDULER_TAGS" ./cmd/kube-scheduler
. "$(dirname "$0")/lib.sh"

[ $# = 2 ] || die "usage: overlay.sh cri-o|kubernetes|scheduler TREE"
[ -f "$2/go.mod" ] || die "$2 holds no go.mod: not a source tree"

case $1 in
cri-o | kubernetes) copy_overlay "$1" "$2" ;;
scheduler)
  [ -f "$2/go.work" ] || die "$2 holds no go.work: not a Kubernetes tree"
  product_files kube-scheduler | while read -r file; do
    install -D -m 0644 "$ROOT/$file" "$2/layer-locality/$file"
  done
  scheduler_module >"$2/layer-locality/go.mod"
  grep -q '\./layer-locality$' "$2/go.work" ||
    sed -i "s/^go .*/go $(go_of "$2/go.work")/; "'s,^\t\.$,\t.\n\t./layer-locality,' "$2/go.work"
  ;;
*) die "unknown overlay '$1': cri-o, kubernetes or scheduler" ;;
esac
