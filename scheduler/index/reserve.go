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
	// refs counts the reservations that bring it; waiting counts those of images
	// that are not there yet, pulled those of them that are pulled now.
	refs, waiting, pulled int32
	// arrived: a container whose image has it was created there.
	arrived bool
	// bytes are what the node's link pulls for it (see pending).
	bytes int64
}

// pending returns what the node's link still has to pull for the layer.
func (a *arriving) pending() int64 {
	if a.arrived || a.pulled == 0 {
		return 0
	}
	return a.bytes
}

// reservationKey is what the index knows a reservation by: a pod has one of the images that
// are there, and one of those that are not.
type reservationKey struct {
	pod   types.UID
	there bool
}

// reservation is what a placed pod brings to its node.
type reservation struct {
	node   *node
	brings []brought
	// named has the pod's images if some are expected by name only.
	named []Wanted
	// there: containers of its images were created. Otherwise the node pulls them, now if
	// pulled is set.
	there, pulled bool
	// deadline is when it ends, idleFrom when it is no longer pulled; the zero Time stands
	// for never.
	deadline, idleFrom time.Time
}

// brought is a layer that a pod brings, with the key of the image (see arriving).
type brought struct {
	*layer
	image string
}

// Reserve notes that a pod was placed on a node, which now pulls what it lacks
// of the pod's images. Until the deadline those layers count as arriving there;
// Release, Follow, the node's report and its deletion end that earlier. An
// unknown image counts as one piece of Rules.UnknownBytes. Reserving
// a pod again on the same node changes nothing. It returns how many bytes of known
// layers the node has to pull because of this pod.
func (x *Index) Reserve(pod types.UID, nodeName string, wanted []Wanted, rules Rules, now, deadline time.Time) (missing int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropExpired(now)
	n := x.nodes[nodeName]
	key := reservationKey{pod: pod}
	if r := x.reservations[key]; r != nil {
		if r.node == n {
			return 0
		}
		x.release(key, r)
	}
	if n == nil {
		return 0
	}
	return x.reserve(key, &reservation{node: n, pulled: true, deadline: deadline}, wanted, rules)
}

// Placed is what a placed pod brings to its node.
type Placed struct {
	Pod  types.UID
	Node string
	// There are the images of which containers were created: the node has them, although it may
	// not have reported them. They count as present until ThereUntil, or until the node reports.
	There      []Wanted
	ThereUntil time.Time
	// Coming are the images that the node pulls or is about to. They count as arriving until
	// ComingUntil, and as pending on the node's link until PendingUntil. The zero Time stands
	// for no limit.
	Coming                    []Wanted
	ComingUntil, PendingUntil time.Time
}

// Follow replaces what a pod brings to its node. What was there before stays, unless the pod
// names what is there now.
func (x *Index) Follow(p *Placed, rules Rules, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropExpired(now)
	n := x.nodes[p.Node]
	there, coming := reservationKey{p.Pod, true}, reservationKey{p.Pod, false}
	if r := x.reservations[coming]; r != nil {
		x.release(coming, r)
	}
	if r := x.reservations[there]; r != nil && len(p.There) > 0 {
		x.release(there, r)
	}
	if n == nil {
		return
	}
	if len(p.There) > 0 && !passed(p.ThereUntil, now) {
		x.reserve(there, &reservation{node: n, there: true, deadline: p.ThereUntil}, p.There, rules)
	}
	if len(p.Coming) > 0 && !passed(p.ComingUntil, now) {
		r := &reservation{node: n, deadline: p.ComingUntil}
		if r.pulled = !passed(p.PendingUntil, now); r.pulled {
			r.idleFrom = p.PendingUntil
		}
		x.reserve(coming, r, p.Coming, rules)
	}
}

// passed reports whether a time has come; the zero Time never does.
func passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// earlier returns the earlier of two times, of which the zero Time never comes.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// reserve fills in what a new reservation brings. It is kept if it brings anything.
func (x *guarded) reserve(key reservationKey, r *reservation, wanted []Wanted, rules Rules) (missing int64) {
	n, u := r.node, &x.union
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
	x.reservations[key] = r
	n.reservations[key] = r
	x.nextExpiry = earlier(x.nextExpiry, earlier(r.deadline, r.idleFrom))
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
		l.arriving = slices.Insert(l.arriving, i, arriving{slot: r.node.slot, image: image, bytes: missing})
	}
	x.change(r.node.slot, &l.arriving[i], func(a *arriving) {
		a.refs++
		switch {
		case r.there:
			a.arrived = true
		case r.pulled:
			a.pulled++
			fallthrough
		default:
			a.waiting++
		}
	})
	l.refs++
	r.brings = append(r.brings, brought{l, image})
	return missing
}

