package layerlocality

import (
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// cycle is what is known about all nodes while one pod is scheduled. Its memory
// is used again for the next pod.
type cycle struct {
	measured index.Measurement
	nodes    nodeCache
	balance  locality.Balance
	// meanMissing is what the feasible nodes would have to pull on average, meanScore their
	// mean score.
	meanMissing, meanScore float64
	// best is a feasible node with bestScore, the highest; 0 if none has more.
	best      index.Slot
	bestScore uint8
	// scores are those of the feasible nodes, by slot.
	scores []uint8
	// found is memory that rate uses again.
	found []*cached
}

// rate scores the feasible nodes, for a pod with the given requests (see
// locality.RequestOf).
func (c *cycle) rate(nodes []fwk.NodeInfo, request locality.Resources, profile *locality.Profile) {
	c.nodes.prepare(c.measured.Slots(), len(nodes))
	c.found = c.found[:0]
	var loads locality.Loads
	var delays locality.Delays
	var missing float64
	idle := c.measured.Idle()
	for _, n := range nodes {
		known, ok := c.nodes.remember(n, &c.measured)
		loads.Add(known.load)
		if !ok {
			continue
		}
		bytes := c.measured.At(known.slot)
		missing += float64(bytes.Missing())
		if !idle {
			profile.AddDelay(&delays, bytes)
		}
		c.found = append(c.found, known)
	}
	c.balance = loads.BalanceFor(request, c.measured.MeanTotal(), profile.Args)
	c.meanMissing = missing / float64(max(1, len(nodes)))

	c.scores = slices.Grow(c.scores[:0], c.measured.Slots().Len())[:c.measured.Slots().Len()]
	clear(c.scores)
	c.best, c.bestScore = 0, 0
	var sum uint64
	for _, known := range c.found {
		// Penalties take nothing away from nothing.
		if bytes := c.measured.At(known.slot); bytes.Present+bytes.Arriving > 0 {
			points := profile.Points(bytes, c.balance.LoadPoints(known.load), delays)
			score := uint8(points.Score()) //nolint:gosec // at most 100
			c.scores[known.slot] = score
			sum += uint64(score)
			if score > c.bestScore {
				c.best, c.bestScore = known.slot, score
			}
		}
	}
	c.meanScore = float64(sum) / float64(max(1, len(nodes)))
}

// weights returns what a node has, and its score.
func (c *cycle) weights(slot index.Slot, node string) placements.Weights {
	bytes := c.measured.At(slot)
	w := placements.Weights{
		Node: node, TotalBytes: bytes.Total, PresentBytes: bytes.Present, ArrivingBytes: bytes.Arriving + bytes.Crowded,
		MissingBytes: bytes.Missing(), PendingBytes: bytes.Pending,
	}
	if int(slot) < len(c.scores) {
		w.Score = int64(c.scores[slot])
	}
	return w
}

// score returns the score of a feasible node; 0 for a node that is newer than the index.
func (c *cycle) score(n fwk.NodeInfo) int64 {
	if known, ok := c.nodes.find(n); ok {
		return int64(c.scores[known.slot])
	}
	if slot, ok := c.measured.Slot(n.Node().Name); ok {
		return int64(c.scores[slot])
	}
	return 0
}

func loadOf(n fwk.NodeInfo) locality.Load {
	requested, allocatable := n.GetRequested(), n.GetAllocatable()
	return locality.NewLoad(
		locality.Resources{MilliCPU: requested.GetMilliCPU(), Memory: requested.GetMemory(), Pods: int64(len(n.GetPods()))},
		n.GetNonZeroRequested().GetMilliCPU(),
		locality.Resources{MilliCPU: allocatable.GetMilliCPU(), Memory: allocatable.GetMemory(), Pods: int64(allocatable.GetAllowedPodNumber())})
}

// nodeCache remembers slots and loads of nodes by the generation of their
// NodeInfo, which is unique in the process and changes with every change of the
// node. Nearly all nodes stay the same from one pod to the next, and a look-up by
// generation costs a fraction of finding a name and adding up requests.
//
// In the cycle of a pod group, pods are assumed on nodes whose generation stays: the slot
// holds all the same, and the load if pods are as many and request as much.
type nodeCache struct {
	slots *index.Slots
	// An open-addressed hash table; generation 0 is a free entry.
	entries []cached
	used    int
}

type cached struct {
	generation int64
	slot       index.Slot
	load       locality.Load
}

// prepare makes room for n nodes, and forgets everything if slots changed.
func (c *nodeCache) prepare(slots *index.Slots, n int) {
	if c.slots == slots && 2*(c.used+n) <= len(c.entries) {
		return
	}
	size := 64
	for size < 8*n {
		size *= 2
	}
	if size > len(c.entries) {
		c.entries = make([]cached, size)
	} else {
		clear(c.entries)
	}
	c.slots, c.used = slots, 0
}

// remember adds a node and returns its entry; ok is false for a node that is
// newer than the index. There must be room.
func (c *nodeCache) remember(n fwk.NodeInfo, m *index.Measurement) (known *cached, ok bool) {
	generation := n.GetGeneration()
	known = c.entry(generation)
	if known.generation == generation && generation != 0 {
		if !known.load.Of(len(n.GetPods()), n.GetNonZeroRequested().GetMilliCPU(), n.GetRequested().GetMemory()) {
			known.load = loadOf(n)
		}
		return known, true
	}
	slot, ok := m.Slot(n.Node().Name)
	if !ok || generation == 0 { // not to be remembered
		known = &cached{}
	} else {
		c.used++
	}
	*known = cached{generation, slot, loadOf(n)}
	return known, ok
}

// find returns the entry of a node. It only reads.
func (c *nodeCache) find(n fwk.NodeInfo) (*cached, bool) {
	generation := n.GetGeneration()
	e := c.entry(generation)
	return e, e.generation == generation && generation != 0
}

// entry returns the entry of a generation, or the free entry where it belongs.
func (c *nodeCache) entry(generation int64) *cached {
	mask := uint64(len(c.entries) - 1)                              //nolint:gosec // never empty, a power of 2
	for i := uint64(generation) * 0x9e3779b97f4a7c15 >> 20; ; i++ { //nolint:gosec // any number will do
		if e := &c.entries[i&mask]; e.generation == generation || e.generation == 0 {
			return e
		}
	}
}
