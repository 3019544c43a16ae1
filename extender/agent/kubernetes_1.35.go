//go:build kubernetes1.35

package agent

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// assume puts a pod on a node of a snapshot.
func assume(snapshot *schedulercache.Snapshot, pod *framework.PodInfo) error {
	node, err := snapshot.Get(pod.Pod.Spec.NodeName)
	if err == nil {
		node.AddPodInfo(pod)
	}
	return err
}

// forget takes it away again.
func forget(logger klog.Logger, snapshot *schedulercache.Snapshot, pod *v1.Pod) error {
	node, err := snapshot.Get(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	return node.RemovePod(logger, pod)
}
