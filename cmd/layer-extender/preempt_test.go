package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/profile"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/extender/host"
)

// preempts has kube-scheduler's own code place a pod of priority 1000 with the filter of safe-overload. All
// nodes are full by requests, with a pod of priority 0 on each; those that are named are
// overloaded by measurement, too. It returns once the pod has a node or kube-scheduler has given up.
func preempts(t *testing.T, overloaded ...string) (evicted []string, node string) {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Background()))
	t.Cleanup(cancel)
	const of = "default-scheduler"
	high := podWith("high", "", "1", "1Gi")
	high.Spec.Priority, high.Spec.SchedulerName = ptr.To[int32](1000), of
	objects := []runtime.Object{high}
	for i := range 3 {
		name, free := fmt.Sprint("n", i+1), "3000"
		if slices.Contains(overloaded, name) {
			free = "100"
		}
		low := podWith(fmt.Sprint("on-", name), name, "3900m", "1Gi")
		low.Spec.Priority, low.Spec.SchedulerName, low.Status.Phase = ptr.To[int32](0), of, v1.PodRunning
		objects = append(objects, low, nodeWith(name, "16Gi", map[string]string{"mean-free-cpu": free, "mean-free-memory": "9000000000"}))
	}
	client := fake.NewClientset(objects...)
	kinds, _ := agents()
	kinds, err := host.Choose(kinds, []string{"safe-overload"})
	must(t, err)
	h, err := host.New(ctx, host.Config{Client: client, Kinds: kinds, MaxScore: 10})
	must(t, err)
	h.Start(ctx)
	server := httptest.NewServer(h.Handler(nil))
	t.Cleanup(func() { server.Close(); cancel(); must(t, h.Close()) })
	eventually(t, "the agent has synced", h.HasSynced)
	informers := schedulerInformers(client)
	s, err := scheduler.New(ctx, client, informers, nil, profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})),
		scheduler.WithPodInitialBackoffSeconds(1), scheduler.WithPodMaxBackoffSeconds(1),
		scheduler.WithExtenders(schedulerconfig.Extender{
			URLPrefix: server.URL + "/scheduler", FilterVerb: "predicates/safe-overload", PreemptVerb: "preempt/safe-overload",
			NodeCacheCapable: true, HTTPTimeout: metav1.Duration{Duration: time.Minute},
		}))
	must(t, err)
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	must(t, s.WaitForHandlersSync(ctx))
	for _, resource := range []string{"nodes", "pods"} { // by the extender and by the scheduler: what is evicted shows
		eventually(t, resource+" are watched", func() bool {
			watches := slices.DeleteFunc(client.Actions(), func(a clienttesting.Action) bool { return !a.Matches("watch", resource) })
			return len(watches) >= 2
		})
	}
	go s.Run(ctx)
	eventually(t, "kube-scheduler has decided", func() bool {
		for _, action := range client.Actions() {
			if bind, ok := action.(clienttesting.CreateAction); ok && action.GetSubresource() == "binding" {
				node = bind.GetObject().(*v1.Binding).Target.Name
				return true
			}
		}
		pod, err := client.CoreV1().Pods("default").Get(ctx, "high", metav1.GetOptions{})
		must(t, err)
		// Since 1.37 the message also has the node that it found.
		return pod.Status.NominatedNodeName == "" && len(pod.Status.Conditions) > 0 && strings.Contains(pod.Status.Conditions[0].Message, "preemption: ")
	})
	for _, action := range client.Actions() {
		if deleted, ok := action.(clienttesting.DeleteAction); ok && action.Matches("delete", "pods") {
			evicted = append(evicted, deleted.GetName())
		}
	}
	return evicted, node
}

// TestPreemptsNotInVain: no pod is evicted from a node that the filter refuses all the same.
func TestPreemptsNotInVain(t *testing.T) {
	if evicted, node := preempts(t, "n1", "n2", "n3"); len(evicted) > 0 || node != "" {
		t.Errorf("all nodes are overloaded: %v evicted, on %q", evicted, node)
	}
	if evicted, node := preempts(t, "n1", "n3"); !slices.Equal(evicted, []string{"on-n2"}) || node != "n2" {
		t.Errorf("all but n2 are overloaded: %v evicted, on %q", evicted, node)
	}
}
