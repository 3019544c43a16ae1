//go:build kubernetes1.35

package layerlocality

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// scoreGroups enables nothing: groups of pods have no placements.
func scoreGroups(*kubescheduler.Plugins) {}

// joinGang makes a pod one of a group.
func joinGang(pod *v1.Pod) {
	pod.Spec.WorkloadRef = &v1.WorkloadReference{Name: "workload", PodGroup: "gang"}
}

// signatureOf returns the signature of a pod.
func signatureOf(s *suite, pod *v1.Pod) fwk.PodSignature {
	return s.framework.SignPod(s.ctx, pod, false)
}
