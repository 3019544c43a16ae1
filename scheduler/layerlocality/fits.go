package layerlocality

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
)

// maxAsked bounds of how many nodes it is found out whether a pod fits.
const maxAsked = 1000

// fit reports whether nodes look as if a pod fits on them, by what costs little to find out: requests, taints, node
// selector and affinity. kube-scheduler's filters decide.
type fit struct {
	logger   klog.Logger
	pod      *v1.Pod
	request  *framework.Resource
	affinity nodeaffinity.RequiredNodeAffinity
	node     func(name string) (fwk.NodeInfo, error)
	asked    int
}

func newFit(logger klog.Logger, pod *v1.Pod, snapshot fwk.SharedLister) *fit {
	f := &fit{
		logger: logger, pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod),
		request: framework.NewResource(resource.PodRequests(pod, resource.PodResourcesOptions{})), node: snapshot.NodeInfos().Get,
	}
	// In the cycle of a pod group, kube-scheduler looks at the nodes of one placement.
	if s, ok := snapshot.(interface {
		GetNodeInPlacement(name string) (fwk.NodeInfo, error)
	}); ok {
		f.node = s.GetNodeInPlacement
	}
	return f
}

// on reports whether the pod looks as if it fits on a node.
func (f *fit) on(name string) bool {
	if f.asked++; f.asked > maxAsked {
		return false
	}
	info, err := f.node(name)
	if err != nil || !f.room(info) {
		return false // also a node that is newer than the snapshot
	}
	node := info.Node()
	if node.Spec.Unschedulable && !corev1.TolerationsTolerateTaint(f.logger, f.pod.Spec.Tolerations, &cordoned, false) {
		return false
	}
	if len(node.Spec.Taints) > 0 {
		if _, repelled := corev1.FindMatchingUntoleratedTaint(f.logger, node.Spec.Taints, f.pod.Spec.Tolerations, helper.DoNotScheduleTaintsFilterFunc(), false); repelled {
			return false
		}
	}
	ok, _ := f.affinity.Match(node) // not one that cannot be read
	return ok
}

// room reports whether what the pod requests is free.
func (f *fit) room(node fwk.NodeInfo) bool {
	all, taken := node.GetAllocatable(), node.GetRequested()
	if len(node.GetPods()) >= all.GetAllowedPodNumber() ||
		f.request.MilliCPU > 0 && f.request.MilliCPU > all.GetMilliCPU()-taken.GetMilliCPU() ||
		f.request.Memory > 0 && f.request.Memory > all.GetMemory()-taken.GetMemory() ||
		f.request.EphemeralStorage > 0 && f.request.EphemeralStorage > all.GetEphemeralStorage()-taken.GetEphemeralStorage() {
		return false
	}
	for name, n := range f.request.ScalarResources {
		if n > 0 && n > all.GetScalarResources()[name]-taken.GetScalarResources()[name] {
			return false
		}
	}
	return true
}

// cordoned is the taint that stands for Unschedulable.
var cordoned = v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
