//go:build e2e

package extender

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	layerBytes = 10_000_000
	// tolerance is what a pull brings besides layers: a configuration.
	tolerance = 64 << 10
)

// TestAncestor is the scenario of the same name in lab/test/scheduler: Img1 = L1 L2 L3 runs on
// one node, and every pod fills a node. A second node has Img2 = L1 L2 L4, a third one
// neither. The next pod with Img1 has to go to the second node: with layer-extender it
// does, and without chance decides.
func TestAncestor(t *testing.T) {
	provide(t, bringImages(t).ofFamilies...)
	families, runs := bringImages(t).families, ancestorRuns()
	t.Logf("%d runs; FULL=1 has 10 of them", runs)
	use(t, "n1", "n2", "n3")
	cpu, err := lab.FillingCPU(t.Context())
	must(t, err)
	before := answered(t)
	rows := [][]string{{"run", "Img1 runs on", "L1 L2 are on", "with layer-extender", "pull", "bytes", "without", "pull", "bytes"}}
	var right, rightWithout int
	var bytes, bytesWithout int64
	for i, f := range families {
		n1, n2 := roles(i)
		names := scenario.Names(fmt.Sprintf("family-%d", i+1), 3)
		removeAtEnd(t, names...)
		first, err := lab.Start(t.Context(), scenario.Pod{Name: names[0], Image: f.One.Reference, Scheduler: scenario.Layers, MilliCPU: cpu}, f.One)
		must(t, err)
		if first.Node != n1 || first.Bytes != 0 {
			t.Errorf("run %d: all of the first pod's image is on %s, and it went to %s, which pulled %d bytes", i+1, n1, first.Node, first.Bytes)
		}
		third := func(name, scheduler string) scenario.Start {
			start, err := lab.Try(t.Context(), scenario.Pod{Name: name, Image: f.One.Reference, Scheduler: scheduler, MilliCPU: cpu}, f.One)
			must(t, err)
			return start
		}
		ours := third(names[1], scenario.Layers)
		own := f.One.Layers[len(f.One.Layers)-1].Size
		if ours.Node == n2 && ours.Bytes >= own && ours.Bytes <= own+tolerance {
			right++
		} else {
			ratings, err := lab.Rate(t.Context(), f.One.Reference)
			t.Errorf("run %d: two of three layers are on %s, which has to pull %d bytes; the pod went to %s, which pulled %d: %+v %v", i+1, n2, own, ours.Node, ours.Bytes, ratings, err)
		}
		stock := third(names[2], scenario.Stock)
		if stock.Node == n2 {
			rightWithout++
		}
		bytes, bytesWithout = bytes+ours.Bytes, bytesWithout+stock.Bytes
		rows = append(rows, []string{
			fmt.Sprint(i + 1), n1, n2,
			ours.Node, fmt.Sprintf("%.1f s", ours.Pull.Seconds()), livetest.Megabytes(ours.Bytes),
			stock.Node, fmt.Sprintf("%.1f s", stock.Pull.Seconds()), livetest.Megabytes(stock.Bytes),
		})
		must(t, lab.Remove(t.Context(), names[0]))
	}
	livetest.Table(t, append(rows, []string{"all", "", "", fmt.Sprintf("%d of %d", right, runs), "", livetest.Megabytes(bytes), fmt.Sprintf("%d of %d", rightWithout, runs), "", livetest.Megabytes(bytesWithout)})...)
	if n := answered(t) - before; n < runs {
		t.Errorf("layer-extender answered %d times for %d pods", n, 2*runs)
	}
	expectedPods(t)
	if c.Addon(addons.LayerExtender).PID() == 0 {
		t.Error("layer-extender has ended")
	}
}

// TestImageOnOneNode: one of four nodes has a 90 MB image, that 12 pods name as users do.
func TestImageOnOneNode(t *testing.T) {
	livetest.Long(t, "TestAncestor")
	const pods = 12
	provide(t, bringImages(t).ofOtherNode)
	for _, side := range []string{scenario.Layers, scenario.Stock} { // the other one pulls the image to other nodes
		before, err := scenario.Pulled(c, "library/ninety")
		must(t, err)
		names := submit(t, "ninety-"+side, pods, scenario.Pod{Image: ninety, Scheduler: side})
		must(t, lab.Ready(t.Context(), names...))
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		after, err := scenario.Pulled(c, "library/ninety")
		must(t, err)
		bytes, per := after.Total()-before.Total(), scenario.PerNode(nodes)
		t.Logf("%s: pods by node: %v, pulled: %s", side, per, livetest.Megabytes(bytes))
		if side == scenario.Layers && (per[ninetyHolder] != pods || bytes != 0) {
			t.Errorf("%d of %d pods went where the image is, and %d bytes were pulled", per[ninetyHolder], pods, bytes)
		}
		must(t, lab.Drop(t.Context(), names...))
	}
	expectedPods(t)
}
