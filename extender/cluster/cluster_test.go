package cluster_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"

	"github.com/layer-locality/layer-locality/extender/internal/fixture"
)

// TestExcept: a pod that is only expected on a node is left out for itself, and only then. One
// that is bound is not.
func TestExcept(t *testing.T) {
	pod := fixture.Pod("p", "app")
	nodes, _ := fixture.Nodes(2)
	c := fixture.NewCluster(t, append(nodes, pod)...)
	c.Follow(t)
	fixture.Eventually(t, "the nodes are known", c.HasSynced)
	snapshot := schedulercache.NewEmptySnapshot()
	on := func(except *v1.Pod) int {
		t.Helper()
		if err := c.Update(snapshot, except); err != nil {
			t.Fatal(err)
		}
		info, err := snapshot.NodeInfos().Get("n1")
		if err != nil {
			t.Fatal(err)
		}
		return len(info.GetPods())
	}
	if !c.Assume(pod, "n1") || c.Assume(pod, "n2") {
		t.Error("the pod can be expected once")
	}
	for range 2 {
		if n := on(pod); n != 0 {
			t.Errorf("%d pods for the pod itself", n)
		}
		if n := on(fixture.Pod("other", "app")); n != 1 {
			t.Errorf("%d pods for another pod", n)
		}
		if n := on(&v1.Pod{}); n != 1 {
			t.Errorf("%d pods for a pod without UID", n)
		}
	}
	c.Forget(pod)
	if n := on(fixture.Pod("other", "app")); n != 0 {
		t.Errorf("%d pods after it is forgotten", n)
	}
	c.Bind(t, pod, "n1")
	fixture.Eventually(t, "the binding counts", func() bool { return on(fixture.Pod("other", "app")) == 1 })
	if n := on(pod); n != 1 {
		t.Errorf("%d pods for a pod that is bound", n)
	}
}
