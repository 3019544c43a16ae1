package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// digestOf returns a digest that a NodeLayers can have.
func digestOf(name string) string { return fmt.Sprintf("sha256:%064x", name) }

// withDigests makes an image as imageOf does, with valid digests.
func withDigests(name string, layers ...any) dataset.Image {
	image := imageOf(name, layers...)
	for k := range image.Layers {
		image.Layers[k].Digest = digestOf(image.Layers[k].Digest)
	}
	return image
}

// pointsFor returns the points of LayerLocality for a pod on the first node.
func (r *run) pointsFor(t *testing.T, image string) int64 {
	t.Helper()
	return r.scored(t, "LayerLocality", r.newPod(image, "", 1, 1, false, ""))["n000"]
}

// untilTime plays until a moment.
func (r *run) untilTime(at time.Duration) {
	for len(r.q.pending) > 0 && r.q.pending[0].at <= at {
		r.q.next()
	}
	r.q.now = at
}

// An agent reports what NodeStatus does not: all images with their layers, seconds after a change.
// What it writes in what time was computed by hand from Model.
func TestAgent(t *testing.T) {
	nodes := nodesOf(2)
	var images []dataset.Image
	for k := range 60 {
		name := fmt.Sprintf("quay.io/held:%02d", k)
		images = append(images, withDigests(name, "base", 60, name, 60+k)) // the smallest are not listed in NodeStatus
		nodes[0].Holds = append(nodes[0].Holds, name)
	}
	images = append(images, withDigests("quay.io/new:1", "new", 60), withDigests("quay.io/small:1", "quay.io/held:00", 60))
	for _, test := range []struct {
		policy string
		want   int64
	}{
		{"layerlocality-no-resolver:nodes=names", 0},
		{"layerlocality-no-resolver:nodes=agent", 100},
	} {
		r := begin(t, test.policy, &workload.Plan{Nodes: nodes, Images: images}, nil)
		r.untilTime(time.Minute)
		if got := r.pointsFor(t, "quay.io/held:00"); got != test.want {
			t.Errorf("%s: %d points for an image that is not among the 50 largest, want %d", test.policy, got, test.want)
		}
	}
	r := begin(t, "layerlocality:nodes=agent", &workload.Plan{Nodes: nodes, Images: images}, nil)
	m := r.order[1]
	r.untilTime(time.Minute)
	var writes []time.Duration
	at := func(at time.Duration, name string) {
		r.untilTime(at)
		m.hold(r.images[name], name)
	}
	at(70*time.Second, "quay.io/new:1")
	at(71*time.Second, "quay.io/held:00") // the same write, at 71.2 s
	at(72*time.Second, "quay.io/held:01") // 5 s after that
	for len(r.q.pending) > 0 && r.q.pending[0].at < 2*time.Minute {
		due := m.agent.due
		r.q.next()
		if due && !m.agent.due {
			writes = append(writes, r.q.now)
		}
	}
	if want := []time.Duration{76200 * time.Millisecond}; !slices.Equal(writes, want) {
		t.Errorf("written at %v after the first one, want %v", writes, want)
	}
}

// Nodes that use layers in chains pull a layer again above others: A=[1 2] B=[1 3] C=[4 1], one
// after another on one node, and what is known of it beforehand is what it pulls.
func TestChains(t *testing.T) {
	images := []dataset.Image{withDigests("quay.io/a:1", "1", 60, "2", 30), withDigests("quay.io/b:1", "1", 60, "3", 20), withDigests("quay.io/c:1", "4", 10, "1", 60)}
	var events []workload.Event
	for k, image := range images {
		events = append(events, workload.Event{At: time.Duration(k+1) * time.Hour, Pod: podOf(image.Image, 100, 0)})
	}
	for reuse, want := range map[string]int64{"digest": 60 + 30 + 20 + 10, "chain": 60 + 30 + 20 + 10 + 60} {
		r := begin(t, "layerlocality:nodes=agent:reuse="+reuse, &workload.Plan{Nodes: nodesOf(1), Images: images, Events: events}, nil)
		if m := r.playAll(t, nil); m.PulledBytes != want*mb || m.DistinctBytes != 120*mb {
			t.Errorf("%s: %d bytes pulled, %d distinct; want %d MB, 120 MB", reuse, m.PulledBytes, m.DistinctBytes, want)
		}
	}
	// Two nodes, one has B: to the plugin, C has nothing there on Chain nodes.
	for reuse, want := range map[string]bool{"digest": true, "chain": false} {
		nodes := nodesOf(2)
		nodes[0].Holds = []string{"quay.io/b:1"}
		r := begin(t, "layerlocality:minImageBytes=1:nodes=agent:reuse="+reuse, &workload.Plan{Nodes: nodes, Images: images}, nil)
		r.use("quay.io/c:1")
		r.use("quay.io/a:1")
		r.untilTime(time.Minute)
		if got := r.pointsFor(t, "quay.io/c:1") > 0; got != want {
			t.Errorf("%s: C has points where B is: %t", reuse, got)
		}
		if r.pointsFor(t, "quay.io/a:1") == 0 {
			t.Errorf("%s: A has no points where B is", reuse)
		}
	}
}
