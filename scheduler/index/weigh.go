package index

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/scheduler/imageref"
)

// Known tells what is known about an image.
type Known string

const (
	// ByLayers means that its layers are known.
	ByLayers Known = "layers"
	// ByName means that some nodes report it, without layers.
	ByName Known = "name"
	// Arriving means that nothing is known but that pods with it were placed.
	Arriving Known = "arriving"
	// Unknown means that nothing is known.
	Unknown Known = "unknown"
)

// Weight is what one node has of a pod's images, in compressed bytes.
type Weight struct {
	// Total is the size of the union of the layers of all images that are known
	// for the platform of the node.
	Total int64
	// Present are the bytes that are there: reported by the node, or needed by a
	// pod that started there.
	Present int64
	// Arriving are the bytes that other pods' placement brings, as far as no
	// more pods wait for them than allowed.
	Arriving int64
	// Crowded are arriving bytes for which enough pods wait already: they do not
	// have to be pulled again, but the next pod should not join.
	Crowded int64
	// Pending is all that the node's link still has to pull, for any pod.
	Pending int64
}

// Missing are the bytes the node would still have to pull for the pod.
func (w Weight) Missing() int64 {
	return max(0, w.Total-w.Present-w.Arriving-w.Crowded)
}

// Weights are the weights of all nodes for one pod. They are a snapshot: later
// changes of the index do not show.
type Weights struct {
	// Images tells what is known about each wanted image, for the platform
	// where most is known.
	Images []Known

	slots     map[string]slot
	present   []int64
	arriving  []int64
	crowded   []int64
	pending   []int64
	totals    []int64
	platforms []uint8
}

// Empty tells whether no node has anything of the pod's images, present or
// arriving.
func (w *Weights) Empty() bool {
	return !slices.ContainsFunc(w.present, func(n int64) bool { return n != 0 }) &&
		!slices.ContainsFunc(w.arriving, func(n int64) bool { return n != 0 })
}

// Len is above every node's number.
func (w *Weights) Len() int { return len(w.present) }

// Slots returns the numbers of the nodes, by which At answers. The map must not
// be changed.
func (w *Weights) Slots() Slots { return w.slots }

// Slots numbers nodes. It never changes once it is handed out.
type Slots map[string]slot

// Total is the size of the pod's images on the platform where they are largest.
func (w *Weights) Total() int64 { return slices.Max(w.totals) }

// At returns the weight of the node with the given number.
func (w *Weights) At(s slot) Weight {
	weight := Weight{Present: w.present[s], Arriving: w.arriving[s], Crowded: w.crowded[s], Pending: w.pending[s]}
	if len(w.totals) == 1 {
		weight.Total = w.totals[0]
	} else {
		weight.Total = w.totals[w.platforms[s]]
	}
	return weight
}

// Node returns the weight of a node; ok is false if the index does not know it.
func (w *Weights) Node(nodeName string) (weight Weight, ok bool) {
	s, ok := w.slots[nodeName]
	if ok {
		weight = w.At(s)
	}
	return weight, ok
}

// Weigh computes into w, whose memory it uses again, what every node has of the
// wanted images. Layers for which maxWaiting pods or more wait on a node do not
// count as arriving there. The cost is in proportion to the nodes that hold the
// layers.
func (x *Index) Weigh(wanted []Wanted, maxWaiting int32, now time.Time, w *Weights) {
	x.expire(now)
	for x.mu.RLock(); x.bySlot == nil; x.mu.RLock() {
		x.mu.RUnlock()
		x.number()
	}
	defer x.mu.RUnlock()

	w.slots = x.bySlot
	w.present = zeroed(w.present, len(x.slots))
	w.arriving = zeroed(w.arriving, len(x.slots))
	w.crowded = zeroed(w.crowded, len(x.slots))
	w.pending = append(w.pending[:0], x.pending...)
	w.totals = w.totals[:0]
	w.Images = w.Images[:0]

	several := len(x.platforms) > 1
	if several {
		w.platforms = zeroed(w.platforms, len(x.slots))
	}
	u := newUnion(wanted)
	for platform := range x.platforms {
		x.resolve(u, platform)
		var total int64
		for i := range u.parts {
			total += u.parts[i].size
		}
		for i, image := range u.images {
			if i == len(w.Images) {
				w.Images = append(w.Images, image.Known)
			} else if image.Known.rank() < w.Images[i].rank() {
				w.Images[i] = image.Known
			}
		}
		on := func(slot) bool { return true }
		if several {
			number := uint8(min(len(w.totals), math.MaxUint8)) //nolint:gosec // bounded one line above
			on = func(s slot) bool { return x.slots[s].platform == platform }
			for s, n := range x.slots {
				if n != nil && n.platform == platform {
					w.platforms[s] = number
				}
			}
		}
		for i := range u.parts {
			x.weigh(&u.parts[i], several, on, maxWaiting, w)
		}
		if len(w.totals) <= math.MaxUint8 {
			w.totals = append(w.totals, total)
		}
	}
	if len(w.totals) == 0 { // no nodes
		w.totals = append(w.totals, 0)
		for range wanted {
			w.Images = append(w.Images, Unknown)
		}
	}
}

func (k Known) rank() int { return slices.Index([]Known{ByLayers, ByName, Arriving, Unknown}, k) }

