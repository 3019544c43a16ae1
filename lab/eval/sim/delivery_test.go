package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// wantStarts compares start-up times, sorted, in seconds.
func (r *run) wantStarts(t *testing.T, want ...float64) {
	t.Helper()
	got := slices.Sorted(slices.Values(r.startups))
	if !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }) {
		t.Errorf("started after %v s, want %v", got, want)
	}
}

// Times were computed by hand: links of 6 MB/s, 60 MB/s between nodes.
func TestPeers(t *testing.T) {
	base, app := imageOf("base", "S", 60), imageOf("app", "S", 60, "app", 6)
	apart := func(replicas int) []workload.Event {
		return []workload.Event{{Deploy: &workload.Deployment{Name: "d", Image: "app", Replicas: replicas, MilliCPU: 3000, Apart: true}}}
	}
	for name, test := range map[string]struct {
		holders  int // nodes that hold the base and have no room
		others   int
		joins    Joins
		events   []workload.Event
		starts   []float64
		pulled   int64 // MB
		fromPeer int64
	}{
		// S comes from the other node in 1 s, app from the registry in 1 s.
		"from another node": {1, 1, JoinImages, apart(1), []float64{1}, 66, 60},
		// Two share what the holder sends.
		"shared":      {1, 2, JoinImages, apart(2), []float64{2, 2}, 132, 120},
		"two holders": {2, 2, JoinImages, apart(2), []float64{1, 1}, 132, 120},
		// Nobody has it when they begin: S and app share the link, 1 MB of app a third of a second.
		"at once": {0, 2, JoinImages, apart(2), []float64{11, 11}, 132, 0},
		// app is there, and the node that waits 20 s gets all from the first.
		"later": {0, 2, JoinImages, []workload.Event{
			{Pod: podOf("app", 3000, 0)}, {At: 20 * time.Second, Pod: podOf("app", 3000, 0)},
		}, []float64{1.1, 11}, 132, 66},
		// Two images of one node get the layer once.
		"layers joined": {1, 1, JoinLayers, []workload.Event{{Pod: podOf("app", 1000, 0)}, {Pod: podOf("other", 1000, 0)}}, []float64{2, 2}, 72, 60},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := nodesOf(test.holders + test.others)
			for i := range test.holders {
				nodes[i].Holds, nodes[i].MilliCPU = []string{"base"}, 1
			}
			r := begin(t, "default:images=peers", &workload.Plan{
				Nodes: nodes, Images: []dataset.Image{base, app, imageOf("other", "S", 60, "other", 6)}, Events: test.events,
			}, func(m *Model) { m.PeerLink, m.Joins = 60*mb, test.joins })
			m := r.playAll(t, nil)
			r.wantStarts(t, test.starts...)
			if m.PulledBytes != test.pulled*mb || m.PeerBytes != test.fromPeer*mb {
				t.Errorf("%d MB pulled, %d from peers; want %d, %d", m.PulledBytes/mb, m.PeerBytes/mb, test.pulled, test.fromPeer)
			}
			if len(r.lan.flows) > 0 {
				t.Errorf("%d transfers are left", len(r.lan.flows))
			}
		})
	}
}

func TestAhead(t *testing.T) {
	images := []dataset.Image{imageOf("a", "S", 6, "a", 6), imageOf("b", "S", 6, "b", 6), imageOf("alias", "S", 6, "a", 6)}
	at := func(minutes int, image string) workload.Event {
		return workload.Event{At: time.Duration(minutes) * time.Minute, Pod: podOf(image, 100, 0)}
	}
	for name, test := range map[string]struct {
		events []workload.Event
		starts []float64
		pulled int64 // MB, of three nodes
	}{
		"there before the pod": {[]workload.Event{at(20, "a")}, []float64{0}, 36},
		"at the start":         {[]workload.Event{at(0, "a"), at(5, "a")}, []float64{0, 2}, 36},
		// The one that also has a pod's pull downloads S twice, as it does for two pods.
		"two at once":             {[]workload.Event{at(0, "a"), at(0, "b")}, []float64{4, 4}, 66},
		"layers once":             {[]workload.Event{at(20, "a"), at(30, "b"), at(40, "alias")}, []float64{0, 0, 0}, 54},
		"also after the last pod": {[]workload.Event{at(0, "a")}, []float64{2}, 36},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := nodesOf(3)
			nodes[2].MilliCPU, nodes[2].Link = 1, mb // no room for a pod, and slow
			r := begin(t, "default:images=ahead", &workload.Plan{Nodes: nodes, Images: images, Events: test.events}, nil)
			m := r.playAll(t, nil)
			r.wantStarts(t, test.starts...)
			if m.PulledBytes != test.pulled*mb {
				t.Errorf("%d MB pulled, want %d", m.PulledBytes/mb, test.pulled)
			}
			for _, machine := range r.order {
				if machine.earlyPull != nil || len(machine.early)+len(machine.pulls) > 0 {
					t.Errorf("%s still pulls", machine.Name)
				}
			}
		})
	}
}

