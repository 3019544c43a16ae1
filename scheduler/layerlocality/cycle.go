package layerlocality

import (
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// cycle is what is known of all nodes while one pod is scheduled. Its memory is
// used again for the next.
type cycle struct {
	weights index.Weights
	nodes   nodeCache
	// cpu has the requested CPU of the feasible nodes, by slot, in percent.
	cpu []float64
	// meanCPU is their mean.
	meanCPU float64
}

// look looks once at every feasible node.
func (c *cycle) look(nodes []fwk.NodeInfo) {
	c.nodes.prepare(c.weights.Numbers(), len(nodes))
	if c.weights.Slots() > len(c.cpu) {
		c.cpu = make([]float64, c.weights.Slots())
	}
	var sum float64
	for _, n := range nodes {
		percent := cpuPercent(n)
		sum += percent
		if s, ok := c.nodes.learn(n, &c.weights); ok {
			c.cpu[s] = percent
		}
	}
	c.meanCPU = 0
	if len(nodes) > 0 {
		c.meanCPU = sum / float64(len(nodes))
	}
}

// node returns what a feasible node has, and by how many percent its requested
// CPU exceeds the mean; ok is false for a node that is newer than the index.
func (c *cycle) node(n fwk.NodeInfo) (weight index.Weight, excess float64, ok bool) {
	s, ok := c.nodes.find(n)
	if !ok {
		if s, ok = c.weights.Slot(n.Node().Name); !ok {
			return index.Weight{}, 0, false
		}
		return c.weights.At(s), cpuPercent(n) - c.meanCPU, true
	}
	return c.weights.At(s), c.cpu[s] - c.meanCPU, true
}

// cpuPercent is how much of a node's CPU is requested, counted as in
// kube-scheduler's own scoring: a container without a request has 100m.
func cpuPercent(n fwk.NodeInfo) float64 {
	allocatable := n.GetAllocatable().GetMilliCPU()
	if allocatable <= 0 {
		return 0
	}
	return 100 * float64(n.GetNonZeroRequested().GetMilliCPU()) / float64(allocatable)
}

// nodeCache remembers the slots of nodes by the generation of their NodeInfo,
// which is unique in the process and changes with every change of the node. From
// one pod to the next nearly all stay, and finding a number costs a fraction of
// finding a name: with that, a Score takes a third of the time.
type nodeCache struct {
	numbers *index.Numbers
	// An open-addressed hash table; generation 0 is a free place.
	entries []cached
	used    int
}

type cached struct {
	generation int64
	slot       index.Slot
}

// prepare makes room for n nodes, and forgets what is known if slots changed.
func (c *nodeCache) prepare(numbers *index.Numbers, n int) {
	if c.numbers == numbers && 2*(c.used+n) <= len(c.entries) {
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
	c.numbers, c.used = numbers, 0
}

// learn returns the slot of a node and remembers it. There must be room.
func (c *nodeCache) learn(n fwk.NodeInfo, weights *index.Weights) (index.Slot, bool) {
	generation := n.GetGeneration()
	e := c.place(generation)
	if e.generation == generation && generation != 0 {
		return e.slot, true
	}
	slot, ok := weights.Slot(n.Node().Name)
	if ok && generation != 0 {
		*e = cached{generation, slot}
		c.used++
	}
	return slot, ok
}

// find returns the slot of a node that was learned. It only reads.
func (c *nodeCache) find(n fwk.NodeInfo) (index.Slot, bool) {
	generation := n.GetGeneration()
	e := c.place(generation)
	return e.slot, e.generation == generation && generation != 0
}

// place returns the entry of a generation, or the free one where it belongs.
func (c *nodeCache) place(generation int64) *cached {
	mask := uint64(len(c.entries) - 1)                              //nolint:gosec // never empty, a power of 2
	for i := uint64(generation) * 0x9e3779b97f4a7c15 >> 20; ; i++ { //nolint:gosec // any number will do
		if e := &c.entries[i&mask]; e.generation == generation || e.generation == 0 {
			return e
		}
	}
}
