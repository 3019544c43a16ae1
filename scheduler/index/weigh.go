package index

import (
	"cmp"
	"iter"
	"maps"
	"slices"
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

	numbers  *Numbers
	present  []int64
	arriving []int64
	crowded  []int64
	pending  []int64
	totals   []int64
	// platforms has the number of each node's platform, from 1, if there are
	// several.
	platforms []uint8
	// sum of the totals of all nodes.
	sum float64
	// empty: no node has anything, still: no link has anything to pull.
	empty, still bool

	union union
	sets  []sized
}

// Empty tells whether no node has anything of the pod's images, present or
// arriving.
func (w *Weights) Empty() bool { return w.empty }

// Nodes yields the names of all nodes, in no particular order.
func (w *Weights) Nodes() iter.Seq[string] { return maps.Keys(w.numbers.slots) }

// Numbers are the slots of the nodes. As long as no node comes or goes, all
// Weights of an Index have the same.
func (w *Weights) Numbers() *Numbers { return w.numbers }

// Slot returns the slot of a node; ok is false if the index does not know it.
func (w *Weights) Slot(nodeName string) (s Slot, ok bool) {
	s, ok = w.numbers.slots[nodeName]
	return s, ok
}

// MeanTotal returns how much the pod's images are on the platform of a node, on
// average over all nodes.
func (w *Weights) MeanTotal() float64 { return w.sum / float64(max(1, len(w.numbers.slots))) }

// Node returns the weight of a node; ok is false if the index does not know it.
func (w *Weights) Node(nodeName string) (weight Weight, ok bool) {
	s, ok := w.Slot(nodeName)
	if ok {
		weight = w.At(s)
	}
	return weight, ok
}

// At returns the weight of the node with a slot.
func (w *Weights) At(s Slot) Weight {
	weight := Weight{Present: w.present[s]}
	if !w.still {
		weight.Arriving, weight.Crowded, weight.Pending = w.arriving[s], w.crowded[s], w.pending[s]
	}
	if len(w.platforms) == 0 {
		weight.Total = w.totals[0]
	} else if number := w.platforms[s]; number > 0 {
		weight.Total = w.totals[number-1]
	}
	return weight
}

// Weigh computes into w, whose memory it uses again, what every node has of the
// wanted images. Layers for which maxWaiting pods or more wait on a node do not
// count as arriving there. The cost is in proportion to the nodes that hold the
// layers.
func (x *Index) Weigh(wanted []Wanted, maxWaiting int32, now time.Time, w *Weights) {
	x.expire(now)
	for x.mu.RLock(); x.numbers == nil; x.mu.RLock() {
		x.mu.RUnlock()
		x.number()
	}
	defer x.mu.RUnlock()

	w.numbers = x.numbers
	w.present = zeroed(w.present, len(x.slots))
	w.empty, w.still = true, len(x.reservations) == 0
	if !w.still {
		w.arriving = zeroed(w.arriving, len(x.slots))
		w.crowded = zeroed(w.crowded, len(x.slots))
		w.pending = append(w.pending[:0], x.pending...)
	}
	w.totals, w.sum = w.totals[:0], 0
	w.Images = w.Images[:0]
	for range wanted {
		w.Images = append(w.Images, Unknown)
	}
	w.platforms = w.platforms[:0]
	if len(x.platforms) > 1 {
		w.platforms = zeroed(w.platforms, len(x.slots))
	}
	for platform, nodes := range x.platforms {
		if len(w.totals) == maxPlatforms {
			break
		}
		var mask bitmap
		w.totals = append(w.totals, 0)
		if len(w.platforms) > 0 {
			mask = make(bitmap, words(len(x.slots)))
			for s := range nodes.all() {
				mask.set(s)
				w.platforms[s] = uint8(len(w.totals)) //nolint:gosec // at most maxPlatforms
			}
		}
		x.weigh(wanted, platform, mask, maxWaiting, w)
		w.sum += float64(w.totals[len(w.totals)-1]) * float64(nodes.n)
	}
}

// nobody is the empty set; it is only read.
var nobody nodeSet

// maxPlatforms bounds the platforms that count: each has to be weighed. There
// are not nearly as many, unless nodes make them up.
const maxPlatforms = 16

// weigh adds what nodes of one platform have; mask is nil if there is no other.
func (x *Index) weigh(wanted []Wanted, platform Platform, mask bitmap, maxWaiting int32, w *Weights) {
	u := &w.union
	x.resolve(u, wanted, platform)
	for i, image := range u.images {
		if image.Known.rank() < w.Images[i].rank() {
			w.Images[i] = image.Known
		}
	}
	w.sets = w.sets[:0]
	for i := range u.parts {
		p := &u.parts[i]
		w.totals[len(w.totals)-1] += p.size
		present := &nobody
		if p.layer != nil {
			present = &p.layer.nodes
		}
		if len(p.held) > 0 {
			present = present.with(p.held, len(x.slots))
		}
		if present.n > 0 {
			w.sets = append(w.sets, sized{present, p.size})
		}
		if len(p.expected) > 0 || p.layer != nil && len(p.layer.arriving) > 0 {
			w.arrive(p, present, mask, maxWaiting)
		}
	}
	if len(w.sets) > 0 {
		w.empty = false
		addSizes(w.present, w.sets, mask)
	}
}

