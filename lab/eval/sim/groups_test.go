package sim

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// A group is placed in one rack: with LayerLocality in the one that has the base of its image, with the default profile in the
// fullest one.
func TestGroups(t *testing.T) {
	plan := &workload.Plan{Nodes: nodesOf(6), Images: []dataset.Image{imageOf("base", "base", 300), imageOf("app", "base", 300, "own", 20), imageOf("other", "other", 10)}}
	for i := range plan.Nodes {
		plan.Nodes[i].Rack = []string{"a", "b", "c"}[i/2]
	}
	plan.Nodes[3].Holds = []string{"base"}
	// The pod of another image makes rack a the fullest.
	plan.Nodes[0].MilliCPU = 5000
	plan.Events = []workload.Event{{Pod: &workload.Pod{Image: "other", MilliCPU: 4500, Memory: 1 << 20}}}
	for range 4 {
		plan.Events = append(plan.Events, workload.Event{At: 10 * time.Minute, Pod: &workload.Pod{Image: "app", MilliCPU: 500, Memory: 1 << 20, Group: "g"}})
	}
	for name, want := range map[string]string{"default": "a", "layerlocality:nodes=joined": "b"} {
		policy, err := ParsePolicy(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := prepare(t.Context(), plan, policy, DefaultModel(), 1)
		if err != nil {
			t.Fatal(err)
		}
		for r.step() {
		}
		if r.err != nil {
			t.Fatalf("%s: %v", name, r.err)
		}
		racks := map[string]int{}
		for _, object := range r.scheduler.Pods.GetIndexer().List() {
			if pod := object.(*v1.Pod); pod.Spec.Containers[0].Image == "app" {
				racks[r.machines[pod.Spec.NodeName].Rack]++
			}
		}
		if len(racks) != 1 || racks[want] != 4 {
			t.Errorf("%s: pods of the group in %v, want 4 in %s", name, racks, want)
		}
	}

	// One that fits in no rack ends the run.
	for i := 1; i < len(plan.Events); i++ {
		plan.Events[i].Pod.MilliCPU = 3000
	}
	policy, _ := ParsePolicy("default")
	r, err := prepare(t.Context(), plan, policy, DefaultModel(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for r.step() {
	}
	if want := "group g of 4 pods fits in no rack"; r.err == nil || r.err.Error() != want {
		t.Errorf("error %v, want %q", r.err, want)
	}
}
