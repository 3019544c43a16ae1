#!/usr/bin/env bash
# Writes the objects that move the nodes of an OKD cluster to our image, for
# `oc apply -f`.
#
#   manifests.sh --image IMAGE@DIGEST [OPTIONS]       an image that build.sh has pushed
#   manifests.sh --on-cluster RPMS@DIGEST --push-to NAME:TAG --push-secret SECRET [OPTIONS]
#                                                     the cluster builds it, from the image that
#                                                     build.sh --rpms-image has pushed
#
#   --pool NAME      of nodes; may be given again. Default worker. A pool that OKD does not have
#                    (not worker, master) is made too: a few nodes first, by their label.
#   --gate on|off    a MachineConfig that turns layers in the Node on or off; without it the
#                    package's own file does, on
#   --out FOLDER     default _out/okd; manifests there that this call does not write are not touched
. "$(dirname "$0")/../scripts/lib.sh"
. "$ROOT/okd-machine-os/lib.sh"

image='' rpms='' push_to='' push_secret='' gate='' pools=() out=$OUTPUT/okd
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || usage
  case $1 in
  --image) image=$2 ;;
  --on-cluster) rpms=$2 ;;
  --push-to) push_to=$2 ;;
  --push-secret) push_secret=$2 ;;
  --pool) pools+=("$2") ;;
  --gate) gate=$2 ;;
  --out) out=$2 ;;
  *) usage ;;
  esac
  shift 2
done
[ ${#pools[@]} -gt 0 ] || pools=(worker)
case $image,$rpms in
, | *?,?*) usage ;;
*,) by_digest --image "$image" ;;
*)
  by_digest --on-cluster "$rpms"
  [[ $push_to =~ ^[a-z0-9][-a-z0-9.]*\.[-a-z0-9.]+(:[0-9]{2,5})?(/[-a-zA-Z0-9_]{1,61})*/[-a-zA-Z0-9_.]+:[-a-zA-Z0-9_.]+$ ]] ||
    die "--push-to must be HOST/NAME:TAG, where the cluster pushes its image, not '$push_to'"
  [[ $push_secret =~ ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$ ]] ||
    die "--push-secret must name a secret of the namespace openshift-machine-config-operator, not '$push_secret'"
  # With one place for two pools, each would overwrite the other's.
  [ ${#pools[@]} = 1 ] || die "--on-cluster takes one --pool: each has its own --push-to"
  ;;
esac
case $gate in '' | on | off) ;; *) die "--gate must be on or off, not '$gate'" ;; esac
for pool in "${pools[@]}"; do
  [[ $pool =~ ^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$ ]] || die "'$pool' cannot be the name of a pool"
done

# is_own POOL: whether OKD has no pool of this name.
is_own() { [ "$1" != worker ] && [ "$1" != master ]; }

# gate_file: prints the drop-in of the kubelet's configuration.
gate_file() {
  printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfeatureGates:\n  NodeStatusImageLayers: %s\n' "$1"
}

# render TEMPLATE FILE: fills in the template and writes the file.
render() {
  local text
  text=$(<"$ROOT/okd-machine-os/templates/$1.yaml")
  text=${text//@POOL@/$pool}
  # The last name wins, and a new pool also gets what workers get.
  text=${text//@ORDER@/$(is_own "$pool" && echo 99 || echo 98)}
  text=${text//@IMAGE@/$image}
  text=${text//@GATE@/$gate}
  text=${text//@FILE@/$(gate_file "$([ "$gate" = off ] && echo false || echo true)" | base64 --wrap 0)}
  text=${text//@RPMS@/$rpms}
  text=${text//@PUSH_TO@/$push_to}
  text=${text//@PUSH_SECRET@/$push_secret}
  printf '%s\n' "$text" >"$out/$2.yaml"
  echo "$out/$2.yaml"
}

mkdir -p "$out"
for pool in "${pools[@]}"; do
  if is_own "$pool"; then render machineconfigpool "10-$pool-pool"; fi
  [ -z "$gate" ] || render machineconfig-gate "20-$pool-gate"
  if [ -n "$image" ]; then render machineconfig-os "30-$pool-os"; else render machineosconfig "30-$pool-os"; fi
done
