#!/usr/bin/env bash
# Creates a kind cluster whose nodes run stock CRI-O, for kind/install.sh.
#
#   kind/up.sh [OPTIONS]
#   kind/up.sh [OPTIONS] --delete   removes it again: --name, --engine, --kubeconfig
#
#   --name CLUSTER    default layer-locality
#   --engine ENGINE   docker or podman; default: KIND_EXPERIMENTAL_PROVIDER, or the one that answers
#   --image IMAGE     a node image with CRI-O; default: ours, built by kind/build-node-image.sh
#   --config FILE     kind's configuration; default kind/cluster.yaml: three nodes
#   --offline         pull nothing: no kindnet, kube-proxy and CoreDNS; pods get a network of
#                     bridges and routes, Services do not work. Default for FILE then:
#                     kind/cluster-offline.yaml
#   --kubeconfig FILE where to write the credentials; default: as kind does
. "$(dirname "$0")/../scripts/lib.sh"
# shellcheck source=lib.sh
. "$ROOT/kind/lib.sh"

usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

# bridges: makes a bridge for the pods of each node, and routes between them: all
# nodes of a kind cluster are on one network. Only for IPv4.
bridges() {
  local node other address cidr
  declare -A cidrs addresses
  # The controller manager assigns them.
  kubectl wait --for=jsonpath='{.spec.podCIDR}' node --all --timeout=2m >/dev/null || die "not all nodes have a pod network"
  for node in "${nodes[@]}"; do
    read -r "cidrs[$node]" "addresses[$node]" < <(kubectl get node "$node" \
      -o 'jsonpath={.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}')
    [[ ${cidrs[$node]:-} == *.*/* && ${addresses[$node]:-} == *.* ]] || die "node $node has no IPv4 pod network"
  done
  for node in "${nodes[@]}"; do
    cidr=${cidrs[$node]}
    jq -n --arg subnet "$cidr" '{cniVersion: "1.0.0", name: "pods", plugins: [{
      type: "bridge", bridge: "cni0", isGateway: true, ipMasq: false, hairpinMode: true,
      ipam: {type: "host-local", ranges: [[{subnet: $subnet}]], routes: [{dst: "0.0.0.0/0"}]}}]}' |
      "$ENGINE" exec -i "$node" sh -c 'mkdir -p /etc/cni/net.d && cat >/etc/cni/net.d/10-bridge.conflist'
    for other in "${nodes[@]}"; do
      address=${addresses[$other]}
      [ "$other" = "$node" ] || "$ENGINE" exec "$node" ip route replace "${cidrs[$other]}" via "$address"
    done
  done
}

kubectl() { "$ENGINE" exec "${nodes[0]}" kubectl --kubeconfig /etc/kubernetes/admin.conf "$@"; }

name=layer-locality engine='' image='' config='' offline='' kubeconfig='' delete=''
while [ $# -gt 0 ]; do
  case $1 in
  --name | --engine | --image | --config | --kubeconfig)
    [ $# -gt 1 ] || usage
    declare "${1#--}=$2"
    shift
    ;;
  --offline) offline=-offline ;;
  --delete) delete=1 ;;
  *) usage ;;
  esac
  shift
done
config=${config:-$ROOT/kind/cluster$offline.yaml}
[ -f "$config" ] || die "no file $config"
use_engine "$engine"
kind=$(go_tool sigs.k8s.io/kind "$KIND_VERSION")
known=$(kind_clusters)
if [ -n "$delete" ]; then
  grep -qxF -e "$name" <<<"$known" || die "$ENGINE has no kind cluster '$name'${known:+; it has: $(paste -sd' ' <<<"$known")}"
  "$kind" delete cluster --name "$name" ${kubeconfig:+--kubeconfig "$kubeconfig"}
  exit
fi
! grep -qxF -e "$name" <<<"$known" ||
  die "the kind cluster '$name' exists: choose another --name, or remove it: $0 --engine $ENGINE --name $name --delete"
[ -n "$image" ] || image=$("$ROOT/kind/build-node-image.sh" --engine "$ENGINE")

say "creating the cluster $name with $ENGINE, nodes of $image"
"$kind" create cluster --name "$name" --image "$image" --config "$config" ${kubeconfig:+--kubeconfig "$kubeconfig"} \
  --wait 0s ||
  die "kind could not create the cluster; what it did is removed. To look into it:
export KIND_EXPERIMENTAL_PROVIDER=$ENGINE
$kind create cluster --name $name --image $image --config $config --retain --verbosity 3
$kind export logs --name $name, then: $kind delete cluster --name $name"
mapfile -t nodes < <(kind_nodes "$name" control-plane && kind_nodes "$name" worker)
if [ -n "$offline" ]; then bridges; fi
# kind only warns.
kubectl wait --for=condition=Ready node --all --timeout=3m >/dev/null ||
  die "not all nodes are ready: $ENGINE exec ${nodes[0]} kubectl --kubeconfig /etc/kubernetes/admin.conf describe nodes"
kubectl get nodes -o wide >&2
