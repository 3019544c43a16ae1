package index

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/layer-locality/layer-locality/imageref"
)

// Known tells what is known about an image.
type Known string

const (
	// ByLayers means that its layers are known.
	ByLayers Known = "layers"
	// ByName means that some nodes report it, without layers.
	ByName Known = "name"
	// Arriving means that it is only known that pods with it were placed.
	Arriving Known = "arriving"
	// Unknown means that nothing is known.
	Unknown Known = "unknown"
)

// NodeBytes is what one node has of a pod's images, in compressed bytes.
type NodeBytes struct {
	// Total is the size of the union of the layers of all images that are known
	// for the platform of the node.
	Total int64
	// Present are the bytes that are there: reported by the node, or needed by a
	// pod that started there.
	Present int64
	// Arriving are the bytes that other placed pods bring, unless too many pods
	// wait for them already.
	Arriving int64
	// Crowded are arriving bytes for which enough pods wait already. They need
	// not be pulled again, but no further pod should wait for them.
	Crowded int64
	// Pending is all that the node's link still has to pull, for any pod.
	Pending int64
}

// Missing are the bytes the node would still have to pull for the pod.
func (b NodeBytes) Missing() int64 {
	return max(0, b.Total-b.Present-b.Arriving-b.Crowded)
}

// Measurement is what every node has of one pod's images. It is a snapshot: it
// does not show later changes of the index.
type Measurement struct {
	// Images tells what is known about each wanted image, for the platform of
	// which most is known.
	Images []Known

	slots    *Slots
	present  []int64
	arriving []int64
	crowded  []int64
	pending  []int64
	totals   []int64
	// platforms has the number of each node's platform, from 1, if there are
	// several.
	platforms []uint8
	// sum is the sum of the totals of all nodes.
	sum float64
	// empty means that no node has anything, still that no link has anything to
	// pull; outdated that Learn has something to do.
	empty, still, outdated bool

	union union
	sets  []sized
}

// Empty tells whether no node has anything of the pod's images, present or
// arriving.
func (m *Measurement) Empty() bool { return m.empty }

// Outdated tells whether pods were placed with images whose layers have become known
// since: Learn brings that up to date.
func (m *Measurement) Outdated() bool { return m.outdated }

// Nodes yields the names of all nodes, in no particular order.
func (m *Measurement) Nodes() iter.Seq[string] { return maps.Keys(m.slots.byName) }

// Slots returns the slots of the nodes. All Measurements of an Index share them
// as long as no node comes or goes.
func (m *Measurement) Slots() *Slots { return m.slots }

// Slot returns the slot of a node; ok is false if the index does not know it.
func (m *Measurement) Slot(nodeName string) (s Slot, ok bool) {
	s, ok = m.slots.byName[nodeName]
	return s, ok
}

// MeanTotal returns the mean of Total over all nodes.
func (m *Measurement) MeanTotal() float64 { return m.sum / float64(max(1, len(m.slots.byName))) }

// Node returns what a node has; ok is false if the index does not know it.
func (m *Measurement) Node(nodeName string) (bytes NodeBytes, ok bool) {
	s, ok := m.Slot(nodeName)
	if ok {
		bytes = m.At(s)
	}
	return bytes, ok
}

// At returns what the node with a slot has.
func (m *Measurement) At(s Slot) NodeBytes {
	bytes := NodeBytes{Present: m.present[s]}
	if !m.still {
		bytes.Arriving, bytes.Crowded, bytes.Pending = m.arriving[s], m.crowded[s], m.pending[s]
	}
	if len(m.platforms) == 0 {
		bytes.Total = m.totals[0]
	} else if number := m.platforms[s]; number > 0 {
		bytes.Total = m.totals[number-1]
	}
	return bytes
}

