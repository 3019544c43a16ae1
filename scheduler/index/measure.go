package index

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/layer-locality/layer-locality/imageref"
)

// Known is what is known about an image.
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
	// Images has what is known about each wanted image, for the group of nodes of
	// which most is known.
	Images []Known

	slots    *Slots
	present  []int64
	arriving []int64
	crowded  []int64
	pending  []int64
	totals   []int64
	// unknown has, for each group, whether nothing is known about an image there.
	unknown []bool
	// groups has the number of each node's group, from 1, if there are several.
	groups []uint8
	// order has the groups, in the order in which they were measured.
	order []group
	// sum is the sum of the totals of all nodes.
	sum float64
	// empty means that no node has anything, linksIdle that no link has anything to
	// pull; outdated that ResolveReservations has something to do.
	empty, linksIdle, outdated bool

	union union
	sets  []sized
}

// Empty reports whether no node has anything of the pod's images, present or
// arriving.
func (m *Measurement) Empty() bool { return m.empty }

// Outdated reports whether pods were placed with images whose layers have become known
// since: ResolveReservations brings that up to date.
func (m *Measurement) Outdated() bool { return m.outdated }

// Nodes yields the names of all nodes, in no particular order.
func (m *Measurement) Nodes() iter.Seq[string] { return maps.Keys(m.slots.byName) }

// Slots returns the slots of the nodes. All Measurements of an Index share them
// as long as no node comes or goes.
func (m *Measurement) Slots() *Slots { return m.slots }

// Slot returns the slot of a node; ok is false if the index does not have it.
func (m *Measurement) Slot(nodeName string) (s Slot, ok bool) {
	s, ok = m.slots.byName[nodeName]
	return s, ok
}

// MeanTotal returns the mean of Total over all nodes.
func (m *Measurement) MeanTotal() float64 { return m.sum / float64(max(1, len(m.slots.byName))) }

// Node returns what a node has; ok is false if the index does not have it.
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
	if !m.linksIdle {
		bytes.Arriving, bytes.Crowded, bytes.Pending = m.arriving[s], m.crowded[s], m.pending[s]
	}
	if of := m.groupOf(s); of >= 0 {
		bytes.Total = m.totals[of]
	}
	return bytes
}

// AllKnown reports whether something is known about each image for the platform of a node.
func (m *Measurement) AllKnown(s Slot) bool { of := m.groupOf(s); return of >= 0 && !m.unknown[of] }

// groupOf returns the place of a node's group in order, less than 0 if that does not count.
func (m *Measurement) groupOf(s Slot) int {
	if len(m.groups) == 0 {
		return 0
	}
	return int(m.groups[s]) - 1
}

// TopNodes returns the names of the nodes that have most of the pod's bytes, present or
// arriving: at most n nodes, the one with most first, none that has nothing or that does not suit. It asks
// that only of nodes that would be among them. Which of the nodes
// that have equally much are taken depends on the turn; all of them get one.
func (m *Measurement) TopNodes(n int, turn uint32, suits func(node string) bool) []string {
	if m.empty || n < 1 {
		return nil
	}
	all := slices.Max(m.totals)
	best := make([]ranked, 0, n+1)
	count := uint32(len(m.present)) //nolint:gosec // slots are small
	// Each turn has an order of its own, so that each of many equal nodes comes first at times.
	s, stride := shuffled(turn)%count, strides[turn%uint32(len(strides))]%count
	for range count {
		if s += stride; s >= count {
			s -= count
		}
		r := ranked{m.comingTo(Slot(s)), Slot(s)}
		if r.bytes == 0 || len(best) == n && r.bytes <= best[n-1].bytes || !suits(m.slots.names[s]) { // the common case
			continue
		}
		at := len(best)
		for at > 0 && best[at-1].bytes < r.bytes {
			at--
		}
		best = slices.Insert(best, at, r)
		if best = best[:min(n, len(best))]; len(best) == n && best[n-1].bytes == all {
			break // none has more
		}
	}
	names := make([]string, len(best))
	for i, r := range best {
		names[i] = m.slots.names[r.slot]
	}
	return names
}

// strides are primes: steps of one of them reach every slot.
var strides = [...]uint32{2147483647, 2147483629, 2147483587, 2147483579, 2147483563, 2147483549, 2147483543}

