//go:build e2e

package extender

import (
	"slices"
	"testing"

	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestNeverPulled starts pods with images that no node has pulled, but whose base one node
// has: layer-extender has their layers from layer-resolver.
func TestNeverPulled(t *testing.T) {
	const holder, pods, baseBytes, ownBytes = "n1", 3, 60_000_000, 2_000_000
	base := images.Layer{Name: "never-base", Size: baseBytes}
	pushed, err := scenario.PushOnBase(t.Context(), c, "never-holder:v1", base, ownBytes)
	must(t, err)
	removeAtEnd(t, "never-holder")
	livetest.WithdrawAtEnd(t, lab, "never-holder")
	must(t, lab.Hold(t.Context(), scenario.Pod{Name: "never-holder", Image: pushed.Reference, Node: holder}, baseBytes))

	for _, way := range []scenario.Way{
		{Name: "layer-extender with layer-resolver", Short: "known", Scheduler: scenario.Layers, Resolver: true},
		{Name: "no extender", Short: "plain", Scheduler: scenario.Stock, Resolver: true},
	} {
		name := "never-" + way.Short
		livetest.WithdrawAtEnd(t, lab, name)
		all, err := lab.NeverPulled(t.Context(), way, name, pods, base, ownBytes, holder)
		must(t, err)
		removeAtEnd(t, scenario.Names(name, pods)...)
		started, err := lab.Together(t.Context(), name, way.Scheduler, all)
		must(t, err)
		t.Logf("%s: %v, pulled %s", way.Name, started.Nodes, started.Pulled)
		if way.Scheduler == scenario.Stock {
			continue
		}
		if slices.ContainsFunc(started.Nodes, func(node string) bool { return node != holder }) {
			t.Errorf("the base is on %s, pods went to %v", holder, started.Nodes)
		}
		if pulled := started.Pulled.Total(); pulled < pods*ownBytes || pulled > pods*(ownBytes+ownBytes/10) {
			t.Errorf("%d bytes pulled, the images have %d of their own", pulled, pods*ownBytes)
		}
	}
	if c.Addon(addons.LayerResolver).PID() == 0 {
		t.Error("layer-resolver has ended")
	}
}
