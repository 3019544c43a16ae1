#!/usr/bin/env bash
# Builds what a demo runs, and runs it on a cluster of its own, as root:
#
#   demo.sh                  everything patched
#   demo.sh stock            nothing replaced: stock nodes and control plane, our scheduler and resolver
#   demo.sh agent            nothing replaced, on nodes with containerd and CRI-O: layer-agent reports what they
#                            hold, our scheduler is a Deployment
#   demo.sh image-locality | scheduler-tour
#                            follows a text of lab/demos/: every command in it, with its output
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "the demo makes network namespaces and mounts: run it as root (sudo make demo)"

nodes=(crio pinns kubelet kube-apiserver kube-controller-manager)
case ${1:-} in
'') binaries=(lab tools etcd crictl patched kube-scheduler "${nodes[@]}") ;;
stock) binaries=(lab tools etcd crictl patched kube-scheduler stock "${nodes[@]}") ;;
agent) binaries=(lab demo tools etcd registry runc crictl containerd containerd-shim-runc-v2 patched kube-scheduler layer-resolver layer-agent kubectl-layers stock "${nodes[@]}" kube-scheduler) ;;
image-locality | scheduler-tour) binaries=(tools patched) ;;
*) die "usage: demo.sh [stock | agent | image-locality | scheduler-tour]" ;;
esac
scripts/install-deps.sh
scripts/build.sh "${binaries[@]}"
case ${1:-} in
image-locality | scheduler-tour) exec lab/demos/run.sh "$1" ;;
esac
exec "$BUILD/bin/lab/demo" ${1:+"--$1" --log-dir "_out/demo-$1/log"}