// shuffled returns a number that looks random: the finalizer of MurmurHash3.
func shuffled(n uint32) uint32 {
	n = (n ^ n>>16) * 0x85ebca6b
	n = (n ^ n>>13) * 0xc2b2ae35
	return n ^ n>>16
}

// ranked is a node, and how many of a pod's bytes it has.
type ranked struct {
	bytes int64
	slot  Slot
}

// Idle reports whether no link has anything to pull.
func (m *Measurement) Idle() bool { return m.linksIdle }

// comingTo returns what a node has or gets of the pod's bytes.
func (m *Measurement) comingTo(s Slot) int64 {
	if m.linksIdle {
		return m.present[s]
	}
	return m.present[s] + m.arriving[s]
}

// Measure computes what every node has of the wanted images. It writes the result
// into m, whose memory it uses again. The cost is in proportion to the number of nodes
// that hold the layers.
func (x *Index) Measure(wanted []Wanted, rules Rules, now time.Time, m *Measurement) {
	x.expire(now)
	x.readLock()
	defer x.mu.RUnlock()

	m.slots = x.slotsByName
	m.present = zeroed(m.present, len(x.slots))
	m.empty, m.linksIdle, m.outdated = true, len(x.reservations) == 0, false
	if !m.linksIdle {
		m.arriving = zeroed(m.arriving, len(x.slots))
		m.crowded = zeroed(m.crowded, len(x.slots))
		m.pending = append(m.pending[:0], x.pending...)
	}
	m.totals, m.unknown, m.sum = m.totals[:0], m.unknown[:0], 0
	m.Images = m.Images[:0]
	for range wanted {
		m.Images = append(m.Images, Unknown)
	}
	m.groups = m.groups[:0]
	if len(x.groups) > 1 {
		m.groups = zeroed(m.groups, len(x.slots))
	}
	m.order = x.largestGroups(m.order[:0])
	for _, of := range m.order {
		nodes := x.groups[of]
		var mask bitmap
		m.totals, m.unknown = append(m.totals, 0), append(m.unknown, false)
		if len(m.groups) > 0 {
			mask = make(bitmap, words(len(x.slots)))
			for s := range nodes.all() {
				mask.set(s)
				m.groups[s] = uint8(len(m.totals)) //nolint:gosec // at most maxGroups
			}
		}
		x.measure(wanted, of, mask, rules, m)
		m.sum += float64(m.totals[len(m.totals)-1]) * float64(nodes.n)
	}
}

// largestGroups returns the groups that count: if there are too many, those with the most nodes.
func (x *guarded) largestGroups(order []group) []group {
	for of := range x.groups {
		order = append(order, of)
	}
	if len(order) <= maxGroups {
		return order
	}
	chains := func(g group) int { return map[bool]int{true: 1}[g.chains] }
	slices.SortFunc(order, func(a, b group) int {
		return cmp.Or(cmp.Compare(x.groups[b].n, x.groups[a].n), cmp.Compare(a.OS, b.OS), cmp.Compare(a.Architecture, b.Architecture),
			cmp.Compare(chains(a), chains(b)))
	})
	return order[:maxGroups]
}

// noNodes is the empty set; it is only read.
var noNodes nodeSet

// maxGroups bounds how many groups count, because each is measured separately. There are
// far fewer, unless nodes invent some.
const maxGroups = 16

// measure adds what nodes of one group have; mask is nil if there is no other.
func (x *guarded) measure(wanted []Wanted, of group, mask bitmap, rules Rules, m *Measurement) {
	u := &m.union
	x.resolve(u, wanted, of)
	m.outdated = m.outdated || u.outdated
	for i, image := range u.images {
		m.unknown[len(m.unknown)-1] = m.unknown[len(m.unknown)-1] || image.Known == Unknown
		if image.Known.rank() < m.Images[i].rank() {
			m.Images[i] = image.Known
		}
	}
	m.sets = m.sets[:0]
	for i := range u.parts {
		p := &u.parts[i]
		m.totals[len(m.totals)-1] += p.size
		present := &noNodes
		if p.layer != nil {
			present = &p.layer.nodes
		}
		if len(p.byName) > 0 {
			present = present.with(p.byName, len(x.slots))
		}
		if present.n > 0 {
			m.sets = append(m.sets, sized{present, p.size})
		}
		if len(p.expected) > 0 || p.layer != nil && len(p.layer.arriving) > 0 {
			m.arrive(p, present, mask, x.slots, rules)
		}
	}
	if len(m.sets) > 0 {
		m.empty = false
		addSizes(m.present, m.sets, mask)
	}
}

