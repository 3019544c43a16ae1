package index

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
)

// Index is safe for concurrent use.
type Index struct {
	mu sync.RWMutex
	guarded
}

// guarded is what Index.mu guards. Its methods need the lock.
type guarded struct {
	layers   map[string]*layer
	contents map[string]*content
	reports  map[reportKey]*imageReport
	names    map[imageref.Canonical]*name
	nodes    map[string]*node
	// slots has the node of every slot, nil where it is free.
	slots []*node
	free  []Slot
	// pending is, by slot, how many bytes the link of a node still has to pull
	// for pods that were placed there.
	pending []int64
	// slotsByName is for readers without the lock: it is never changed, only
	// replaced. It is nil if nodes came or went since it was made.
	slotsByName *Slots
	groups      map[group]*nodeSet
	lastID      uint64
	// Sums over the contents with layers, for the ratio between compressed and
	// uncompressed bytes.
	compressed, uncompressed int64

	reservations map[reservationKey]*reservation
	// marks counts calls of markLayers.
	marks uint64
	// union is memory that Reserve uses again.
	union union
	// nextExpiry is when to look at the times of reservations again; zero if none has any.
	nextExpiry time.Time
}

// New returns an empty Index.
func New() *Index {
	return &Index{guarded: guarded{
		layers:       map[string]*layer{},
		contents:     map[string]*content{},
		reports:      map[reportKey]*imageReport{},
		names:        map[imageref.Canonical]*name{},
		nodes:        map[string]*node{},
		groups:       map[group]*nodeSet{},
		reservations: map[reservationKey]*reservation{},
	}}
}

// SetNode adds a node or changes its platform.
func (x *Index) SetNode(nodeName string, platform Platform) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.nodes[nodeName]
	if n == nil {
		n = x.addNode(nodeName)
		n.group.Platform = platform
		x.joinGroup(n)
		return
	}
	x.move(n, group{platform, n.group.chains})
}

// SetChains sets whether a node uses a layer again only above the same layers, from the
// first one on. Then its layers have the keys of Chain, in what it reports and in what pods
// want; so whoever calls this has to report again. What pods bring that were placed before
// keeps its keys and ends with its time. It does nothing for a node that SetNode has not added.
func (x *Index) SetChains(nodeName string, chains bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := x.nodes[nodeName]; n != nil {
		x.move(n, group{n.group.Platform, chains})
	}
}

// Chains returns what SetChains last set for a node.
func (x *Index) Chains(nodeName string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := x.nodes[nodeName]
	return n != nil && n.group.chains
}

func (x *guarded) move(n *node, to group) {
	if n.group != to {
		x.leaveGroup(n)
		n.group = to
		x.joinGroup(n)
	}
}

func (x *guarded) joinGroup(n *node) {
	nodes := x.groups[n.group]
	if nodes == nil {
		nodes = &nodeSet{}
		x.groups[n.group] = nodes
	}
	nodes.add(n.slot, len(x.slots))
}

// SetJoins sets whether a node downloads a layer once although several images need it;
// nil if that is not known, and Rules.JoinsDownloads decides. It does nothing for a node that
// SetNode has not added.
func (x *Index) SetJoins(nodeName string, joins *bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := x.nodes[nodeName]; n != nil {
		n.joins = joins
	}
}

func (n *node) joinsDownloads(rules Rules) bool { return ptr.Deref(n.joins, rules.JoinsDownloads) }

// SetImages replaces the images that a source reports for a node. The reports of
// several sources add up. A name counts for the first image that has it.
// Every image is looked at; further cost is in proportion to the images that
// differ from the last time. images is not retained.
//
// It reports whether the index has the node; see locality.NodeSink if not.
func (x *Index) SetImages(source, nodeName string, images []Image) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.nodes[nodeName]
	if n == nil {
		return false
	}
	images = images[:min(len(images), maxImages)]
	reports := make([]*imageReport, 0, len(images))
	taken := make(map[*name]bool, 2*len(images))
	for i := range images {
		if r := x.reportWithFreeNames(&images[i], taken, reports); r != nil {
			reports = append(reports, r)
		}
	}
	x.setReports(n, source, reports)
	return true
}

// Reported reports whether any node reports an image under one of the names.
func (x *Index) Reported(names []imageref.Canonical) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.ContainsFunc(names, func(n imageref.Canonical) bool { return x.names[n] != nil })
}

