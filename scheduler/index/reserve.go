package index

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// arriving is a layer on its way to a node.
type arriving struct {
	slot Slot
	// refs counts the reservations that bring it; waiting counts those whose
	// pod has not started yet.
	refs, waiting int32
	// arrived: a pod that needs it runs there.
	arrived bool
	// bytes are part of the node's pending bytes until it has arrived.
	bytes int64
}

// reservation is a placed pod: what it brings to its node.
type reservation struct {
	node   *node
	layers []*layer
	// named has the pod's images if some were expected by name only.
	named    []Wanted
	started  bool
	deadline time.Time
}

// Reserve notes that a pod was placed on a node, which now pulls what it lacks
// of the pod's images. Until the deadline those layers count as arriving there;
// Release, Started, the node's report and its deletion end that earlier. An
// unknown image counts as one piece of unknownBytes (compressed). Reserving a
// pod again on the same node changes nothing. It returns how many bytes of
// known layers the node has to pull because of this pod.
func (x *Index) Reserve(pod types.UID, nodeName string, wanted []Wanted, unknownBytes int64, now, deadline time.Time) (missing int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropExpired(now)
	n := x.nodes[nodeName]
	if r := x.reservations[pod]; r != nil {
		if r.node == n {
			return 0
		}
		x.release(pod, r)
	}
	if n == nil {
		return 0
	}
	r := &reservation{node: n, deadline: deadline}
	u := &x.union
	x.resolve(u, wanted, n.platform)
	for _, p := range u.parts {
		// Held under its name: the kubelet does not pull it.
		if slices.ContainsFunc(p.held, func(nodes []Slot) bool { return has(nodes, n.slot) }) {
			continue
		}
		size := p.size
		if p.layer == nil {
			p.layer = x.layer(p.key, false)
			p.layer.size = size
		}
		if !p.layer.nodes.has(n.slot) {
			if n := x.expect(r, p.layer, size); !p.layer.whole || p.layer.claims.total > 0 {
				missing += n
			}
		}
	}
	for _, image := range u.images {
		if image.key == "" || image.Known != Unknown && image.Known != Arriving {
			continue // known, or no image can be pulled by this name
		}
		l := x.layer(image.key, true)
		if l.claims.total == 0 { // not reported by nodes of another platform
			l.size = unknownBytes
		}
		if !slices.Contains(r.layers, l) {
			x.expect(r, l, unknownBytes)
		}
		r.named = wanted
	}
	if len(r.layers) == 0 {
		return 0
	}
	x.reservations[pod] = r
	n.reservations[pod] = r
	if len(x.reservations) == 1 || deadline.Before(x.nextExpiry) {
		x.nextExpiry = deadline
	}
	return missing
}

// expect notes that a reservation brings a layer of the given size to its node.
// It returns the bytes if the reservation is the first to bring the layer.
func (x *Index) expect(r *reservation, l *layer, bytes int64) (missing int64) {
	i, found := findArriving(l, r.node.slot)
	if !found {
		missing = bytes
		x.pending[r.node.slot] += bytes
		l.arriving = slices.Insert(l.arriving, i, arriving{slot: r.node.slot, bytes: bytes})
	}
	a := &l.arriving[i]
	a.refs++
	a.waiting++
	l.refs++
	r.layers = append(r.layers, l)
	return missing
}

// Started notes that the containers of a pod run: its images are on the node,
// although the node may not have reported them. They count as present until the
// deadline or until the node reports.
func (x *Index) Started(pod types.UID, deadline time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.reservations[pod]
	if r == nil || r.started {
		return
	}
	for _, l := range r.layers {
		a := r.arriving(l)
		a.waiting--
		if !a.arrived {
			a.arrived = true
			x.pending[r.node.slot] -= a.bytes
		}
	}
	r.started = true
	r.deadline = deadline
	if deadline.Before(x.nextExpiry) {
		x.nextExpiry = deadline
	}
}

// Release ends the reservation of a pod that will not start on its node. If the
// pod did start, its images are there, and the reservation stays until the node
// reports or the deadline.
func (x *Index) Release(pod types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.reservations[pod]; r != nil && !r.started {
		x.release(pod, r)
	}
}

// reported ends the expectation of layers that the node now has.
func (x *Index) reported(n *node) {
	for pod, r := range n.reservations {
		r.layers = slices.DeleteFunc(r.layers, func(l *layer) bool {
			if !l.nodes.has(n.slot) && !x.namedOn(r, l) {
				return false
			}
			x.forget(r, l)
			return true
		})
		if len(r.layers) == 0 {
			x.release(pod, r)
		}
	}
}

// namedOn tells whether the node has reported an image that was expected by
// name only, under any of its names and with any layers.
func (x *Index) namedOn(r *reservation, l *layer) bool {
	for _, w := range r.named {
		if len(w.Names) == 0 || wholeKey(w.Names[0]) != l.key {
			continue
		}
		for _, n := range w.Names {
			if known := x.names[n]; known != nil && slices.ContainsFunc(known.records, func(other *record) bool { return has(other.nodes, r.node.slot) }) {
				return true
			}
		}
	}
	return false
}

func (x *Index) release(pod types.UID, r *reservation) {
	for _, l := range r.layers {
		x.forget(r, l)
	}
	delete(x.reservations, pod)
	delete(r.node.reservations, pod)
}

func (x *Index) forget(r *reservation, l *layer) {
	a := r.arriving(l)
	if !r.started {
		a.waiting--
	}
	if a.refs--; a.refs == 0 {
		if !a.arrived {
			x.pending[r.node.slot] -= a.bytes
		}
		i, _ := findArriving(l, r.node.slot)
		l.arriving = slices.Delete(l.arriving, i, i+1)
	}
	x.unref(l)
}

// arriving returns the entry that the reservation has with one of its layers.
func (r *reservation) arriving(l *layer) *arriving {
	i, _ := findArriving(l, r.node.slot)
	return &l.arriving[i]
}

func findArriving(l *layer, s Slot) (int, bool) {
	return slices.BinarySearchFunc(l.arriving, s, func(a arriving, s Slot) int { return cmp.Compare(a.slot, s) })
}

// expire drops reservations whose deadline has passed.
func (x *Index) expire(now time.Time) {
	x.mu.RLock()
	due := x.expiryDue(now)
	x.mu.RUnlock()
	if due {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.dropExpired(now)
	}
}

func (x *Index) expiryDue(now time.Time) bool {
	return len(x.reservations) > 0 && !now.Before(x.nextExpiry)
}

// dropExpired looks at all reservations, but at most once a second.
func (x *Index) dropExpired(now time.Time) {
	if !x.expiryDue(now) {
		return
	}
	var next time.Time
	for pod, r := range x.reservations {
		if !now.Before(r.deadline) {
			x.release(pod, r)
		} else if next.IsZero() || r.deadline.Before(next) {
			next = r.deadline
		}
	}
	if soon := now.Add(time.Second); next.Before(soon) {
		next = soon
	}
	x.nextExpiry = next
}
