#!/usr/bin/env bash
# Builds what a benchmark needs and runs it: bench.sh NAME. Without NAME it lists them.
#
# Variables: NODES, sizes of clusters; PROFILES, WORKLOADS, BURSTS, SCALE, MINUTES as in the list; LAYER_DATA, a file of real
# image manifests.
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$ROOT"

list() {
  cat <<'EOF'
  crio           stock and patched CRI-O side by side on one store of 1,000 images
  node           what layers add to a Node, and to the writes of its status
  scheduler      LayerLocality beside ImageLocality and the prototype: time, memory (NODES=5000; 200 is a quick look)
  extender       layer-extender asked by Kubernetes' own client: time, memory, and the plugin's choices (NODES=5000)
  throughput     pods a second with the default profile and with ours as it is installed
                 (NODES=500,1000,2000,5000, PROFILES=layerlocality,extender; WORKLOADS=upstream for scheduler_perf's
                 own that have a threshold)
  resolver       layer-resolver on 5,000 images: images a second, requests, memory, restart, confirmation of
                 tags, a flood of names
  tenants        layer-resolver with hostile tenants, a leader and an API server that are killed, and a registry
                 that is out: how soon the images of others are known, memory, leaks; one hour
  nodelayers     NodeLayers of 5,000 nodes: size, apiserver, etcd, the scheduler's start and index
  agent          layer-agent on stock nodes with 1,000 images: reading, memory, pulls beside it, how soon the
                 scheduler has it; root
  kubectl-layers kubectl layers on 5,000 NodeLayers, 2,000 ImageManifests, 50,000 pods: seconds, memory (NODES=5000)
  startup        start-up of pods, bytes and balance on four slow nodes, beside the default profile and the
                 simulator; root (BURSTS=4, after fewer pods, in six rounds)
  prefetch       start-up of new pods in rolling updates on four slow nodes, after a moved tag and with another
                 template: default profile, LayerLocality, and with layer-prefetcher; root
  peers          layers from other nodes beside LayerLocality alone: start-up of single pods and of a burst of 50,
                 bytes from the registry; four nodes, 100 Mbit/s to it, 1 Gbit/s between them; root
  qos            what workloads get of what they were promised, with priorities and with QosAware; 45 minutes,
                 root (SCALE=6, MINUTES=5)
EOF
}

name=${1:-} arguments=() binaries=()
patched=(patched kube-apiserver)
case $name in
crio | node) binaries=(tools stock patched) ;;
prefetch | peers) binaries=(tools patched) ;;
startup)
  binaries=(tools patched)
  [ -z "${BURSTS:-}" ] || arguments=(--bursts "$BURSTS" --pods 24 --rounds 6)
  ;;
agent) binaries=(tools etcd registry runc crictl critest containerd containerd-shim-runc-v2 stock patched) ;;
scheduler | extender) arguments=(--nodes "${NODES:-5000}") ;;
throughput)
  arguments=(--nodes "${NODES:-500,1000,2000,5000}" --profiles "${PROFILES:-layerlocality}" ${WORKLOADS:+--workloads "$WORKLOADS"})
  binaries=(tools etcd)
  [[ ${PROFILES:-} != *extender* ]] || binaries+=(patched layer-extender)
  ;;
resolver | tenants) binaries=(tools etcd "${patched[@]}" layer-resolver) ;;
nodelayers) binaries=(tools etcd stock kube-apiserver) ;;
kubectl-layers) binaries=(tools etcd "${patched[@]}" kube-scheduler kubectl-layers) arguments=(--nodes "${NODES:-5000}") ;;
qos)
  binaries=(tools etcd registry kwok "${patched[@]}" kube-controller-manager kube-scheduler)
  arguments=(${SCALE:+--scale "$SCALE"} ${MINUTES:+--minutes "$MINUTES"})
  ;;
'')
  echo "make bench B=NAME runs one of:"
  list
  exit
  ;;
*) die "no benchmark is called '$name': 'make bench' lists them" ;;
esac
scripts/install-deps.sh
[ ${#binaries[@]} = 0 ] || scripts/build.sh "${binaries[@]}"
exec lab/run bench "${name%-layers}" "${arguments[@]}"