// Lists reports whether a source reports an image under one of the names for a node.
func (x *Index) Lists(source, nodeName string, names []imageref.Canonical) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := x.nodes[nodeName]
	if n == nil {
		return false
	}
	listed := n.sources[source]
	return slices.ContainsFunc(names, func(name imageref.Canonical) bool {
		known := x.names[name]
		return known != nil && slices.ContainsFunc(known.reports, func(r *imageReport) bool {
			_, found := slices.BinarySearchFunc(listed, r.id, func(r *imageReport, id uint64) int { return cmp.Compare(r.id, id) })
			return found
		})
	})
}

// DeleteNode forgets a node, with everything that is there or on its way
// there.
func (x *Index) DeleteNode(nodeName string) {
	x.mu.Lock()
	defer x.mu.Unlock()

	n := x.nodes[nodeName]
	if n == nil {
		return
	}
	for key, r := range n.reservations {
		x.release(key, r)
	}
	for source := range n.sources {
		x.setReports(n, source, nil)
	}
	x.leaveGroup(n)
	delete(x.nodes, nodeName)
	x.slots[n.slot] = nil
	x.free = append(x.free, n.slot)
	x.slotsByName = nil
}

func (x *guarded) addNode(nodeName string) *node {
	n := &node{name: nodeName, sources: map[string][]*imageReport{}, reservations: map[reservationKey]*reservation{}}
	if last := len(x.free) - 1; last >= 0 {
		n.slot = x.free[last]
		x.free = x.free[:last]
		x.slots[n.slot] = n
	} else {
		n.slot = Slot(len(x.slots))
		x.slots = append(x.slots, n)
		x.pending = append(x.pending, 0)
	}
	x.nodes[n.name] = n
	x.slotsByName = nil
	return n
}

func (x *guarded) leaveGroup(n *node) {
	nodes := x.groups[n.group]
	if nodes.remove(n.slot, len(x.slots)); nodes.n == 0 {
		delete(x.groups, n.group)
	}
}

// setReports replaces the reports a source gives for a node.
func (x *guarded) setReports(n *node, source string, reports []*imageReport) {
	slices.SortFunc(reports, func(a, b *imageReport) int { return cmp.Compare(a.id, b.id) })
	reports = slices.Compact(reports)
	old := n.sources[source]
	if slices.Equal(old, reports) {
		return
	}
	if len(reports) > 0 {
		n.sources[source] = slices.Clone(reports)
	} else {
		delete(n.sources, source)
	}

	// Both are sorted: walk them side by side. New reports come first, so that
	// a layer that stays is not removed in between.
	var removed []*imageReport
	i := 0
	for _, r := range old {
		for ; i < len(reports) && reports[i].id < r.id; i++ {
			x.addReport(n, source, reports[i])
		}
		if i < len(reports) && reports[i] == r {
			i++
			continue
		}
		removed = append(removed, r)
	}
	for ; i < len(reports); i++ {
		x.addReport(n, source, reports[i])
	}
	if len(removed) > 0 {
		x.markLayers(n)
	}
	for _, r := range removed {
		x.removeReport(n, source, r)
	}
	x.dropReported(n)
}

// addReport notes that a node has the image of a report.
func (x *guarded) addReport(n *node, source string, r *imageReport) {
	if n.hasReport(source, r) {
		return // another source reports it already
	}
	r.nodes = insert(r.nodes, n.slot)
	for _, l := range r.content.layers {
		l.nodes.add(n.slot, len(x.slots))
	}
}

// markLayers marks the layers of all reports that the node has now. A node may have many of both: to look
// through the reports for each layer that is dropped would take as long as there are pairs of them.
func (x *guarded) markLayers(n *node) {
	x.marks++
	for _, reports := range n.sources {
		for _, r := range reports {
			for _, l := range r.content.layers {
				l.marked = x.marks
			}
		}
	}
}

// removeReport undoes addReport, except for what something else on the node still needs: markLayers was called.
func (x *guarded) removeReport(n *node, source string, r *imageReport) {
	if n.hasReport(source, r) {
		return
	}
	r.nodes = remove(r.nodes, n.slot)
	for _, l := range r.content.layers {
		if l.marked != x.marks {
			l.nodes.remove(n.slot, len(x.slots))
		}
	}
	if len(r.nodes) == 0 {
		x.deleteReport(r)
	}
}

