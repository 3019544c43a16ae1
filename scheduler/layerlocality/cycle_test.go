package layerlocality

import (
	"fmt"
	"testing"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Every change of a node gives it another generation. The table that remembers them stays
// at most half full, or a look-up would take long or for ever, and does not grow.
func TestNodeCacheIsBounded(t *testing.T) {
	const nodes = 50
	x := index.New()
	var infos []*framework.NodeInfo
	for i := range nodes {
		name := fmt.Sprint("n", i)
		x.SetNode(name, index.Platform{OS: "linux", Architecture: "amd64"})
		info := framework.NewNodeInfo()
		info.SetNode(node(name))
		infos = append(infos, info)
	}
	var m index.Measurement
	x.Measure(nil, index.Rules{}, time.Now(), &m)
	var c nodeCache
	kept := 0
	for round := range 1000 {
		c.prepare(m.Slots(), nodes)
		if c.used > 0 {
			kept++
		}
		for i, info := range infos {
			if i%7 == round%7 {
				info.SetNode(node(info.Node().Name)) // another generation
			}
			known, ok := c.remember(info, &m)
			if slot, _ := m.Slot(info.Node().Name); !ok || known.slot != slot {
				t.Fatalf("round %d: %s has slot %d (known %t), want %d", round, info.Node().Name, known.slot, ok, slot)
			}
		}
		filled := 0
		for _, e := range c.entries {
			if e.generation != 0 {
				filled++
			}
		}
		if size := len(c.entries); filled != c.used || 2*filled > size || size > 16*nodes || size&(size-1) != 0 {
			t.Fatalf("round %d: %d of %d places are taken, %d are counted", round, filled, size, c.used)
		}
	}
	if kept < 900 {
		t.Errorf("in %d of 1000 rounds it remembered something", kept)
	}
	x.SetNode("another", index.Platform{})
	x.Measure(nil, index.Rules{}, time.Now(), &m)
	if c.prepare(m.Slots(), nodes); c.used != 0 {
		t.Errorf("%d nodes are remembered with slots of other nodes", c.used)
	}
}

// A node that changed after PreScore is found by its name, and one that is not in the index
// has nothing.
func TestNodesThatAreNotRemembered(t *testing.T) {
	s := newSuite(t, args(), nodes("empty", "n1"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	known, stranger := framework.NewNodeInfo(), framework.NewNodeInfo()
	known.SetNode(s.nodes[1])
	stranger.SetNode(node("stranger"))
	stranger.Generation = 0
	state := framework.NewCycleState()
	s.plugin.PreScore(s.ctx, state, pod("p", "quay.io/a:1"), []fwk.NodeInfo{known, stranger})
	if missing := s.plugin.stateOf(state).meanMissing; missing != 0 {
		t.Errorf("the nodes lack %f bytes on average, want none: another node is counted", missing)
	}
	for range 2 {
		if got, _ := s.plugin.Score(s.ctx, state, pod("p"), known); got != 100 {
			t.Errorf("n1, which has everything, scores %d", got)
		}
		if got, _ := s.plugin.Score(s.ctx, state, pod("p"), stranger); got != 0 {
			t.Errorf("a node that the index does not have scores %d", got)
		}
		known.SetNode(s.nodes[1]) // another generation
	}
}

// A cycle that ends without Reserve leaves its memory to the next one, with the nodes in it.
// It ends once: two cycles must not share memory.
func TestCycleWithoutReserve(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	made := 0
	s.plugin.cycles.New = func() any { made++; return &cycle{} }
	info := framework.NewNodeInfo()
	info.SetNode(s.nodes[0])
	const rounds = 100
	for range rounds {
		state := framework.NewCycleState()
		s.plugin.PreScore(s.ctx, state, pod("p", "quay.io/a:1"), []fwk.NodeInfo{info})
		if s.plugin.stateOf(state).cycle == nil {
			t.Fatal("PreScore keeps no cycle")
		}
		s.plugin.EndCycle(state)
		s.plugin.EndCycle(state)
		if s.plugin.stateOf(state).cycle != nil {
			t.Fatal("the cycle has not ended")
		}
	}
	if made > rounds/2 { // a sync.Pool drops some, more of them in the race detector
		t.Errorf("%d cycles were made for %d pods, one after the other", made, rounds)
	}
	if s.plugin.cycles.Get() == s.plugin.cycles.Get() {
		t.Error("the same cycle was given back twice")
	}
	s.plugin.EndCycle(framework.NewCycleState()) // it never began
}