// weigh adds one part of the union to the weights.
func (x *Index) weigh(p *part, several bool, on func(slot) bool, maxWaiting int32, w *Weights) {
	size := p.size
	var nodes []slot
	var coming []arriving
	if p.layer != nil {
		nodes, coming = p.layer.nodes, p.layer.arriving
	}
	if !several && len(p.held) == 0 && len(p.expected) == 0 {
		present := w.present
		for _, s := range nodes {
			present[s] += size
		}
		for _, a := range coming {
			w.arrive(a, size, maxWaiting)
		}
		return
	}

	// The rare case: several answers for one node that must count once.
	seen := make([]bool, len(x.slots))
	once := func(s slot) bool {
		first := !seen[s] && on(s)
		seen[s] = true
		return first
	}
	for _, nodes := range append(p.held, nodes) {
		for _, s := range nodes {
			if once(s) {
				w.present[s] += size
			}
		}
	}
	for _, coming := range append(p.expected, coming) {
		for _, a := range coming {
			if once(a.slot) {
				w.arrive(a, size, maxWaiting)
			}
		}
	}
}

func (w *Weights) arrive(a arriving, size int64, maxWaiting int32) {
	switch {
	case a.arrived:
		w.present[a.slot] += size
	case a.waiting < maxWaiting:
		w.arriving[a.slot] += size
	default:
		w.crowded[a.slot] += size
	}
}

// number makes the map of nodes to slots again after nodes came or went.
func (x *Index) number() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.bySlot != nil {
		return
	}
	x.bySlot = make(map[string]slot, len(x.nodes))
	for name, n := range x.nodes {
		x.bySlot[name] = n.slot
	}
}

// union is what a pod's images consist of together.
type union struct {
	wanted []Wanted
	images []resolved
	parts  []part
	index  map[string]int
}

// resolved is what is known about one wanted image.
type resolved struct {
	Known Known
	// key of the piece by which the image is expected while it is unknown.
	key string
}

// part is one layer of the union.
type part struct {
	key   string
	layer *layer // nil if no node has to do with it
	size  int64
	// held are nodes that have it because they hold the image by its name.
	held [][]slot
	// expected are nodes to which it comes because the image was expected there
	// when nothing but its name was known.
	expected [][]arriving
}

func newUnion(wanted []Wanted) *union {
	return &union{wanted: wanted, images: make([]resolved, len(wanted)), index: make(map[string]int, 16)}
}

// resolve fills in what the images consist of on a platform.
func (x *Index) resolve(u *union, platform Platform) {
	u.parts = u.parts[:0]
	clear(u.index)
	for i, w := range u.wanted {
		image := resolved{Known: Unknown}
		if len(w.Names) > 0 {
			image.key = wholeKey(w.Names[0])
		}
		expected := x.layers[image.key]
		var parts []int
		if layers, ok := w.Layers[platform]; ok {
			image.Known = ByLayers
			for _, l := range tidy(layers) {
				parts = append(parts, u.add(l.Digest, x.layers[l.Digest], l.Size))
			}
		} else if c := x.contentOf(w.Names, platform); c != nil {
			image.Known = ByLayers
			if c.whole {
				image.Known = ByName
			}
			for _, l := range c.layers {
				parts = append(parts, u.add(l.key, l, x.sizeOf(l)))
			}
		} else if expected != nil && len(expected.arriving) > 0 {
			image.Known = Arriving
			parts = append(parts, u.add(expected.key, expected, expected.size))
		}
		u.images[i] = image

		for _, n := range w.Names {
			known := x.names[n]
			if known == nil {
				continue
			}
			for _, r := range known.records {
				if w.Fresh && !r.content.whole {
					continue
				}
				for _, j := range parts {
					if p := &u.parts[j]; !slices.Contains(r.content.layers, p.layer) {
						p.held = append(p.held, r.nodes)
					}
				}
			}
		}
		if image.Known != Arriving && expected != nil && len(expected.arriving) > 0 {
			for _, j := range parts {
				if p := &u.parts[j]; p.layer != expected {
					p.expected = append(p.expected, expected.arriving)
				}
			}
		}
	}
}

func (u *union) add(key string, l *layer, size int64) int {
	if l != nil && l.claims.count > 0 && !l.whole {
		size = l.size
	}
	if i, ok := u.index[key]; ok {
		return i
	}
	u.index[key] = len(u.parts)
	u.parts = append(u.parts, part{key: key, layer: l, size: size})
	return len(u.parts) - 1
}

// sizeOf returns the compressed size of a layer, estimated for an image of
// which only the name and the uncompressed size are known.
func (x *Index) sizeOf(l *layer) int64 {
	if !l.whole || x.uncompressed == 0 || x.compressed >= x.uncompressed {
		return l.size
	}
	return int64(float64(l.size) * float64(x.compressed) / float64(x.uncompressed))
}

// contentOf returns what most nodes of a platform report under the first of the
// names that is known there; nil if none is.
func (x *Index) contentOf(names []imageref.Canonical, platform Platform) *content {
	for _, n := range names {
		known := x.names[n]
		if known == nil {
			continue
		}
		if len(known.records) == 1 && len(x.platforms) == 1 {
			return known.records[0].content
		}
		holders := map[*content]int{}
		for _, r := range known.records {
			if count := x.countOn(r.nodes, platform); count > 0 {
				holders[r.content] += count
			}
		}
		var best *content
		for c, count := range holders {
			if best == nil || better(c, count, best, holders[best]) {
				best = c
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// better: layers beat a bare name, then the number of nodes decides.
func better(a *content, nodesA int, b *content, nodesB int) bool {
	if a.whole != b.whole {
		return b.whole
	}
	return cmp.Or(cmp.Compare(nodesB, nodesA), cmp.Compare(a.key, b.key)) < 0
}

func (x *Index) countOn(nodes []slot, platform Platform) int {
	if len(x.platforms) == 1 {
		return len(nodes)
	}
	count := 0
	for _, s := range nodes {
		if x.slots[s].platform == platform {
			count++
		}
	}
	return count
}

// canonicalOf reverses wholeKey.
func canonicalOf(key string) imageref.Canonical {
	return imageref.Canonical(strings.TrimPrefix(key, wholePrefix))
}

func zeroed[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
