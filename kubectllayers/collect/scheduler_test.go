package collect

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func lease(name, holder string, ago time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultSchedulerNamespace, Name: name}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To(holder), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-ago)},
	}}
}

func running(name string, phase v1.PodPhase) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultSchedulerNamespace, Name: name}, Status: v1.PodStatus{Phase: phase}}
}

func in(namespace string, pod *v1.Pod) *v1.Pod {
	pod.Namespace = namespace
	return pod
}

// The pod that holds the lease is asked, never one that only looks like a scheduler.
func TestLeaseHolder(t *testing.T) {
	for name, test := range map[string]struct {
		objects []runtime.Object
		want    string
	}{
		"second scheduler": {[]runtime.Object{lease(DefaultLeases[0], "pod-a_1-2", time.Second), lease(DefaultLeases[1], "other_1", time.Second), running("pod-a", v1.PodRunning), running("other", v1.PodRunning)}, "pod-a"},
		"static pod":       {[]runtime.Object{lease(DefaultLeases[1], "node_1_2f", time.Second), running("kube-scheduler-node_1", v1.PodRunning)}, "kube-scheduler-node_1"},
		// Every cluster has the other lease, and its holder is not ours.
		"abandoned":   {[]runtime.Object{lease(DefaultLeases[0], "pod-a_1", time.Hour), lease(DefaultLeases[1], "other_1", time.Second), running("pod-a", v1.PodRunning), running("other", v1.PodRunning)}, "nobody renews the lease kube-system/layer-locality-scheduler: the scheduler does not run"},
		"nobody":      {[]runtime.Object{lease(DefaultLeases[0], "", 0)}, "nobody renews"},
		"no lease":    {nil, "there is no lease layer-locality-scheduler or kube-scheduler"},
		"no pod":      {[]runtime.Object{lease(DefaultLeases[0], "machine\x1b_1", 0)}, `"machine` + "\uFFFD" + `_1", is no pod in namespace kube-system`},
		"elsewhere":   {[]runtime.Object{lease(DefaultLeases[0], "pod-a_1", 0), in("other", running("pod-a", v1.PodRunning))}, "name that of the pod with --scheduler-pod-namespace"},
		"not running": {[]runtime.Object{lease(DefaultLeases[0], "pod-a_1", 0), running("pod-a", v1.PodFailed)}, "its pod is Failed: wait a moment"},
	} {
		pod, err := leaseHolder(t.Context(), fake.NewClientset(test.objects...), schedulerOptions())
		if err == nil && pod.Name != test.want || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, %v, want %s", name, pod, err, test.want)
		}
	}
}

func schedulerOptions() SchedulerOptions {
	return SchedulerOptions{Namespace: DefaultSchedulerNamespace, PodNamespace: DefaultSchedulerNamespace, Leases: DefaultLeases, Now: time.Now}
}

// With deploy/scheduler/okd, the pod is in a namespace of its own, and a pod of that name beside the
// lease is another one.
func TestLeaseHolderElsewhere(t *testing.T) {
	o := schedulerOptions()
	o.PodNamespace = "layer-locality"
	pod, err := leaseHolder(t.Context(), fake.NewClientset(lease(DefaultLeases[0], "pod-a_1", 0), running("pod-a", v1.PodRunning), in(o.PodNamespace, running("pod-a", v1.PodRunning))), o)
	if err != nil || pod.Namespace != o.PodNamespace {
		t.Errorf("%v, %v", pod, err)
	}
}

// By the clock of the apiserver, not by that of the user's machine.
func TestLeaseHolderByClock(t *testing.T) {
	for _, wrong := range []time.Duration{-time.Hour, time.Hour} {
		o := schedulerOptions()
		o.Now = func() time.Time { return time.Now().Add(-wrong) }
		renewed := lease(DefaultLeases[0], "pod-a_1", wrong)
		if pod, err := leaseHolder(t.Context(), fake.NewClientset(renewed, running("pod-a", v1.PodRunning)), o); err != nil {
			t.Errorf("%s: %v, %v", wrong, pod, err)
		}
		renewed.Spec.RenewTime.Time = o.Now().Add(-time.Hour)
		if pod, err := leaseHolder(t.Context(), fake.NewClientset(renewed, running("pod-a", v1.PodRunning)), o); err == nil {
			t.Errorf("%s: %v holds an abandoned lease", wrong, pod)
		}
	}
}