// Measure computes what every node has of the wanted images. It writes the result
// into m, whose memory it uses again. The cost is in proportion to the number of nodes
// that hold the layers.
func (x *Index) Measure(wanted []Wanted, rules Rules, now time.Time, m *Measurement) {
	x.expire(now)
	for x.mu.RLock(); x.slotsByName == nil; x.mu.RLock() {
		x.mu.RUnlock()
		x.makeSlots()
	}
	defer x.mu.RUnlock()

	m.slots = x.slotsByName
	m.present = zeroed(m.present, len(x.slots))
	m.empty, m.still, m.outdated = true, len(x.reservations) == 0, false
	if !m.still {
		m.arriving = zeroed(m.arriving, len(x.slots))
		m.crowded = zeroed(m.crowded, len(x.slots))
		m.pending = append(m.pending[:0], x.pending...)
	}
	m.totals, m.sum = m.totals[:0], 0
	m.Images = m.Images[:0]
	for range wanted {
		m.Images = append(m.Images, Unknown)
	}
	m.platforms = m.platforms[:0]
	if len(x.platforms) > 1 {
		m.platforms = zeroed(m.platforms, len(x.slots))
	}
	for platform, nodes := range x.platforms {
		if len(m.totals) == maxPlatforms {
			break
		}
		var mask bitmap
		m.totals = append(m.totals, 0)
		if len(m.platforms) > 0 {
			mask = make(bitmap, words(len(x.slots)))
			for s := range nodes.all() {
				mask.set(s)
				m.platforms[s] = uint8(len(m.totals)) //nolint:gosec // at most maxPlatforms
			}
		}
		x.measure(wanted, platform, mask, rules, m)
		m.sum += float64(m.totals[len(m.totals)-1]) * float64(nodes.n)
	}
}

// nobody is the empty set; it is only read.
var nobody nodeSet

// maxPlatforms bounds how many platforms count, because each is measured
// separately. There are far fewer, unless nodes invent some.
const maxPlatforms = 16

// measure adds what nodes of one platform have; mask is nil if there is no other.
func (x *Index) measure(wanted []Wanted, platform Platform, mask bitmap, rules Rules, m *Measurement) {
	u := &m.union
	x.resolve(u, wanted, platform)
	m.outdated = m.outdated || u.outdated
	for i, image := range u.images {
		if image.Known.rank() < m.Images[i].rank() {
			m.Images[i] = image.Known
		}
	}
	m.sets = m.sets[:0]
	for i := range u.parts {
		p := &u.parts[i]
		m.totals[len(m.totals)-1] += p.size
		present := &nobody
		if p.layer != nil {
			present = &p.layer.nodes
		}
		if len(p.held) > 0 {
			present = present.with(p.held, len(x.slots))
		}
		if present.n > 0 {
			m.sets = append(m.sets, sized{present, p.size})
		}
		if len(p.expected) > 0 || p.layer != nil && len(p.layer.arriving) > 0 {
			m.arrive(p, present, mask, rules)
		}
	}
	if len(m.sets) > 0 {
		m.empty = false
		addSizes(m.present, m.sets, mask)
	}
}

func (k Known) rank() int { return slices.Index([]Known{ByLayers, ByName, Arriving, Unknown}, k) }

