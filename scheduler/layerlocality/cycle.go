package layerlocality

import (
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// cycle is what is known about all nodes while one pod is scheduled. Its memory
// is used again for the next pod.
type cycle struct {
	measured index.Measurement
	nodes    nodeCache
	balance  locality.Balance
	// delays is how late the pod is on the feasible nodes.
	delays locality.Delays
	// meanMissing is what they would have to pull on average.
	meanMissing float64
}

// look visits every feasible node once, for a pod with the given CPU request (see
// locality.RequestOf).
func (c *cycle) look(nodes []fwk.NodeInfo, milliCPU int64, profile *locality.Profile) {
	c.nodes.prepare(c.measured.Slots(), len(nodes))
	var all locality.Loads
	var missing float64
	c.delays = locality.Delays{}
	for _, n := range nodes {
		known, ok := c.nodes.learn(n, &c.measured)
		all.Add(known.load)
		if ok {
			bytes := c.measured.At(known.slot)
			missing += float64(bytes.Missing())
			profile.AddDelay(&c.delays, bytes)
		}
	}
	c.balance = all.BalanceFor(milliCPU, profile.Args)
	c.meanMissing = missing / float64(max(1, len(nodes)))
}

// node returns what a feasible node has, and the points for its load; ok is false
// for a node that is newer than the index.
func (c *cycle) node(n fwk.NodeInfo) (bytes index.NodeBytes, points float64, ok bool) {
	if known, ok := c.nodes.find(n); ok {
		return c.measured.At(known.slot), c.balance.LoadPoints(known.load), true
	}
	bytes, ok = c.measured.Node(n.Node().Name)
	return bytes, c.balance.LoadPoints(loadOf(n)), ok
}

func loadOf(n fwk.NodeInfo) locality.Load {
	return locality.NewLoad(n.GetRequested().GetMilliCPU(), n.GetNonZeroRequested().GetMilliCPU(),
		n.GetAllocatable().GetMilliCPU(), len(n.GetPods()))
}

// nodeCache remembers slots and loads of nodes by the generation of their
// NodeInfo, which is unique in the process and changes with every change of the
// node, except within the cycle of a pod group (see PreScore). Nearly all nodes
// stay the same from one pod to the next, and a look-up by generation costs a
// fraction of finding a name and adding up requests.
type nodeCache struct {
	slots *index.Slots
	// An open-addressed hash table; generation 0 is a free place.
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

// learn remembers a node and returns its entry; ok is false for a node that is
// newer than the index. There must be room.
func (c *nodeCache) learn(n fwk.NodeInfo, m *index.Measurement) (known cached, ok bool) {
	known.generation = n.GetGeneration()
	e := c.place(known.generation)
	if e.generation == known.generation && known.generation != 0 {
		return *e, true
	}
	known.load = loadOf(n)
	if known.slot, ok = m.Slot(n.Node().Name); ok && known.generation != 0 {
		*e = known
		c.used++
	}
	return known, ok
}

// find returns the entry of a node. It only reads.
func (c *nodeCache) find(n fwk.NodeInfo) (*cached, bool) {
	generation := n.GetGeneration()
	e := c.place(generation)
	return e, e.generation == generation && generation != 0
}

// place returns the entry of a generation, or the free entry where it belongs.
func (c *nodeCache) place(generation int64) *cached {
	mask := uint64(len(c.entries) - 1)                              //nolint:gosec // never empty, a power of 2
	for i := uint64(generation) * 0x9e3779b97f4a7c15 >> 20; ; i++ { //nolint:gosec // any number will do
		if e := &c.entries[i&mask]; e.generation == generation || e.generation == 0 {
			return e
		}
	}
}