func (k Known) rank() int { return slices.Index([]Known{ByLayers, ByName, Arriving, Unknown}, k) }

// MoreThan reports whether this is more than another.
func (k Known) MoreThan(other Known) bool { return k.rank() < other.rank() }

// arrive adds what is on its way: the layer itself, or its image if only the name
// of that is known. A node that has it, or gets it in several ways, counts once.
func (m *Measurement) arrive(p *part, present *nodeSet, mask bitmap, nodes []*node, rules Rules) {
	var counted nodeSet
	add := func(coming []arriving, first bool) {
		for i := 0; i < len(coming); {
			slot, stage := coming[i].slot, elsewhere
			joins := nodes[slot].joinsDownloads(rules)
			for ; i < len(coming) && coming[i].slot == slot; i++ {
				stage = max(stage, coming[i].stageFor(p.image, joins, rules.MaxWaiting))
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

// stageFor returns what it means for a pod that needs the layer for an image, on a node that
// joins downloads or not.
func (a *arriving) stageFor(image string, joins bool, maxWaiting int32) stage {
	switch {
	case a.arrived:
		return there
	case a.image != "" && a.image != image && !joins:
		return elsewhere
	case a.waiting < maxWaiting:
		return comes
	}
	return crowded
}

// readLock takes the lock for reading, with slotsByName up to date.
func (x *Index) readLock() {
	x.mu.RLock()
	for x.slotsByName == nil {
		x.mu.RUnlock()
		x.makeSlots()
		x.mu.RLock()
	}
}

// makeSlots rebuilds slotsByName after nodes came or went.
func (x *Index) makeSlots() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.slotsByName != nil {
		return
	}
	x.slotsByName = &Slots{byName: make(map[string]Slot, len(x.nodes)), names: make([]string, len(x.slots))}
	for name, n := range x.nodes {
		x.slotsByName.byName[name] = n.slot
		x.slotsByName.names[n.slot] = name
	}
}

// union is the union of the layers of a pod's images.
type union struct {
	images []resolved
	parts  []part
	// outdated: an image whose layers are known is expected somewhere by its name only.
	outdated bool
	// current are the parts of the image that is being added: new ones, and those it shares
	// with an image before.
	current []int
	// index of parts by key, once there are many.
	index map[string]int
}

// maxParts is how many layers of a pod count. Its images may have 512 each, and it may have
// hundreds of images; the time of a scheduling cycle is in proportion to their layers.
const maxParts = 8192

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
	// byName are nodes that have it because they report an image of that name.
	byName [][]Slot
	// expected are nodes to which it comes because the image was expected there
	// when only its name was known.
	expected [][]arriving
}

// resolve fills in what the images consist of on the nodes of a group.
func (x *guarded) resolve(u *union, wanted []Wanted, of group) {
	u.images, u.parts, u.index, u.outdated = u.images[:0], u.parts[:0], nil, false
	for i := range wanted {
		w := &wanted[i]
		image := resolved{Known: Unknown}
		if len(w.Names) > 0 {
			image.key = opaqueKey(w.Names[0])
		}
		expected := x.layers[image.key]
		if expected != nil && len(expected.arriving) == 0 {
			expected = nil
		}
		u.current = u.current[:0]
		image.Known = x.addLayers(u, w, of, image.key, expected)
		u.images = append(u.images, image)
		x.addHolders(u, w)
		if expected != nil && image.Known != Arriving {
			x.addExpected(u, expected, image.Known, of)
		}
	}
}

// addLayers adds the layers of an image, as far as they are known, and returns how they are.
// expected is the piece that stands for it where only its name was known, nil if it is
// expected nowhere.
func (x *guarded) addLayers(u *union, w *Wanted, of group, key string, expected *layer) Known {
	if layers, ok := w.manifest(of); ok {
		for _, l := range normalize(layers) {
			u.add(l.Digest, key, x.layers[l.Digest], l.Size)
		}
		return ByLayers
	}
	if c := x.contentOf(w.Names, of); c != nil {
		for _, l := range c.layers {
			u.add(l.key, key, l, x.sizeOf(l))
		}
		if c.opaque {
			return ByName
		}
		return ByLayers
	}
	if expected != nil {
		u.add(expected.key, key, expected, expected.size)
		return Arriving
	}
	return Unknown
}

// addHolders notes which nodes have the layers of the current image because they report an
// image of its name, with whatever layers.
func (x *guarded) addHolders(u *union, w *Wanted) {
	for _, n := range w.Names {
		known := x.names[n]
		if known == nil {
			continue
		}
		for _, r := range known.reports {
			if w.PullAlways && !r.content.opaque {
				continue
			}
			for _, i := range u.current {
				if p := &u.parts[i]; !slices.Contains(r.content.layers, p.layer) {
					p.byName = append(p.byName, r.nodes)
				}
			}
		}
	}
}

// addExpected notes that the layers of the current image come to the nodes where it is
// expected by its name.
func (x *guarded) addExpected(u *union, expected *layer, known Known, of group) {
	u.outdated = u.outdated || known == ByLayers && slices.ContainsFunc(expected.arriving, func(a arriving) bool {
		return x.slots[a.slot].group == of
	})
	for _, i := range u.current {
		if p := &u.parts[i]; p.layer != expected {
			p.expected = append(p.expected, expected.arriving)
		}
	}
}

// add adds a part to the current image, unless another image added it.
func (u *union) add(key, image string, l *layer, size int64) {
	if i, ok := u.find(key); ok {
		u.current = append(u.current, i)
		return
	}
	if len(u.parts) == maxParts {
		return
	}
	if l != nil && l.votes.total > 0 && !l.opaque {
		size = l.size
	}
	if u.index != nil {
		u.index[key] = len(u.parts)
	}
	u.current = append(u.current, len(u.parts))
	u.parts = append(u.parts, part{key: key, image: image, layer: l, size: size})
}

// find returns the index of the part with a key.
func (u *union) find(key string) (i int, ok bool) {
	if len(u.parts) < many {
		for i := range u.parts {
			if u.parts[i].key == key {
				return i, true
			}
		}
		return 0, false
	}
	if u.index == nil {
		u.index = make(map[string]int, 2*many)
		for i := range u.parts {
			u.index[u.parts[i].key] = i
		}
	}
	i, ok = u.index[key]
	return i, ok
}

// sizeOf returns the compressed size of a layer. It is an estimate for an image
// of which only the name and the uncompressed size are known.
func (x *guarded) sizeOf(l *layer) int64 {
	if !l.opaque || l.compressed || x.uncompressed == 0 || x.compressed >= x.uncompressed {
		return l.size
	}
	return int64(float64(l.size) * float64(x.compressed) / float64(x.uncompressed))
}

// contentOf returns what most nodes of a group report under the first name
// that is known there, or nil if none is.
func (x *guarded) contentOf(names []imageref.Canonical, of group) *content {
	for _, n := range names {
		known := x.names[n]
		if known == nil {
			continue
		}
		if len(known.reports) == 1 && len(x.groups) == 1 {
			return known.reports[0].content
		}
		holders := map[*content]int{}
		for _, r := range known.reports {
			if count := x.countOn(r.nodes, of); count > 0 {
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

// better reports whether a is better than b: layers beat a name alone, a name with a size one
// without, then the number of nodes decides.
func better(a *content, nodesA int, b *content, nodesB int) bool {
	if a.opaque != b.opaque {
		return b.opaque
	}
	if a.opaque && (a.sizeBytes == 0) != (b.sizeBytes == 0) {
		return b.sizeBytes == 0
	}
	return cmp.Or(cmp.Compare(nodesB, nodesA), cmp.Compare(a.key, b.key)) < 0
}

// Image returns what an image consists of in the group of a node, without its names:
// from sources, or as most nodes report it. ok is false if nothing is known about it.
func (x *Index) Image(w Wanted, nodeName string) (image Image, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := x.nodes[nodeName]
	if n == nil {
		return Image{}, false
	}
	c := x.contentOf(w.Names, n.group)
	if layers, ok := w.manifest(n.group); ok {
		if c != nil {
			image.SizeBytes, image.Compressed = c.sizeBytes, c.compressed
		}
		image.Layers = layers
		return image, true
	}
	if c == nil {
		return Image{}, false
	}
	image.SizeBytes, image.Compressed = c.sizeBytes, c.compressed
	if !c.opaque {
		for i, l := range c.layers {
			image.Layers = append(image.Layers, Layer{l.key, c.sizes[i]})
		}
	}
	return image, true
}

func (x *guarded) countOn(nodes []Slot, of group) int {
	if len(x.groups) == 1 {
		return len(nodes)
	}
	on, count := x.groups[of], 0
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
