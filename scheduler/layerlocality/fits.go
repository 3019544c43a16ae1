package layerlocality

import (
	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
)

// fit reports whether nodes look as if a pod fits on them, by what costs little to find out: taints, node selector and
// affinity, requests. kube-scheduler's filters decide.
type fit struct {
	logger   klog.Logger
	pod      *v1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	nodes    fwk.NodeInfoLister
}

func newFit(logger klog.Logger, pod *v1.Pod, nodes fwk.NodeInfoLister) *fit {
	return &fit{logger, pod, nodeaffinity.GetRequiredNodeAffinity(pod), nodes}
}

// on reports whether the pod looks as if it fits on a node.
func (f *fit) on(name string) bool {
	info, err := f.nodes.Get(name)
	if err != nil {
		return false // newer than the snapshot
	}
	node := info.Node()
	if node.Spec.Unschedulable && !corev1.TolerationsTolerateTaint(f.logger, f.pod.Spec.Tolerations, &cordoned, false) {
		return false
	}
	if _, repelled := corev1.FindMatchingUntoleratedTaint(f.logger, node.Spec.Taints, f.pod.Spec.Tolerations, helper.DoNotScheduleTaintsFilterFunc(), false); repelled {
		return false
	}
	if ok, _ := f.affinity.Match(node); !ok { // also one that cannot be read
		return false
	}
	return len(noderesources.Fits(f.pod, info, nil, noderesources.ResourceRequestsOptions{EnablePodLevelResources: true})) == 0
}

// cordoned is the taint that stands for Unschedulable.
var cordoned = v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
