//go:build e2e

package extender

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestBurst creates 30 pods with an unknown image. With the plugin, the layers
// that the first ones bring count for the others at once. layer-extender only guesses where
// its answers lead, until the bindings show: it may cost one node more.
func TestBurst(t *testing.T) {
	livetest.Long(t, "TestBurst of lab/test/scheduler, and the unit tests of extender/expectedpods")
	if stock() {
		t.Skip("STOCK_NODES=1 has no kube-scheduler with the plugin to compare with")
	}
	const pods, imageBytes = 30, 100_000_000
	rows := [][]string{{"", "nodes", "pods by node", "pulled"}}
	// run returns on how many nodes the pods are.
	run := func(name, scheduler string) int {
		image := livetest.HubImage(t, c, "burst:"+name, imageBytes, 4)
		before, err := scenario.Pulled(c, "library/burst")
		must(t, err)
		names := submit(t, "burst-"+name, pods, scenario.Pod{Image: "burst:" + name, Scheduler: scheduler})
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		must(t, lab.Ready(t.Context(), names...))
		after, err := scenario.Pulled(c, "library/burst")
		must(t, err)
		per := scenario.PerNode(nodes)
		pulled := after.Total() - before.Total()
		if want := livetest.Size(image) * int64(len(per)); pulled < want || pulled > want+int64(len(per))*scenario.Measured {
			t.Errorf("%s: %d nodes pulled %d bytes, want %d", name, len(per), pulled, want)
		}
		rows = append(rows, []string{name, fmt.Sprint(len(per)), fmt.Sprint(per), livetest.Megabytes(pulled)})
		must(t, lab.Drop(t.Context(), names...))
		return len(per)
	}
	run("plain", scenario.Stock)
	ours := run("extender", scenario.Layers)
	expectedPods(t)

	withScheduler(t, withPlugin(map[string]any{"maxWaitingPods": bound}))
	plugin := run("plugin", scenario.Layers)
	livetest.Table(t, rows...)
	if plugin+1 >= len(c.Nodes()) {
		t.Errorf("the plugin uses %d of %d nodes: this shows nothing of layer-extender", plugin, len(c.Nodes()))
	}
	if ours > plugin+1 {
		t.Errorf("%d nodes pull with layer-extender, %d with the plugin", ours, plugin)
	}
}
