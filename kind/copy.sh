#!/usr/bin/env bash
# Puts programs of yours into the running nodes of a kind cluster: crio, pinns and kubelet,
# those of them that the folder has. Then it checks that CRI-O lists layers. To undo it,
# delete the cluster.
#
#   kind/copy.sh FOLDER   such as result/bin ('nix build .#crio') or _build/bin/patched ('make build')
#
# The nodes must run CRI-O: ours ('make kind-up'), or yours, with the same minor versions.
# kind's variables: KIND_CLUSTER_NAME (default layer-locality), KIND_EXPERIMENTAL_PROVIDER
# (docker or podman).
. "$(dirname "$0")/../scripts/lib.sh"
# shellcheck source=lib.sh
. "$ROOT/kind/lib.sh"

# in_node COMMAND...
in_node() { "$ENGINE" exec "$node" "$@"; }

# minor PROGRAM: the minor version, such as 1.36, of a program in the node.
minor() { in_node "$1" --version 2>&1 | grep -m1 -oE '[0-9]+\.[0-9]+' | sed -n 1p; }

# copy PROGRAM: copies it beside the one in the node, where it must run, then replaces that.
copy() {
  local file new now output
  file=$(in_node sh -c "command -v $1") ||
    die "node $node has no $1: kind's own node images run containerd. 'make kind-up' makes nodes with CRI-O"
  "$ENGINE" cp "$(realpath "$folder/$1")" "$node:$file.new"
  if [ "$1" != pinns ]; then # has no --version
    output=$(in_node "$file.new" --version 2>&1) || {
      in_node rm "$file.new"
      die "node $node: $folder/$1 does not run there: ${output##*$'\n'}
It must be static, and for $(in_node uname -m)."
    }
    new=$(minor "$file.new") now=$(minor "$file")
    [ "$new" = "$now" ] || {
      in_node rm "$file.new"
      die "node $node has $1 $now, $folder/$1 is $new: the minor version must be the same"
    }
  fi
  in_node mv "$file.new" "$file"
}

alive() { in_node sh -c 'crictl info && curl -sf http://127.0.0.1:10248/healthz' >/dev/null 2>&1; }

if [ $# -ne 1 ] || [[ $1 = -* ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$1 programs=()
for program in crio pinns kubelet; do
  [ ! -f "$folder/$program" ] || programs+=("$program")
done
[ ${#programs[@]} -gt 0 ] || die "$folder has no crio, pinns or kubelet: build them with 'make build' or 'nix build .#crio'"
command -v jq >/dev/null || die "jq is missing: install it"
use_cluster
find_nodes
for node in "${nodes[@]}"; do
  for program in "${programs[@]}"; do copy "$program"; done
  # Pods keep running.
  in_node systemctl restart crio kubelet
  within 60 alive || die "node $node: crio and kubelet are not healthy after 60 s: $ENGINE exec $node journalctl -u crio -u kubelet"
  say "$node: ${programs[*]}"
  check_layers "$node"
done
