package index

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/imageref"
)

// Rules are how downloads count.
type Rules struct {
	// MaxWaiting is how many pods may wait on a node for a layer: as long as there are
	// fewer, it counts as arriving for the next pod.
	MaxWaiting int32
	// UnknownBytes is the (compressed) size that an image has while nothing is known
	// about it.
	UnknownBytes int64
	// JoinsDownloads means that nodes without a value of their own (see SetJoins) download a layer
	// once although several images need it. Otherwise a layer on its way is of use only to pods
	// with the same image: the pull of another image does not see it before it is there.
	JoinsDownloads bool
}

// arriving is a layer on its way to a node.
type arriving struct {
	slot Slot
	// image is the key of the image whose pull brings it; empty if all pulls share
	// downloads.
	image string
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
	brings []brought
	// named has the pod's images if some are expected by name only.
	named    []Wanted
	started  bool
	deadline time.Time
}

// brought is a layer that a pod brings, with the key of the image (see arriving).
type brought struct {
	*layer
	image string
}

// Reserve notes that a pod was placed on a node, which now pulls what it lacks
// of the pod's images. Until the deadline those layers count as arriving there;
// Release, Started, the node's report and its deletion end that earlier. An
// unknown image counts as one piece of Rules.UnknownBytes. Reserving
// a pod again on the same node changes nothing. It returns how many bytes of known
// layers the node has to pull because of this pod.
func (x *Index) Reserve(pod types.UID, nodeName string, wanted []Wanted, rules Rules, now, deadline time.Time) (missing int64) {
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
	return x.reserve(pod, n, wanted, rules, deadline)
}

func (x *guarded) reserve(pod types.UID, n *node, wanted []Wanted, rules Rules, deadline time.Time) (missing int64) {
	r := &reservation{node: n, deadline: deadline}
	u := &x.union
	x.resolve(u, wanted, n.group)
	for _, p := range u.parts {
		// There under its name: the kubelet does not pull it.
		if slices.ContainsFunc(p.byName, func(nodes []Slot) bool { return has(nodes, n.slot) }) {
			continue
		}
		size := p.size
		if p.layer == nil {
			p.layer = x.layer(p.key, false)
			p.layer.size = size
		}
		if p.layer.nodes.has(n.slot) {
			continue
		}
		if n := x.expect(r, p.layer, p.image, size, rules); !p.layer.opaque || p.layer.votes.total > 0 {
			missing += n
		}
		if !p.layer.opaque {
			continue
		}
		r.named = wanted
		// Also under the name that the pod has, without bytes: for ResolveReservations.
		if l := x.layer(p.image, true); l != p.layer {
			if l.votes.total == 0 {
				l.size = size
			}
			x.expect(r, l, p.image, 0, rules)
		}
	}
	for _, image := range u.images {
		if image.key == "" || image.Known != Unknown && image.Known != Arriving {
			continue // known, or no image can be pulled by this name
		}
		l := x.layer(image.key, true)
		if l.votes.total == 0 { // not reported by nodes of another group
			l.size = rules.UnknownBytes
		}
		if !slices.ContainsFunc(r.brings, func(b brought) bool { return b.layer == l }) {
			x.expect(r, l, image.key, rules.UnknownBytes, rules)
		}
		r.named = wanted
	}
	if len(r.brings) == 0 {
		return 0
	}
	x.reservations[pod] = r
	n.reservations[pod] = r
	if len(x.reservations) == 1 || deadline.Before(x.nextExpiry) {
		x.nextExpiry = deadline
	}
	return missing
}

// expect notes that the pull of an image, for a reservation, brings a layer of the given
// size to its node. It returns the bytes that this adds to what the node's link has to
// pull.
func (x *guarded) expect(r *reservation, l *layer, image string, bytes int64, rules Rules) (missing int64) {
	if r.node.joinsDownloads(rules) {
		image = ""
	}
	i, found := findArriving(l, r.node.slot, image)
	if !found {
		if !l.arrivedOn(r.node.slot) {
			missing = bytes
		}
		x.pending[r.node.slot] += missing
		l.arriving = slices.Insert(l.arriving, i, arriving{slot: r.node.slot, image: image, bytes: missing})
	}
	a := &l.arriving[i]
	a.refs++
	a.waiting++
	l.refs++
	r.brings = append(r.brings, brought{l, image})
	return missing
}

// arrivedOn reports whether a pod that needs the layer runs on a node.
func (l *layer) arrivedOn(s Slot) bool {
	i, _ := findArriving(l, s, "")
	for ; i < len(l.arriving) && l.arriving[i].slot == s; i++ {
		if l.arriving[i].arrived {
			return true
		}
	}
	return false
}

// Started notes that the containers of a pod run: its images are on the node,
// although the node may not have reported them. They count as present until the
// deadline or until the node reports.
func (x *Index) Started(pod types.UID, deadline time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.reservations[pod]; r != nil && !r.started {
		x.started(r, deadline)
	}
}

