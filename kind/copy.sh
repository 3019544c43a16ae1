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

in_node() { "$ENGINE" exec "$node" "$@"; }

# minor TEXT: the minor version in it, such as 1.36.
minor() { grep -oE '[0-9]+\.[0-9]+' <<<"$1" | sed -n 1p; }

# stage PROGRAM: copies it to the node, where it must run and be of the version that is
# there.
stage() {
  local now new output status=0 arguments=(--version)
  in_node sh -c "command -v $1" >/dev/null ||
    die "node $node has no $1: kind's own node images run containerd. 'make kind-up' makes nodes with CRI-O"
  "$ENGINE" cp "$(realpath "$folder/$1")" "$node:$STAGE/$1"
  # pinns has no version, and complains if it is told nothing.
  [ "$1" != pinns ] || arguments=()
  output=$(in_node "$STAGE/$1" "${arguments[@]}" 2>&1) || status=$?
  [ "$status" = 0 ] || [[ $1 = pinns && $output = *"[pinns:"* ]] ||
    die "node $node: $folder/$1 does not run there: ${output##*$'\n'}
It must be static, and for $(in_node uname -m)."
  [ "$1" != pinns ] || return 0
  now=$(minor "$(in_node "$1" --version)") new=$(minor "$output")
  [ "$new" = "$now" ] || die "node $node has $1 $now, $folder/$1 is ${new:-of no known version}: the minor version must be the same"
}

# swap PROGRAM: replaces the one in the node.
swap() { in_node sh -c "mv $STAGE/$1 \"\$(command -v $1)\""; }

alive() { in_node sh -c 'crictl info && curl -sf http://127.0.0.1:10248/healthz' >/dev/null 2>&1; }

clean_up() {
  for node in "${nodes[@]}"; do in_node rm -rf "$STAGE" 2>/dev/null || true; done
}

if [ $# -ne 1 ] || [[ $1 = -* ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$1 programs=()
for program in crio pinns kubelet; do
  [ ! -f "$folder/$program" ] || programs+=("$program")
done
[ ${#programs[@]} -gt 0 ] || die "$folder has no crio, pinns or kubelet: build them with 'make build' or 'nix build .#crio'"
STAGE=/kind/layer-locality.new # in the nodes, on the disk of /usr/bin
use_cluster
find_nodes
trap clean_up EXIT
for node in "${nodes[@]}"; do
  in_node mkdir -p "$STAGE" || die "node $node does not run"
  for program in "${programs[@]}"; do stage "$program"; done
done
for node in "${nodes[@]}"; do
  for program in "${programs[@]}"; do swap "$program"; done
  # Pods keep running.
  in_node systemctl restart crio kubelet || true
  within 60 alive || die "node $node: crio and kubelet are not healthy after 60 s: $ENGINE exec $node journalctl -u crio -u kubelet"
  say "$node: ${programs[*]}"
  check_layers "$node"
done
