package locality

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// progress is how far a placed pod has come on its node.
type progress int

const (
	pulling progress = iota
	// started: the images of all its containers are there.
	started
	// idle: the kubelet does not pull for it at the moment.
	idle
)

// The reasons for which the kubelet waits before it pulls again, from
// k8s.io/kubernetes/pkg/kubelet/images and k8s.io/cri-api/pkg/errors.
var failedReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "InvalidImageName", "ErrImageNeverPull",
	"RegistryUnavailable", "SignatureValidationFailed",
}

// limited is the kubelet's message for a pull that it only postpones, because
// it starts no more than registryBurst at once.
const limited = "pull QPS exceeded"

func failed(s v1.ContainerStatus) bool {
	w := s.State.Waiting
	return w != nil && slices.Contains(failedReasons, w.Reason) && !strings.Contains(w.Message, limited)
}

func progressOf(pod *v1.Pod) progress {
	status := &pod.Status
	if slices.ContainsFunc(status.InitContainerStatuses, failed) || slices.ContainsFunc(status.ContainerStatuses, failed) {
		return idle
	}
	if status.Phase == v1.PodPending || status.Phase == "" {
		if initializing(pod) {
			return idle
		}
		return pulling
	}
	for i := range status.ContainerStatuses {
		if s := &status.ContainerStatuses[i]; s.ImageID == "" && s.State.Waiting != nil {
			return pulling
		}
	}
	return started
}

// initializing reports whether the other containers wait for an init container:
// their images are pulled after it has finished.
func initializing(pod *v1.Pod) bool {
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		if s.State.Running == nil {
			continue
		}
		for j := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[j]
			if c.Name == s.Name && (c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways) {
				return true
			}
		}
	}
	return false
}

// placedAt returns when a pod was bound to its node, or now if its status does
// not show it.
func placedAt(pod *v1.Pod, now time.Time) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.PodScheduled && !c.LastTransitionTime.IsZero() && c.LastTransitionTime.Time.Before(now) {
			return c.LastTransitionTime.Time
		}
	}
	return now
}

// startedAt returns when the last container of a pod started, or the zero time
// if no status shows it.
func startedAt(pod *v1.Pod, now time.Time) (last time.Time) {
	for i := range pod.Status.ContainerStatuses {
		if r := pod.Status.ContainerStatuses[i].State.Running; r != nil && r.StartedAt.After(last) {
			last = r.StartedAt.Time
		}
	}
	if last.After(now) {
		return now
	}
	return last
}