// What is pulled ahead leaves the kubelet all its pulls, and no more.
func TestAheadBesideOthers(t *testing.T) {
	b := newBench(t, func(m *Model, _ *workload.Node) { m.Pulls = 1 })
	for _, name := range []string{"a", "b", "c", "d"} {
		b.image(name, name, 6)
	}
	b.pullAhead(b.images["a"], "a")
	b.pullAhead(b.images["b"], "b")
	first, second := b.pull(0, "c"), b.pull(0, "d")
	b.until(seconds(0.5))
	if len(b.flows) != 2 {
		t.Errorf("%d downloads, want one ahead and one of the kubelet", len(b.flows))
	}
	b.until(time.Minute)
	b.near("c", first, 2)
	b.near("d", second, 4) // beside b
	if b.pulled != 24*mb {
		t.Errorf("%d bytes pulled, want 24 MB", b.pulled)
	}
}

func TestLazy(t *testing.T) {
	r := begin(t, "default:images=lazy", &workload.Plan{
		Nodes: nodesOf(1), Images: []dataset.Image{imageOf("a", "S", 60), imageOf("b", "S", 60, "b", 30)},
		Events: []workload.Event{
			{Pod: podOf("a", 100, 0)},                  // a tenth of 60 MB, and 0.5 s to find it
			{At: time.Minute, Pod: podOf("a", 100, 0)}, // there
			{At: time.Minute, Pod: podOf("b", 100, 0)}, // a tenth of 30 MB
		},
	}, func(m *Model) { m.LazyShare, m.LazyDelay, m.UnpackLayer = 0.1, 500*time.Millisecond, time.Second })
	m := r.playAll(t, nil)
	r.wantStarts(t, 0, 1, 1.5)
	if m.PulledBytes != 90*mb || m.DiskBytes != 90*mb {
		t.Errorf("%d MB pulled, %d on disk, want all 90", m.PulledBytes/mb, m.DiskBytes/mb)
	}
}

// Nodes that run a Deployment pull its next version: before the rollout, if its tag has moved; then beside it, with one fewer
// than replicas. Pods go where the version is, or comes. The first pod of an image waits 0.1 s for its manifest.
func TestPrefetch(t *testing.T) {
	images := []dataset.Image{imageOf("v1", "S", 198, "1", 6), imageOf("v2", "S", 198, "2", 60)}
	for name, test := range map[string]struct {
		policy   string
		replicas int
		apart    bool
		lead     time.Duration
		starts   []float64
		pulled   int64 // MB
	}{
		"alone":                  {"layerlocality", 1, false, 0, []float64{10.1, 34.1}, 264},
		"there before the pod":   {"layerlocality:images=tag", 1, false, 15 * time.Second, []float64{0, 34.1}, 264},
		"half of it":             {"layerlocality:images=tag", 1, false, 5 * time.Second, []float64{5, 34.1}, 264},
		"two, apart, alone":      {"layerlocality", 2, true, 0, []float64{10, 34.1, 34.1, 43.1}, 726},
		"the second is prepared": {"layerlocality:images=template", 2, true, 0, []float64{0, 34.1, 34.1, 43.1}, 726},
	} {
		t.Run(name, func(t *testing.T) {
			deploy := func(at time.Duration, image string) workload.Event {
				return workload.Event{At: at, Deploy: &workload.Deployment{Name: "d", Image: image, Replicas: test.replicas, MilliCPU: 100, Apart: test.apart}}
			}
			r := begin(t, test.policy, &workload.Plan{Nodes: nodesOf(3), Images: images, Events: []workload.Event{deploy(0, "v1"), deploy(10*time.Minute, "v2")}},
				func(m *Model) { m.Joins, m.TagLead, m.PrefetchDelay = JoinImages, test.lead, 0 })
			m := r.playAll(t, nil)
			r.wantStarts(t, test.starts...)
			if m.PulledBytes != test.pulled*mb || m.Pods != 2*test.replicas {
				t.Errorf("%d MB pulled for %d pods, want %d for %d", m.PulledBytes/mb, m.Pods, test.pulled, 2*test.replicas)
			}
			for range 1000 { // what is left to do
				r.q.next()
			}
			if left := len(r.scheduler.Pods.GetIndexer().List()); left != test.replicas || r.prefetching != 0 {
				t.Errorf("%d pods are left, and %d pull", left, r.prefetching)
			}
		})
	}
}

