package locality

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func waiting(name, reason, message string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func running(name string, at time.Time) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, ImageID: "id", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}}
}

func TestProgressOf(t *testing.T) {
	crashed := waiting("a", "CrashLoopBackOff", "")
	crashed.ImageID = "id"
	done := v1.ContainerStatus{Name: "init", ImageID: "id", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}
	up := running("a", time.Time{})
	for name, test := range map[string]struct {
		phase      v1.PodPhase
		init, main []v1.ContainerStatus
		want       progress
	}{
		"placed, without a status":          {"", nil, nil, pulling},
		"pending":                           {v1.PodPending, nil, []v1.ContainerStatus{waiting("a", "ContainerCreating", "")}, pulling},
		"a pull failed":                     {v1.PodPending, nil, []v1.ContainerStatus{waiting("a", "ErrImagePull", "no such host")}, idle},
		"the kubelet pauses":                {v1.PodPending, nil, []v1.ContainerStatus{waiting("a", "ImagePullBackOff", "")}, idle},
		"the kubelet only puts it off":      {v1.PodPending, nil, []v1.ContainerStatus{waiting("a", "ErrImagePull", "pull QPS exceeded")}, pulling},
		"one of an init container failed":   {v1.PodPending, []v1.ContainerStatus{waiting("init", "ErrImagePull", "")}, nil, idle},
		"it waits for an init container":    {v1.PodPending, []v1.ContainerStatus{running("init", time.Time{})}, nil, idle},
		"not for a sidecar":                 {v1.PodPending, []v1.ContainerStatus{running("sidecar", time.Time{})}, nil, pulling},
		"the init container is done":        {v1.PodPending, []v1.ContainerStatus{done}, nil, pulling},
		"running":                           {v1.PodRunning, nil, []v1.ContainerStatus{up}, started},
		"the second image is on its way":    {v1.PodRunning, nil, []v1.ContainerStatus{up, waiting("b", "ContainerCreating", "")}, pulling},
		"a container whose image was there": {v1.PodRunning, nil, []v1.ContainerStatus{up, crashed}, started},
		"finished":                          {v1.PodSucceeded, nil, nil, started},
	} {
		pod := &v1.Pod{
			Spec: v1.PodSpec{InitContainers: []v1.Container{
				{Name: "other"}, {Name: "init"}, {Name: "sidecar", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
			}},
			Status: v1.PodStatus{Phase: test.phase, InitContainerStatuses: test.init, ContainerStatuses: test.main},
		}
		if got := progressOf(pod); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// Times of a status are those of another machine's clock: none is later than now.
func TestTimesOfAPod(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	earlier, future := now.Add(-time.Minute), now.Add(time.Hour)
	for name, test := range map[string]struct {
		conditions []v1.PodCondition
		want       time.Time
	}{
		"no condition": {nil, now},
		"another one":  {[]v1.PodCondition{{Type: v1.PodReady, LastTransitionTime: metav1.NewTime(earlier)}}, now},
		"placed":       {[]v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(earlier)}}, earlier},
		"without time": {[]v1.PodCondition{{Type: v1.PodScheduled}}, now},
		"in an hour":   {[]v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(future)}}, now},
	} {
		if got := placedAt(&v1.Pod{Status: v1.PodStatus{Conditions: test.conditions}}, now); !got.Equal(test.want) {
			t.Errorf("%s: placed at %v, want %v", name, got, test.want)
		}
	}
	for name, test := range map[string]struct {
		statuses []v1.ContainerStatus
		want     time.Time
	}{
		"nothing runs": {[]v1.ContainerStatus{waiting("a", "", "")}, time.Time{}},
		"the last one": {[]v1.ContainerStatus{running("a", earlier), running("b", earlier.Add(-time.Minute))}, earlier},
		"in any order": {[]v1.ContainerStatus{running("b", earlier.Add(-time.Minute)), running("a", earlier)}, earlier},
		"in an hour":   {[]v1.ContainerStatus{running("a", future)}, now},
	} {
		if got := startedAt(&v1.Pod{Status: v1.PodStatus{ContainerStatuses: test.statuses}}, now); !got.Equal(test.want) {
			t.Errorf("%s: started at %v, want %v", name, got, test.want)
		}
	}
}
