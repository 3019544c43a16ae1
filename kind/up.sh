#!/usr/bin/env bash
# Creates a kind cluster of our node image, which has the patched CRI-O and Kubernetes and
# the scheduler, and checks that nodes and API show layers.
#
#   kind/up.sh [OPTIONS]   options of 'kind create cluster', such as --config (default
#                          kind/cluster.yaml), --image, --kubeconfig
#   kind/up.sh --delete    removes the cluster; options of 'kind delete cluster'
#
# kind's variables: KIND_CLUSTER_NAME (default layer-locality), KIND_EXPERIMENTAL_PROVIDER
# (docker or podman).
. "$(dirname "$0")/../scripts/lib.sh"
# shellcheck source=lib.sh
. "$ROOT/kind/lib.sh"

kubectl() { "$ENGINE" exec "$control" kubectl --kubeconfig /etc/kubernetes/admin.conf "$@"; }

# states_layers NODE: whether its Node object has layers.
states_layers() { kubectl get node "$1" -o json | jq -e 'any(.status.images[]?; has("layers"))' >/dev/null; }

case ${1:-} in
-h | --help)
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
[[ " $* " != *" --name"* ]] || die "--name: set KIND_CLUSTER_NAME instead"
use_cluster
if [ "${1:-}" = --delete ]; then exec "$KIND" delete cluster "${@:2}"; fi
if "$KIND" get clusters 2>/dev/null | grep -xF -e "$KIND_CLUSTER_NAME" >/dev/null; then
  die "the kind cluster '$KIND_CLUSTER_NAME' exists: remove it with '$0 --delete', or set KIND_CLUSTER_NAME to another name"
fi
if [[ " $* " != *" --image"* ]]; then
  image=$("$ROOT/kind/build-node-image.sh")
  set -- --image "$image" "$@"
fi
"$KIND" create cluster --config "$ROOT/kind/cluster.yaml" "$@" ||
  die "kind could not create the cluster. With '--retain --verbosity 3' it keeps the nodes, and says more"
find_nodes
control=$(printf '%s\n' "${nodes[@]}" | grep -m1 control-plane)
kubectl wait --for=condition=Ready node --all --timeout=5m >/dev/null ||
  die "not all nodes are ready: $ENGINE exec $control kubectl --kubeconfig /etc/kubernetes/admin.conf describe nodes"
for node in "${nodes[@]}"; do
  check_layers "$node"
  # The kubelet lists images every 30 s.
  within 180 states_layers "$node" ||
    die "the Node object of $node states no layers: is the feature gate on, as in kind/cluster.yaml?"
  echo "ok: $node: its Node object states layers"
done
