//go:build e2e

package scheduler

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestSharedPulls starts pods of one image at once on one node, each with a cgroup of its
// own, as kubelets do by default. Ours pulls the image once; upstream's CRI-O pulls it for
// each pod where pulls run in parallel, as docs/evaluation.md states and the simulator
// takes for granted. With serializeImagePulls, the default, it is pulled once by either.
func TestSharedPulls(t *testing.T) {
	const imageBytes = 30_000_000
	n := c.Node("n4")
	rows := [][]string{{"CRI-O", "serializeImagePulls", "pods", "bytes pulled", "images' bytes"}}
	configure := func(flavour cluster.Flavour, serial bool) {
		t.Helper()
		must(t, n.Kubelet().Stop(t.Context()))
		must(t, n.Runtime().Restart(t.Context(), func(s *cluster.Component) { s.Flavour = flavour }))
		must(t, n.Kubelet().Start(t.Context(), serialPulls(serial)))
	}
	for _, test := range []struct {
		flavour     cluster.Flavour
		serial      bool
		pods, times int64
	}{
		{cluster.Patched, false, 20, 1},
		{cluster.Patched, true, 8, 1},
		{cluster.Stock, true, 3, 1},
		{cluster.Stock, false, 3, 3},
	} {
		name := fmt.Sprintf("shared:%s-%t", test.flavour, test.serial)
		image := hubImage(t, name, imageBytes, 2)
		configure(test.flavour, test.serial)
		before, err := scenario.Pulled(c, "library/shared")
		must(t, err)
		if test.times > 1 { // all of them have to begin before the first one ends
			must(t, n.SetBandwidth(30_000_000))
		}
		names := submit(t, fmt.Sprintf("shared-%s-%t", test.flavour, test.serial), int(test.pods), scenario.Pod{Image: name, Node: n.Name})
		must(t, lab.Ready(t.Context(), names...))
		must(t, n.SetBandwidth(bandwidth))
		after, err := scenario.Pulled(c, "library/shared")
		must(t, err)
		pulled := after[n.Name] - before[n.Name]
		rows = append(rows, []string{string(test.flavour), fmt.Sprint(test.serial), fmt.Sprint(test.pods), livetest.Megabytes(pulled), livetest.Megabytes(size(image))})
		if want := test.times * size(image); pulled < want || pulled > want+scenario.Measured {
			t.Errorf("%s, serializeImagePulls %t: %d pods pulled %d bytes of an image of %d, want it %d times", test.flavour, test.serial, test.pods, pulled, size(image), test.times)
		}
		must(t, lab.Remove(t.Context(), names...))
	}
	configure(cluster.Patched, false)
	livetest.Table(t, rows...)
}

// serialPulls has a kubelet pull one image after another, or not.
func serialPulls(serial bool) func(*cluster.Component) {
	return func(s *cluster.Component) { s.Config = with(s.Config, "serializeImagePulls", serial) }
}

// with returns a configuration with one value changed.
func with(config map[string]any, key string, value any) map[string]any {
	changed := map[string]any{key: value}
	for k, v := range config {
		if k != key {
			changed[k] = v
		}
	}
	return changed
}