// A node that joins pulls what pods on half of the other nodes have; the first pod there then starts sooner, or at once.
func TestPrefetchOnNewNode(t *testing.T) {
	joining := nodesOf(4)[3]
	for name, test := range map[string]struct {
		policy string
		pod    time.Duration // after the node
		want   float64       // seconds
		pulled int64         // MB
	}{
		"alone":            {"default", time.Minute, 20, 480},
		"there":            {"default:images=node", time.Minute, 0, 480},
		"a pod was sooner": {"default:images=node", 10 * time.Second, 10, 480},
	} {
		t.Run(name, func(t *testing.T) {
			events := []workload.Event{
				{Deploy: &workload.Deployment{Name: "d", Image: "everywhere", Replicas: 3, MilliCPU: 2500, Apart: true}},
				{Deploy: &workload.Deployment{Name: "e", Image: "seldom", Replicas: 1, MilliCPU: 100}},
				{At: 10 * time.Minute, Join: &joining},
				{At: 10*time.Minute + test.pod, Pod: podOf("everywhere", 2000, 0)},
			}
			r := begin(t, test.policy, &workload.Plan{Nodes: nodesOf(3), Images: []dataset.Image{imageOf("everywhere", "e", 120), imageOf("seldom", "s", 6)}, Events: events},
				func(m *Model) { m.Joins = JoinImages })
			m := r.playAll(t, nil)
			if math.Abs(m.StartupNew-test.want) > 1e-6 || m.PulledBytes != (test.pulled+6)*mb {
				t.Errorf("the first pod starts after %g s, and %d MB are pulled, want %g and %d", m.StartupNew, m.PulledBytes/mb, test.want, test.pulled+6)
			}
		})
	}
}

// After the history another policy places pods, on what the first one left behind, and only
// then metrics count.
func TestHistory(t *testing.T) {
	plan := &workload.Plan{
		Nodes:   nodesOf(6),
		Images:  []dataset.Image{imageOf("a", "S", 200, "a", 6), imageOf("b", "S", 200, "b", 6), imageOf("c", "c", 6)},
		History: 10 * time.Minute,
		Events: []workload.Event{
			{At: 0, Pod: podOf("a", 100, 0)},
			{At: time.Minute, Deploy: &workload.Deployment{Name: "d", Image: "c", Replicas: 1, MilliCPU: 100}},
			{At: 10 * time.Minute, Pod: podOf("b", 100, 0)},
			{At: 11 * time.Minute, Deploy: &workload.Deployment{Name: "d", Image: "c", Replicas: 2, MilliCPU: 100}},
		},
	}
	for _, policy := range []string{"layerlocality:history=default", "layerlocality", "greedy:history=layerlocality"} {
		t.Run(policy, func(t *testing.T) {
			r := begin(t, policy, plan, nil)
			before := r.policy.Name
			var first *machine
			m := r.playAll(t, func() {
				for _, m := range r.order {
					if first == nil && m.pods > 0 {
						first = m
					}
				}
			})
			chosen, _ := ParsePolicy(policy)
			if chosen.History != nil && before != chosen.History.Name || r.policy.Name != policy {
				t.Errorf("%s placed the first pod, %s the last", before, r.policy.Name)
			}
			if first.images[r.images["b"]] == nil {
				t.Error("the pod with b is not where its base is")
			}
			if m.Pods != 2 || len(r.startups) != 2 || m.Unstarted != 0 || m.PulledBytes > 12*mb || m.DistinctBytes != 6*mb {
				t.Errorf("%d pods, %d starts, %d not started, %d bytes, %d distinct; want only what came after the history",
					m.Pods, len(r.startups), m.Unstarted, m.PulledBytes, m.DistinctBytes)
			}
			if total := fmt.Sprint(r.created, len(r.scheduler.Pods.GetIndexer().List())); total != "4 4" {
				t.Errorf("%s pods were made and are known to the last scheduler, want all 4", total)
			}
		})
	}
}

func TestDistinctBytes(t *testing.T) {
	holding := nodesOf(1)[0]
	holding.Holds = []string{"held"}
	joining := nodesOf(2)[1]
	joining.Holds = []string{"brought"}
	r := begin(t, "default", &workload.Plan{
		Nodes: []workload.Node{holding},
		Images: []dataset.Image{
			imageOf("held", "h", 1), imageOf("brought", "j", 2), imageOf("unused", "u", 4),
			imageOf("a", "h", 1, "j", 2, "S", 8, "a", 16), imageOf("b", "S", 8, "b", 32), imageOf("none", "n", 64),
		},
		Events: []workload.Event{
			{Pod: podOf("a", 1, 0)}, {Pod: podOf("a", 1, 0)}, {At: 1, Join: &joining},
			{At: 2, Deploy: &workload.Deployment{Name: "d", Image: "b", Replicas: 3}},
			{At: 3, Deploy: &workload.Deployment{Name: "e", Image: "none"}},
		},
	}, nil)
	if m := r.playAll(t, nil); m.DistinctBytes != (8+16+32)*mb {
		t.Errorf("%d MB, want S, a and b once", m.DistinctBytes/mb)
	}
}