// change changes a layer on its way, and what the link of its node has to pull.
func (x *guarded) change(s Slot, a *arriving, how func(*arriving)) {
	before := a.pending()
	how(a)
	x.pending[s] += a.pending() - before
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
		for key, r := range x.slots[slot].reservations {
			if slices.ContainsFunc(r.brings, func(b brought) bool { return b.opaque && pieces[onNode{slot, b.layer}] }) {
				x.resolveReservation(key, r, known, rules)
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
func (x *guarded) resolveReservation(key reservationKey, r *reservation, known map[imageref.Canonical]*Wanted, rules Rules) {
	wanted := slices.Clone(r.named)
	for i := range wanted {
		if len(wanted[i].Names) == 0 {
			continue
		}
		if w := known[wanted[i].Names[0]]; w != nil { // the piece's name
			wanted[i].Manifests = w.Manifests
		}
	}
	x.release(key, r)
	again := *r
	again.brings, again.named = nil, nil
	x.reserve(key, &again, wanted, rules)
}

// Release ends what a pod brings that will not start on its node. Images of which containers were
// created are there, and count until the node reports or the deadline.
func (x *Index) Release(pod types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := reservationKey{pod: pod}
	if r := x.reservations[key]; r != nil {
		x.release(key, r)
	}
}

// dropReported ends the expectation of layers that the node now has.
func (x *guarded) dropReported(n *node) {
	for key, r := range n.reservations {
		r.brings = slices.DeleteFunc(r.brings, func(b brought) bool {
			if !b.nodes.has(n.slot) && !x.namedOn(r, b.layer) {
				return false
			}
			x.forget(r, b)
			return true
		})
		if len(r.brings) == 0 {
			x.release(key, r)
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

func (x *guarded) release(key reservationKey, r *reservation) {
	for _, b := range r.brings {
		x.forget(r, b)
	}
	delete(x.reservations, key)
	delete(r.node.reservations, key)
}

func (x *guarded) forget(r *reservation, b brought) {
	i, _ := findArriving(b.layer, r.node.slot, b.image)
	a := &b.arriving[i]
	x.change(r.node.slot, a, func(a *arriving) {
		a.refs--
		if !r.there {
			a.waiting--
		}
		if r.pulled {
			a.pulled--
		}
	})
	if a.refs == 0 {
		b.arriving = slices.Delete(b.arriving, i, i+1)
	}
	x.unref(b.layer)
}

// idle notes that the node does not pull for a reservation now.
func (x *guarded) idle(r *reservation) {
	for _, b := range r.brings {
		i, _ := findArriving(b.layer, r.node.slot, b.image)
		x.change(r.node.slot, &b.arriving[i], func(a *arriving) { a.pulled-- })
	}
	r.pulled, r.idleFrom = false, time.Time{}
}

func findArriving(l *layer, s Slot, image string) (int, bool) {
	return slices.BinarySearchFunc(l.arriving, arriving{slot: s, image: image}, func(a, b arriving) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot), strings.Compare(a.image, b.image))
	})
}

// expire drops reservations whose deadline has passed, and ends pulls that are not in progress any more.
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

func (x *guarded) expiryDue(now time.Time) bool { return passed(x.nextExpiry, now) }

// dropExpired looks at all reservations, but at most once a second.
func (x *guarded) dropExpired(now time.Time) {
	if !x.expiryDue(now) {
		return
	}
	var next time.Time
	for key, r := range x.reservations {
		if passed(r.deadline, now) {
			x.release(key, r)
			continue
		}
		if passed(r.idleFrom, now) {
			x.idle(r)
		}
		next = earlier(next, earlier(r.deadline, r.idleFrom))
	}
	if soon := now.Add(time.Second); !next.IsZero() && next.Before(soon) {
		next = soon
	}
	x.nextExpiry = next
}