// arrive adds what is on its way: the layer itself, or its image if only the name
// of that is known. A node that has it, or gets it in several ways, counts once.
func (m *Measurement) arrive(p *part, present *nodeSet, mask bitmap, rules Rules) {
	var counted nodeSet
	add := func(coming []arriving, first bool) {
		for i := 0; i < len(coming); {
			slot, stage := coming[i].slot, elsewhere
			for ; i < len(coming) && coming[i].slot == slot; i++ {
				stage = max(stage, coming[i].stageFor(p.image, rules))
			}
			if stage == elsewhere || mask != nil && !mask.has(slot) || present.has(slot) || !first && counted.has(slot) {
				continue
			}
			if len(p.expected) > 0 {
				counted.add(slot, len(m.present))
			}
			m.empty = false
			switch stage {
			case there:
				m.present[slot] += p.size
			case comes:
				m.arriving[slot] += p.size
			default:
				m.crowded[slot] += p.size
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

// stage is what a layer on its way to a node means for a pod.
type stage int

const (
	elsewhere stage = iota // of no use: the pod's own image is pulled apart from it
	crowded                // enough pods wait for it
	comes
	there
)

// stageFor returns what it means for a pod that needs the layer for an image.
func (a *arriving) stageFor(image string, rules Rules) stage {
	switch {
	case a.arrived:
		return there
	case a.image != "" && a.image != image && !rules.JoinsDownloads:
		return elsewhere
	case a.waiting < rules.MaxWaiting:
		return comes
	}
	return crowded
}

// makeSlots rebuilds slotsByName after nodes came or went.
func (x *Index) makeSlots() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.slotsByName != nil {
		return
	}
	x.slotsByName = &Slots{make(map[string]Slot, len(x.nodes))}
	for name, n := range x.nodes {
		x.slotsByName.byName[name] = n.slot
	}
}

// union is the union of the layers of a pod's images.
type union struct {
	images []resolved
	parts  []part
	// outdated: an image whose layers are known is expected somewhere by its name only.
	outdated bool
	// index of parts by key, once there are many.
	index map[string]int
}

// many is the number of parts from which a map is faster than a linear search.
const many = 64

// resolved is what is known about one wanted image.
type resolved struct {
	Known Known
	// key of the image, and of the indivisible piece that stands for it while it is
	// unknown.
	key string
}

// part is one layer of the union.
type part struct {
	key string
	// image is the key of the first image that has it: the one whose pull brings it.
	image string
	layer *layer // nil if no node has or expects it
	size  int64
	// held are nodes that have it because they hold an image of that name.
	held [][]Slot
	// expected are nodes to which it comes because the image was expected there
	// when only its name was known.
	expected [][]arriving
}

// resolve fills in what the images consist of on a platform.
func (x *Index) resolve(u *union, wanted []Wanted, platform Platform) {
	u.images, u.parts, u.index, u.outdated = u.images[:0], u.parts[:0], nil, false
	for _, w := range wanted {
		image := resolved{Known: Unknown}
		if len(w.Names) > 0 {
			image.key = wholeKey(w.Names[0])
		}
		expected := x.layers[image.key]
		// The parts of this image are those from first on, and those that another
		// image added before.
		first := len(u.parts)
		var shared []int
		add := func(key string, l *layer, size int64) {
			if i := u.add(key, image.key, l, size); i < first {
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
				if w.PullAlways && !r.content.whole {
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
			u.outdated = u.outdated || image.Known == ByLayers && slices.ContainsFunc(expected.arriving, func(a arriving) bool {
				return x.slots[a.slot].platform == platform
			})
			each(func(p *part) {
				if p.layer != expected {
					p.expected = append(p.expected, expected.arriving)
				}
			})
		}
	}
}

func (u *union) add(key, image string, l *layer, size int64) int {
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
	u.parts = append(u.parts, part{key: key, image: image, layer: l, size: size})
	return len(u.parts) - 1
}

// sizeOf returns the compressed size of a layer. It is an estimate for an image
// of which only the name and the uncompressed size are known.
func (x *Index) sizeOf(l *layer) int64 {
	if !l.whole || x.uncompressed == 0 || x.compressed >= x.uncompressed {
		return l.size
	}
	return int64(float64(l.size) * float64(x.compressed) / float64(x.uncompressed))
}

// contentOf returns what most nodes of a platform report under the first name
// that is known there, or nil if none is.
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

// better tells whether a is better than b: layers beat a bare name, then the
// number of nodes decides.
func better(a *content, nodesA int, b *content, nodesB int) bool {
	if a.whole != b.whole {
		return b.whole
	}
	return cmp.Or(cmp.Compare(nodesB, nodesA), cmp.Compare(a.key, b.key)) < 0
}

// Image returns what an image consists of on the platform of a node, without its names:
// as sources say, or as most nodes report. ok is false if nothing is known about it.
func (x *Index) Image(w Wanted, nodeName string) (image Image, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := x.nodes[nodeName]
	if n == nil {
		return Image{}, false
	}
	c := x.contentOf(w.Names, n.platform)
	if layers, ok := w.manifest(n.platform); ok {
		if c != nil {
			image.SizeBytes = c.sizeBytes
		}
		image.Layers = layers
		return image, true
	}
	if c == nil {
		return Image{}, false
	}
	image.SizeBytes = c.sizeBytes
	if !c.whole {
		for i, l := range c.layers {
			image.Layers = append(image.Layers, Layer{l.key, c.sizes[i]})
		}
	}
	return image, true
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
