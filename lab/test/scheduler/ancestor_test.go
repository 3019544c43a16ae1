//go:build e2e

package scheduler

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// layerBytes is the size of the layers of the scenario's images.
const layerBytes = 10_000_000

// TestAncestor is the scenario of the project's ancestor. Img1 = L1 L2 L3 runs on
// one node, and every pod fills a node. A second node once ran Img2 = L1 L2 L4, a
// third one ran neither. The next pod with Img1 should go to the second node.
//
// Every run has its own images, so that nothing is there from the run before, and
// another node in each role. Both schedulers find the same state, because what
// the third pod brought is removed again.
func TestAncestor(t *testing.T) {
	runs := 4 // each takes some ten seconds
	if os.Getenv("FULL") != "" {
		runs = 10
	}
	use(t, "n1", "n2", "n3")
	cpu, err := lab.FillingCPU(t.Context())
	must(t, err)
	families := pushFamilies(t, "family", runs)
	roles := func(i int) (n1, n2 string) { return c.Nodes()[i%3].Name, c.Nodes()[(i+1)%3].Name }
	setBandwidth(t, 0) // only the third pods' pulls matter here
	var all []placement
	for i, f := range families {
		n1, n2 := roles(i)
		all = append(all, placement{Node: n1, Reference: f.One.Reference, Image: f.One}, placement{Node: n2, Reference: f.Two.Reference, Image: f.Two})
	}
	provide(t, all...)
	setBandwidth(t, bandwidth)

	results := map[string][]scenario.Start{}
	right := map[string]int{}
	for i, f := range families {
		n1, n2 := roles(i)
		names := scenario.Names(fmt.Sprintf("family-%d", i+1), 3)
		removeAtEnd(t, names...)
		first, err := lab.Start(t.Context(), scenario.Pod{
			Name: names[0], Image: f.One.Reference, Scheduler: scenario.Layers, MilliCPU: cpu,
		}, f.One)
		must(t, err)
		if first.Node != n1 || first.Bytes != 0 {
			t.Errorf("run %d: all of the first pod's image is on %s, and it went to %s, which pulled %d bytes", i+1, n1, first.Node, first.Bytes)
		}
		for j, scheduler := range []string{scenario.Layers, scenario.Stock} {
			third, err := lab.Try(t.Context(), scenario.Pod{
				Name: names[1+j], Image: f.One.Reference, Scheduler: scheduler, MilliCPU: cpu,
			}, f.One)
			must(t, err)
			results[scheduler] = append(results[scheduler], third)
			if third.Node == n2 {
				right[scheduler]++
				checkOwnLayerOnly(t, f, third)
			} else if scheduler == scenario.Layers {
				ratings, err := lab.Rate(t.Context(), f.One.Reference)
				t.Errorf("run %d: two of three layers are on %s, and the pod went to %s: %+v %v", i+1, n2, third.Node, ratings, err)
			}
		}
		must(t, lab.Remove(t.Context(), names[0]))
	}
	report(t, results, roles)
	t.Logf("third pods on the node with two of three layers: ours %d of %d, stock %d of %d",
		right[scenario.Layers], runs, right[scenario.Stock], runs)
}

// TestAncestorImmediately does not wait for the second node to report: the
// scheduler sees that a pod started there, and has the layers of its image from
// another node.
func TestAncestorImmediately(t *testing.T) {
	livetest.Long(t, "TestAncestor, and TestBurst for layers on their way")
	const runs = 2
	use(t, "n1", "n2", "n3")
	cpu, err := lab.FillingCPU(t.Context())
	must(t, err)
	families := pushFamilies(t, "soon", runs)
	var all []placement
	for _, f := range families {
		all = append(all, placement{Node: "n4", Reference: f.One.Reference, Image: f.One}, placement{Node: "n4", Reference: f.Two.Reference, Image: f.Two})
	}
	provide(t, all...)

	for i, f := range families {
		names := scenario.Names(fmt.Sprintf("soon-%d", i+1), 3)
		removeAtEnd(t, names...)
		pod := func(i int, image *images.Pushed) scenario.Pod {
			return scenario.Pod{Name: names[i], Image: image.Reference, Scheduler: scenario.Layers, MilliCPU: cpu}
		}
		must(t, lab.Submit(t.Context(), pod(0, f.One), pod(1, f.Two)))
		must(t, lab.Ready(t.Context(), names[:2]...))
		nodes, err := lab.Placed(t.Context(), names[:2]...)
		must(t, err)
		n1, n2 := nodes[names[0]], nodes[names[1]]
		must(t, lab.Remove(t.Context(), names[1]))
		unstated := stated(t.Context(), placement{Node: n2, Reference: f.Two.Reference, Image: f.Two})
		third, err := lab.Start(t.Context(), pod(2, f.One), f.One)
		must(t, err)
		t.Logf("run %d: Img1 on %s, Img2 on %s (NodeStatus: %v); the third pod: %s, %.1f s, %s",
			i+1, n1, n2, unstated, third.Node, third.Pull.Seconds(), livetest.Megabytes(third.Bytes))
		if third.Node != n2 {
			ratings, err := lab.Rate(t.Context(), f.One.Reference)
			t.Errorf("run %d: the third pod went to %s: %+v %v", i+1, third.Node, ratings, err)
		} else {
			checkOwnLayerOnly(t, f, third)
		}
		must(t, lab.Remove(t.Context(), names...))
	}
}

// pushFamilies pushes images that share no layers with other tests.
func pushFamilies(t *testing.T, name string, n int) []scenario.Family {
	t.Helper()
	families := make([]scenario.Family, n)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(2)
	for i := range families {
		group.Go(func() (err error) {
			families[i], err = scenario.PushFamily(ctx, c, fmt.Sprintf("%s-%d", name, i+1), layerBytes)
			return err
		})
	}
	must(t, group.Wait())
	return families
}

// checkOwnLayerOnly checks that only L3 of Img1 was pulled, which Img2 lacks.
func checkOwnLayerOnly(t *testing.T, f scenario.Family, start scenario.Start) {
	t.Helper()
	const config = 64 << 10 // at most; it is pulled too
	own := f.One.Layers[len(f.One.Layers)-1].Size
	if start.Bytes < own || start.Bytes > own+config {
		t.Errorf("%s: %s pulled %d bytes, the layer it lacked has %d", f.One.Reference, start.Node, start.Bytes, own)
	}
}

func report(t *testing.T, results map[string][]scenario.Start, roles func(int) (string, string)) {
	t.Helper()
	rows := [][]string{{"run", "Img1 runs on", "L1 L2 are on", "ours", "pull", "bytes", "stock", "pull", "bytes"}}
	var seconds, bytes [2]float64
	for i := range results[scenario.Layers] {
		n1, n2 := roles(i)
		row := []string{fmt.Sprint(i + 1), n1, n2}
		for side, scheduler := range []string{scenario.Layers, scenario.Stock} {
			start := results[scheduler][i]
			row = append(row, start.Node, fmt.Sprintf("%.1f s", start.Pull.Seconds()), livetest.Megabytes(start.Bytes))
			seconds[side] += start.Pull.Seconds()
			bytes[side] += float64(start.Bytes)
		}
		rows = append(rows, row)
	}
	row := []string{"all", "", ""}
	for side := range seconds {
		row = append(row, "", fmt.Sprintf("%.1f s", seconds[side]), livetest.Megabytes(int64(bytes[side])))
	}
	livetest.Table(t, append(rows, row)...)
}
