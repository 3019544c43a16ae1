//go:build kubernetes1.35

package layerlocality

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// groupOf returns the name of the group that a pod is scheduled with; empty if there is
// none.
func groupOf(pod *v1.Pod) string {
	if workload := pod.Spec.WorkloadRef; workload != nil {
		return pod.Namespace + "/" + workload.Name + "/" + workload.PodGroup
	}
	return ""
}

// onTrial returns false: groups of pods have no cycles.
func onTrial(fwk.CycleState) bool { return false }