func (k Known) rank() int { return slices.Index([]Known{ByLayers, ByName, Arriving, Unknown}, k) }

// arrive adds what is on its way: the layer itself, or the image it belongs to
// under nothing but its name. A node that has it, or gets it for both reasons,
// counts once.
func (w *Weights) arrive(p *part, present *nodeSet, mask bitmap, maxWaiting int32) {
	var counted nodeSet
	add := func(coming []arriving, first bool) {
		for _, a := range coming {
			if mask != nil && !mask.has(a.slot) || present.has(a.slot) || !first && counted.has(a.slot) {
				continue
			}
			if len(p.expected) > 0 {
				counted.add(a.slot, len(w.present))
			}
			w.empty = false
			switch {
			case a.arrived:
				w.present[a.slot] += p.size
			case a.waiting < maxWaiting:
				w.arriving[a.slot] += p.size
			default:
				w.crowded[a.slot] += p.size
			}
		}
	}
	if p.layer != nil {
		add(p.layer.arriving, true)
	}
	for _, expected := range p.expected {
		add(expected, false)
	}
}

// number makes the numbers again after nodes came or went.
func (x *Index) number() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.numbers != nil {
		return
	}
	x.numbers = &Numbers{make(map[string]Slot, len(x.nodes))}
	for name, n := range x.nodes {
		x.numbers.slots[name] = n.slot
	}
}

// union is what a pod's images consist of together.
type union struct {
	images []resolved
	parts  []part
	// index of parts by key, once there are many.
	index map[string]int
}

// many is the number of parts from which on looking through all of them is
// slower than a map.
const many = 64

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
	held [][]Slot
	// expected are nodes to which it comes because the image was expected there
	// when nothing but its name was known.
	expected [][]arriving
}

// resolve fills in what the images consist of on a platform.
func (x *Index) resolve(u *union, wanted []Wanted, platform Platform) {
	u.images, u.parts, u.index = u.images[:0], u.parts[:0], nil
	for _, w := range wanted {
		image := resolved{Known: Unknown}
		if len(w.Names) > 0 {
			image.key = wholeKey(w.Names[0])
		}
		expected := x.layers[image.key]
		// The parts of this image: mostly those from first on, and those another
		// image brought.
		first := len(u.parts)
		var shared []int
		add := func(key string, l *layer, size int64) {
			if i := u.add(key, l, size); i < first {
				shared = append(shared, i)
			}
		}
		if layers, ok := w.manifest(platform); ok {
			image.Known = ByLayers
			for _, l := range tidy(layers) {
				add(l.Digest, x.layers[l.Digest], l.Size)
			}
		} else if c := x.contentOf(w.Names, platform); c != nil {
			image.Known = ByLayers
			if c.whole {
				image.Known = ByName
			}
			for _, l := range c.layers {
				add(l.key, l, x.sizeOf(l))
			}
		} else if expected != nil && len(expected.arriving) > 0 {
			image.Known = Arriving
			add(expected.key, expected, expected.size)
		}
		u.images = append(u.images, image)
		each := func(f func(*part)) {
			for _, i := range shared {
				f(&u.parts[i])
			}
			for i := first; i < len(u.parts); i++ {
				f(&u.parts[i])
			}
		}

		for _, n := range w.Names {
			known := x.names[n]
			if known == nil {
				continue
			}
			for _, r := range known.records {
				if w.Fresh && !r.content.whole {
					continue
				}
				each(func(p *part) {
					if !slices.Contains(r.content.layers, p.layer) {
						p.held = append(p.held, r.nodes)
					}
				})
			}
		}
		if image.Known != Arriving && expected != nil && len(expected.arriving) > 0 {
			each(func(p *part) {
				if p.layer != expected {
					p.expected = append(p.expected, expected.arriving)
				}
			})
		}
	}
}

func (u *union) add(key string, l *layer, size int64) int {
	if l != nil && l.claims.total > 0 && !l.whole {
		size = l.size
	}
	switch n := len(u.parts); {
	case n < many:
		for i := range u.parts {
			if u.parts[i].key == key {
				return i
			}
		}
	case n == many && u.index == nil:
		u.index = make(map[string]int, 2*many)
		for i := range u.parts {
			u.index[u.parts[i].key] = i
		}
		fallthrough
	default:
		if i, ok := u.index[key]; ok {
			return i
		}
		u.index[key] = n
	}
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

func (x *Index) countOn(nodes []Slot, platform Platform) int {
	if len(x.platforms) == 1 {
		return len(nodes)
	}
	on, count := x.platforms[platform], 0
	for _, s := range nodes {
		if on.has(s) {
			count++
		}
	}
	return count
}

func zeroed[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
