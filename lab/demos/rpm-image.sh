#!/usr/bin/env bash
# From the source to what CRI-O reports, with RPMs and a node image: rpmbuild makes the packages, which go into the image of
# OKD's nodes. A container of each image has a CRI-O list what it pulled: the stock one, ours, and the stock one again. Each
# command is printed before it runs. Run it as root, with podman.
#
#   rpm-image.sh BASE [IMAGE]
#
# BASE is stream-coreos of an OKD release (docs/install-okd.md), IMAGE what is pulled.
. "$(dirname "$0")/../../scripts/lib.sh"
# shellcheck source=steps.sh
. "$ROOT/lab/demos/steps.sh"
cd "$ROOT"

case $# in 1 | 2) ;; *) die "usage: rpm-image.sh BASE [IMAGE]" ;; esac
base=$1 pulled=${2:-registry.k8s.io/pause:3.10} node=layer-locality-node own=localhost/layer-locality/node
inside="podman exec $node"

# start IMAGE: a node of that image, with CRI-O alone, and what the one before has pulled.
start() {
  step "podman run --detach --name $node --privileged --volume $node:/var/lib/containers \
--env CONTAINER_RUNTIME_ENDPOINT=unix:///var/run/crio/crio.sock $1 crio --cgroup-manager cgroupfs --conmon-cgroup pod"
  ready "$inside"
}
clean_up() {
  for command in "podman rm --force $node" "podman volume rm --force $node" "podman rmi --force $own"; do step "$command" || true; done
}

trap clean_up EXIT
start "$base"
step "$inside crictl pull $pulled"
images none "$inside"
step "rpm/rpms.sh cri-o openshift-kubelet"
step "okd-machine-os/build.sh --base $base --image $own --tool podman"
step "podman rm --force $node"
start "$own"
images layers "$inside"
step "podman rm --force $node"
start "$base"
images none "$inside"
