package index

import (
	"cmp"
	"iter"
	"maps"
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

	numbers  *Numbers
	present  []int64
	arriving []int64
	crowded  []int64
	pending  []int64
	totals   []int64
	// platforms has the number of each node's platform, if there are several.
	platforms []uint8
	// wanted and have are sums over all nodes: of what the pod needs, and of what
	// is there or arrives.
	wanted, have float64
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

// MeanMissing returns what nodes would have to pull for the pod on average.
func (w *Weights) MeanMissing() float64 {
	nodes := len(w.numbers.slots)
	if nodes == 0 {
		return 0
	}
	return (w.wanted - w.have) / float64(nodes)
}

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
	if len(w.totals) == 1 {
		weight.Total = w.totals[0]
	} else {
		weight.Total = w.totals[w.platforms[s]]
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
	w.wanted, w.have = 0, 0
	if !w.still {
		w.arriving = zeroed(w.arriving, len(x.slots))
		w.crowded = zeroed(w.crowded, len(x.slots))
		w.pending = append(w.pending[:0], x.pending...)
	}
	w.totals = w.totals[:0]
	w.Images = w.Images[:0]

	several := len(x.platforms) > 1
	if several {
		w.platforms = zeroed(w.platforms, len(x.slots))
	}
	u := &w.union
	for platform, nodes := range x.platforms {
		x.resolve(u, wanted, platform)
		var total int64
		for i := range u.parts {
			total += u.parts[i].size
		}
		w.wanted += float64(total) * float64(nodes)
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
		w.sets = w.sets[:0]
		for i := range u.parts {
			p := &u.parts[i]
			if several || len(p.held) > 0 || len(p.expected) > 0 {
				x.weighOnce(p, on, maxWaiting, w)
			} else if l := p.layer; l != nil {
				if l.nodes.n > 0 {
					w.sets = append(w.sets, sized{&l.nodes, p.size})
					w.have += float64(p.size) * float64(l.nodes.n)
				}
				for _, a := range l.arriving {
					w.arrive(a, p.size, maxWaiting)
				}
			}
		}
		if len(w.sets) > 0 {
			w.empty = false
			addSizes(w.present, w.sets)
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

// weighOnce adds a part of the union that a node may have for several reasons,
// or that only the nodes of one platform want: each node counts once.
func (x *Index) weighOnce(p *part, on func(slot) bool, maxWaiting int32, w *Weights) {
	seen := make([]bool, len(x.slots))
	once := func(s slot) bool {
		first := !seen[s] && on(s)
		seen[s] = true
		return first
	}
	present := func(s slot) {
		if once(s) {
			w.present[s] += p.size
			w.have += float64(p.size)
			w.empty = false
		}
	}
	coming := p.expected
	if p.layer != nil {
		coming = append(coming, p.layer.arriving)
		for s := range p.layer.nodes.all() {
			present(s)
		}
	}
	for _, nodes := range p.held {
		for _, s := range nodes {
			present(s)
		}
	}
	for _, arriving := range coming {
		for _, a := range arriving {
			if once(a.slot) {
				w.arrive(a, p.size, maxWaiting)
			}
		}
	}
}

func (w *Weights) arrive(a arriving, size int64, maxWaiting int32) {
	w.empty = false
	w.have += float64(size)
	switch {
	case a.arrived:
		w.present[a.slot] += size
	case a.waiting < maxWaiting:
		w.arriving[a.slot] += size
	default:
		w.crowded[a.slot] += size
	}
}

// number makes the numbers again after nodes came or went.
func (x *Index) number() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.numbers != nil {
		return
	}
	x.numbers = &Numbers{make(map[string]slot, len(x.nodes))}
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
	held [][]slot
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
		if layers, ok := w.Layers[platform]; ok {
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
	if l != nil && l.claims.count > 0 && !l.whole {
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