// hasReport reports whether a source other than the given one has the report.
func (n *node) hasReport(except string, r *imageReport) bool {
	for source, reports := range n.sources {
		if source != except && slices.Contains(reports, r) {
			return true
		}
	}
	return false
}

// reportKey identifies a report. The hash is seeded, so nobody can make two
// images collide on purpose; with 128 bits they do not collide by chance.
type reportKey [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(image *Image) reportKey {
	var key reportKey
	for i, seed := range seeds {
		var h maphash.Hash
		h.SetSeed(seed)
		write := func(s string) {
			maphash.WriteComparable(&h, len(s)) // otherwise "a", "b" and "ab" would be equal
			h.WriteString(s)
		}
		for _, name := range image.Names {
			write(name)
		}
		maphash.WriteComparable(&h, -1) // no length
		for _, name := range image.Canonical {
			write(string(name))
		}
		maphash.WriteComparable(&h, -1)
		maphash.WriteComparable(&h, image.SizeBytes)
		maphash.WriteComparable(&h, image.Compressed)
		for j := range image.Layers {
			write(image.Layers[j].Digest)
			maphash.WriteComparable(&h, image.Layers[j].Size)
		}
		key[i] = h.Sum64()
	}
	return key
}

// reportWithFreeNames returns the report of an image that a node reports, and creates it if
// needed. It leaves out names that are taken by another image of the node, and
// takes those of this one. It returns nil if the image has no valid name and
// no layers. reported are the reports of the images before it, which no node may have yet.
func (x *guarded) reportWithFreeNames(image *Image, taken map[*name]bool, reported []*imageReport) *imageReport {
	if len(image.Names)+len(image.Canonical) > maxNames || len(image.Layers) > maxLayers {
		bounded := *image
		bounded.Names = image.Names[:min(len(image.Names), maxNames)]
		bounded.Canonical = image.Canonical[:min(len(image.Canonical), maxNames-len(bounded.Names))]
		bounded.Layers = image.Layers[:min(len(image.Layers), maxLayers)]
		image = &bounded
	}
	r := x.reportOf(image)
	if r != nil && slices.ContainsFunc(r.names, func(n *name) bool { return taken[n] }) {
		free := *image
		free.Names, free.Canonical = nil, nil
		for _, n := range r.names {
			if !taken[n] {
				free.Canonical = append(free.Canonical, n.canonical)
			}
		}
		if len(r.nodes) == 0 && !slices.Contains(reported, r) { // was created, but is not needed
			x.deleteReport(r)
		}
		r = x.reportOf(&free)
	}
	if r != nil {
		for _, n := range r.names {
			taken[n] = true
		}
	}
	return r
}

// canonicalNames returns the valid names of an image, each once.
func (i *Image) canonicalNames() (names []imageref.Canonical) {
	add := func(n imageref.Canonical) {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	for _, s := range i.Names {
		if canonical, err := imageref.Parse(s); err == nil {
			add(canonical)
		}
	}
	for _, canonical := range i.Canonical {
		add(canonical)
	}
	return names
}

func (x *guarded) reportOf(image *Image) *imageReport {
	key := keyOf(image)
	if r := x.reports[key]; r != nil {
		return r
	}
	names := image.canonicalNames()
	c := x.content(image, names)
	if c == nil {
		return nil
	}
	x.lastID++
	r := &imageReport{key: key, id: x.lastID, content: c}
	c.refs++
	for _, canonical := range names {
		n := x.names[canonical]
		if n == nil {
			n = &name{canonical: canonical}
			x.names[canonical] = n
		}
		n.reports = append(n.reports, r)
		r.names = append(r.names, n)
	}
	x.reports[key] = r
	return r
}

func (x *guarded) deleteReport(r *imageReport) {
	for _, n := range r.names {
		n.reports = slices.DeleteFunc(n.reports, func(other *imageReport) bool { return other == r })
		if len(n.reports) == 0 {
			delete(x.names, n.canonical)
		}
	}
	delete(x.reports, r.key)
	c := r.content
	if c.refs--; c.refs > 0 {
		return
	}
	delete(x.contents, c.key)
	for i, l := range c.layers {
		l.votes.remove(c.sizes[i], c.opaque)
		l.size = l.votes.best
		x.unref(l)
	}
	if c.scales() {
		x.compressed -= c.ofLayers()
		x.uncompressed -= c.sizeBytes
	}
}

func (x *guarded) unref(l *layer) {
	if l.refs--; l.refs == 0 {
		delete(x.layers, l.key)
	}
}

// content returns the content of an image, and creates it if needed.
func (x *guarded) content(image *Image, names []imageref.Canonical) *content {
	layers := normalize(image.Layers)
	opaque := len(layers) == 0
	if opaque {
		if len(names) == 0 {
			return nil
		}
		key := opaqueKey(slices.MinFunc(names, preferDigest))
		if image.Compressed {
			key = compressedKey + key
		}
		layers = []Layer{{Digest: key, Size: clamp(image.SizeBytes)}}
	}
	c := &content{sizeBytes: clamp(image.SizeBytes), compressed: image.Compressed, opaque: opaque}
	var key strings.Builder
	for _, l := range layers {
		key.WriteString(l.Digest)
		key.WriteByte(' ')
		key.WriteString(strconv.FormatInt(l.Size, 10))
		key.WriteByte('\n')
	}
	key.WriteString(strconv.FormatInt(c.sizeBytes, 10))
	key.WriteString(strconv.FormatBool(c.compressed))
	c.key = key.String()
	if known := x.contents[c.key]; known != nil {
		return known
	}
	for _, l := range layers {
		entry := x.layer(l.Digest, opaque)
		entry.compressed = opaque && c.compressed
		entry.votes.add(l.Size, opaque)
		entry.size = entry.votes.best
		entry.refs++
		c.layers = append(c.layers, entry)
		c.sizes = append(c.sizes, l.Size)
	}
	x.contents[c.key] = c
	if c.scales() {
		x.compressed += c.ofLayers()
		x.uncompressed += c.sizeBytes
	}
	return c
}

// scales reports whether a content states both sizes, so that the ratio of the two counts.
func (c *content) scales() bool { return !c.opaque && !c.compressed && c.sizeBytes > 0 } // 0: not known

func (x *guarded) layer(key string, opaque bool) *layer {
	l := x.layers[key]
	if l == nil {
		l = &layer{key: key, opaque: opaque}
		x.layers[key] = l
	}
	return l
}

// opaqueKey is the key of the indivisible piece that stands for an image of
// which only the name is known. No digest of a layer looks like it.
func opaqueKey(n imageref.Canonical) string { return "image " + string(n) }

// compressedKey begins the key of such a piece whose size is compressed. It is another piece
// than one of that name whose size is not; a node that has either has something of that name.
const compressedKey = "compressed "

// nameOf returns the name of the image that an indivisible piece stands for.
func nameOf(l *layer) imageref.Canonical {
	return imageref.Canonical(strings.TrimPrefix(strings.TrimPrefix(l.key, compressedKey), opaqueKey("")))
}

// preferDigest sorts digests before tags: nodes may report different tags of
// the same image.
func preferDigest(a, b imageref.Canonical) int {
	tag := func(n imageref.Canonical) int {
		if strings.Contains(string(n), "/") {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(tag(a), tag(b)), cmp.Compare(a, b))
}

// normalize sorts layers by digest, drops duplicates and layers without a digest,
// and bounds their number and sizes. An image may list a layer twice; it is
// one blob. Normalized layers are returned as they are.
func normalize(layers []Layer) []Layer {
	if isNormalized(layers) {
		return layers
	}
	layers = slices.DeleteFunc(slices.Clone(layers), func(l Layer) bool { return !isKey(l.Digest) })
	for i := range layers {
		layers[i].Size = clamp(layers[i].Size)
	}
	slices.SortFunc(layers, func(a, b Layer) int {
		return cmp.Or(cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.Size, b.Size))
	})
	layers = slices.CompactFunc(layers, func(a, b Layer) bool { return a.Digest == b.Digest })
	return layers[:min(len(layers), maxLayers)]
}

func isNormalized(layers []Layer) bool {
	for i, l := range layers {
		if !isKey(l.Digest) || l.Size != clamp(l.Size) || i > 0 && layers[i-1].Digest >= l.Digest {
			return false
		}
	}
	return len(layers) <= maxLayers
}

// isKey reports whether a digest can be the key of a layer (see opaqueKey).
func isKey(digest string) bool { return digest != "" && strings.IndexByte(digest, ' ') < 0 }

func clamp(size int64) int64 { return max(0, min(size, maxSize)) }