func (x *guarded) started(r *reservation, deadline time.Time) {
	for _, b := range r.brings {
		a := r.arriving(b)
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

// ResolveReservations replaces what is expected under the names of images alone by their
// layers, as far as these are known by now: until then it counts as Rules.UnknownBytes. After
// Measure, Measurement.Outdated reports whether there is something to replace. Each reservation
// is made again once, however many of its images are known now.
func (x *Index) ResolveReservations(wanted []Wanted, rules Rules) {
	x.mu.Lock()
	defer x.mu.Unlock()
	type onNode struct {
		slot  Slot
		piece *layer
	}
	pieces, slots, known := map[onNode]bool{}, map[Slot]bool{}, map[imageref.Canonical]*Wanted{}
	for i := range wanted {
		w := &wanted[i]
		if len(w.Names) == 0 {
			continue
		}
		piece := x.layers[opaqueKey(w.Names[0])]
		if piece == nil {
			continue
		}
		for _, a := range piece.arriving {
			if x.layersKnown(w, x.slots[a.slot].group) {
				pieces[onNode{a.slot, piece}], slots[a.slot], known[w.Names[0]] = true, true, w
			}
		}
	}
	for slot := range slots {
		for pod, r := range x.slots[slot].reservations {
			if slices.ContainsFunc(r.brings, func(b brought) bool { return b.opaque && pieces[onNode{slot, b.layer}] }) {
				x.resolveReservation(pod, r, known, rules)
			}
		}
	}
}

// layersKnown reports whether the layers of an image are known on the nodes of a group.
func (x *guarded) layersKnown(w *Wanted, of group) bool {
	if content := x.contentOf(w.Names, of); content != nil && !content.opaque {
		return true
	}
	_, ok := w.manifest(of)
	return ok
}

// resolveReservation makes a reservation again, now that some of its images are known.
func (x *guarded) resolveReservation(pod types.UID, r *reservation, known map[imageref.Canonical]*Wanted, rules Rules) {
	wanted := slices.Clone(r.named)
	for i := range wanted {
		if len(wanted[i].Names) == 0 {
			continue
		}
		if w := known[wanted[i].Names[0]]; w != nil { // the piece's name
			wanted[i].Manifests = w.Manifests
		}
	}
	x.release(pod, r)
	x.reserve(pod, r.node, wanted, rules, r.deadline)
	if again := x.reservations[pod]; again != nil && r.started {
		x.started(again, r.deadline)
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

// dropReported ends the expectation of layers that the node now has.
func (x *guarded) dropReported(n *node) {
	for pod, r := range n.reservations {
		r.brings = slices.DeleteFunc(r.brings, func(b brought) bool {
			if !b.nodes.has(n.slot) && !x.namedOn(r, b.layer) {
				return false
			}
			x.forget(r, b)
			return true
		})
		if len(r.brings) == 0 {
			x.release(pod, r)
		}
	}
}

// namedOn reports whether the node has reported an image that was expected by
// name only, under any of its names and with any layers.
func (x *guarded) namedOn(r *reservation, l *layer) bool {
	if !l.opaque {
		return false
	}
	on := func(n imageref.Canonical) bool {
		known := x.names[n]
		return known != nil && slices.ContainsFunc(known.reports, func(other *imageReport) bool { return has(other.nodes, r.node.slot) })
	}
	name := nameOf(l)
	return on(name) || slices.ContainsFunc(r.named, func(w Wanted) bool {
		return len(w.Names) > 0 && w.Names[0] == name && slices.ContainsFunc(w.Names, on)
	})
}

func (x *guarded) release(pod types.UID, r *reservation) {
	for _, b := range r.brings {
		x.forget(r, b)
	}
	delete(x.reservations, pod)
	delete(r.node.reservations, pod)
}

func (x *guarded) forget(r *reservation, b brought) {
	a := r.arriving(b)
	if !r.started {
		a.waiting--
	}
	if a.refs--; a.refs == 0 {
		if !a.arrived {
			x.pending[r.node.slot] -= a.bytes
		}
		i, _ := findArriving(b.layer, r.node.slot, b.image)
		b.arriving = slices.Delete(b.arriving, i, i+1)
	}
	x.unref(b.layer)
}

// arriving returns the entry that the reservation has with one of its layers.
func (r *reservation) arriving(b brought) *arriving {
	i, _ := findArriving(b.layer, r.node.slot, b.image)
	return &b.arriving[i]
}

func findArriving(l *layer, s Slot, image string) (int, bool) {
	return slices.BinarySearchFunc(l.arriving, arriving{slot: s, image: image}, func(a, b arriving) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot), strings.Compare(a.image, b.image))
	})
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

func (x *guarded) expiryDue(now time.Time) bool {
	return len(x.reservations) > 0 && !now.Before(x.nextExpiry)
}

// dropExpired looks at all reservations, but at most once a second.
func (x *guarded) dropExpired(now time.Time) {
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
