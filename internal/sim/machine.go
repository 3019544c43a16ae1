package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/layer-locality/layer-locality/internal/sim/workload"
)

// Model is how kubelets and runtimes behave; the zero value of a field is not a
// default, see DefaultModel.
type Model struct {
	// ImageRefresh is how often a kubelet lists its images, StatusUpdate how often
	// it looks whether its NodeStatus changed.
	ImageRefresh, StatusUpdate time.Duration
	// MaxImages is how many images a NodeStatus names, the largest; -1: all.
	MaxImages int
	// MinLayerBytes is the size from which on layers are reported (compressed).
	MinLayerBytes int64
	// ManifestDelay is from the first use of an image to its ImageManifest.
	ManifestDelay time.Duration
	// Pulls is how many images a node pulls at once, Downloads how many layers of
	// an image.
	Pulls, Downloads int
	// PullDelay is what a pull takes before its first layer: the round trips for a
	// token, the manifest and the configuration.
	PullDelay time.Duration
	// UnpackLayer is what unpacking takes for each layer, Unpack what it takes for
	// each byte (compressed) besides. The layers of an image are unpacked one after
	// another, while those above are downloaded.
	UnpackLayer time.Duration
	Unpack      float64 // seconds a byte
	// PodStart is from the moment a pod's image is there, or from its creation if
	// it was there before, until its container runs.
	PodStart time.Duration
	// GCPeriod is how often a kubelet looks at its disk. Above GCHigh, images go
	// until GCLow is reached: the least recently used first, none in use, none
	// younger than GCMinAge.
	GCPeriod, GCMinAge time.Duration
	GCHigh, GCLow      float64
	// Expansion is how much larger an image is on disk than compressed, which
	// matters for the disk, and for the size of images in NodeStatus, which
	// ImageLocality reads.
	Expansion float64
}

// DefaultModel is Kubernetes 1.36 and CRI-O 1.36 with their defaults, but for
// parallel pulls (serializeImagePulls: false), as CRI-O's distributions have them.
// The registry is four round trips of 50 ms away, for nodes and resolver alike. How
// long unpacking and starting take was measured on a cluster of this repository
// (docs/evaluation.md).
func DefaultModel() Model {
	return Model{
		ImageRefresh: 30 * time.Second, StatusUpdate: 10 * time.Second, // pkg/kubelet/images, nodeStatusUpdateFrequency
		MaxImages: 50, MinLayerBytes: 1 << 20,
		ManifestDelay: 200 * time.Millisecond, PullDelay: 200 * time.Millisecond,
		Pulls: 10, Downloads: 6, // registryBurst; go.podman.io/image/v5/copy
		UnpackLayer: 40 * time.Millisecond, Unpack: 10e-3 / 1e6, PodStart: 190 * time.Millisecond,
		GCPeriod: 5 * time.Minute, GCMinAge: 2 * time.Minute, GCHigh: 0.85, GCLow: 0.80,
		Expansion: 2.5,
	}
}

// blob is a layer. All nodes share it.
type blob struct {
	digest string
	size   int64 // compressed
}

// image is what references stand for, often several.
type image struct {
	id     int
	layers []*blob // each once, base first
	size   int64   // compressed
}

// machine is a node: a disk with images, a link, and a kubelet that reports.
type machine struct {
	workload.Node
	model  *Model
	q      *queue
	onLine func(*machine) // a report is due

	// present counts the images that need a layer which is on the disk.
	present map[*blob]int
	images  map[*image]*held
	used    int64 // compressed bytes on disk
	pulls   []*pull
	waiting []*pull
	flows   []*flow
	// flowsAt is up to when flows are accounted for; flowsID tells an event for
	// the next end of a flow from one that was overtaken.
	flowsAt time.Duration
	flowsID uint64

	// What the kubelet knows, listed at the last refresh, and the layers of what its
	// NodeStatus states, also those too small to be stated.
	listed   []listed
	listing  bool
	stated   map[*blob]bool
	phase    [3]time.Duration // of refreshes, status updates and looks at the disk
	looking  bool             // a look at the disk is due
	pulled   int64            // bytes over the link
	removed  int64            // bytes removed by garbage collection
	requests int64            // milliCPU
	pods     int
}

// listed is an image as a kubelet lists it.
type listed struct {
	*image
	names []string
}

// held is an image that is complete on a machine.
type held struct {
	// names are the references by which it was asked for, in that order.
	names           []string
	since, lastUsed time.Duration
	users           int
}

// pull is an image that is being pulled. A runtime pulls a name once, however many
// pods want it, but does not know that two names will be the same image.
type pull struct {
	image *image
	name  string
	// next is the layer to look at next, flows how many are on their way,
	// committed how many of the lowest are on the disk.
	next, flows, committed int
	// downloaded are layers that wait for one below them, or for unpacking, which
	// one of them may be at.
	downloaded map[*blob]bool
	unpacking  bool
	wanted     []func()
}

// flow is the download of a layer.
type flow struct {
	pull *pull
	blob *blob
	left float64 // bytes
}

func newMachine(spec workload.Node, model *Model, q *queue, phase float64, onLine func(*machine)) *machine {
	m := &machine{
		Node: spec, model: model, q: q, onLine: onLine,
		present: map[*blob]int{}, images: map[*image]*held{},
		phase: [3]time.Duration{
			time.Duration(phase * float64(model.ImageRefresh)),
			time.Duration(math.Mod(phase*7, 1) * float64(model.StatusUpdate)),
			time.Duration(math.Mod(phase*3, 1) * float64(model.GCPeriod)),
		},
	}
	return m
}

// hold puts an image on the disk, or gives it one more name.
func (m *machine) hold(i *image, name string) *held {
	h := m.images[i]
	if h == nil {
		h = &held{since: m.q.now, lastUsed: m.q.now}
		m.images[i] = h
		for _, b := range i.layers {
			m.keep(b)
			m.present[b]++
		}
	}
	if !slices.Contains(h.names, name) {
		h.names = append(h.names, name)
		m.changed()
	}
	return h
}

// keep puts a layer on the disk, as yet of no complete image.
func (m *machine) keep(b *blob) {
	if _, ok := m.present[b]; !ok {
		m.present[b] = 0
		m.used += b.size
		m.watch()
	}
}

// use has a pod use an image by a name; ready is called when it is on the disk, at
// once if it is already: a name more costs no more than a manifest.
func (m *machine) use(i *image, name string, ready func()) {
	for _, p := range m.underway() {
		if p.name == name {
			p.wanted = append(p.wanted, ready)
			return
		}
	}
	if m.images[i] != nil {
		known := slices.Contains(m.images[i].names, name)
		h := m.hold(i, name)
		h.users++
		h.lastUsed = m.q.now
		if known || m.model.PullDelay == 0 {
			ready()
		} else {
			m.q.at(m.q.now+m.model.PullDelay, ready)
		}
		return
	}
	m.waiting = append(m.waiting, &pull{image: i, name: name, downloaded: map[*blob]bool{}, wanted: []func(){ready}})
	m.startPulls()
}

// release ends a use.
func (m *machine) release(i *image) {
	if h := m.images[i]; h != nil {
		h.users--
		h.lastUsed = m.q.now
		m.watch()
	}
}

// startPulls starts what may be pulled now.
func (m *machine) startPulls() {
	for len(m.pulls) < m.model.Pulls && len(m.waiting) > 0 {
		p := m.waiting[0]
		m.waiting = m.waiting[1:]
		m.pulls = append(m.pulls, p)
		if m.model.PullDelay == 0 {
			m.proceed(p)
		} else {
			m.q.at(m.q.now+m.model.PullDelay, func() { m.proceed(p) })
		}
	}
}

// proceed does what is next for a pull.
func (m *machine) proceed(p *pull) {
	m.advance()
	m.download(p)
	m.schedule()
}

// download starts flows of a pull. A layer is looked for when its turn comes. If
// another pull has not committed it, both download it, as CRI-O does: measured on
// the real cluster, docs/evaluation.md.
func (m *machine) download(p *pull) {
	for p.flows < m.model.Downloads && p.next < len(p.image.layers) {
		b := p.image.layers[p.next]
		p.next++
		if _, ok := m.present[b]; ok {
			continue
		}
		m.flows = append(m.flows, &flow{p, b, float64(b.size)})
		p.flows++
	}
	if m.commit(p); p.committed == len(p.image.layers) {
		m.complete(p)
	}
}

// commit unpacks what has been downloaded, in the order of the layers.
func (m *machine) commit(p *pull) {
	for !p.unpacking && p.committed < len(p.image.layers) {
		b := p.image.layers[p.committed]
		if _, ok := m.present[b]; ok {
			p.committed++
			continue
		}
		if !p.downloaded[b] {
			return
		}
		done := func() {
			m.keep(b)
			p.committed++
		}
		takes := m.model.UnpackLayer + time.Duration(m.model.Unpack*float64(b.size)*1e9)
		if takes == 0 {
			done()
			continue
		}
		p.unpacking = true
		m.q.at(m.q.now+takes, func() {
			p.unpacking = false
			done()
			m.proceed(p)
		})
	}
}

// advance accounts for what flowed since the last time.
func (m *machine) advance() {
	if elapsed := (m.q.now - m.flowsAt).Seconds(); elapsed > 0 && len(m.flows) > 0 {
		each := elapsed * m.Link / float64(len(m.flows))
		for _, f := range m.flows {
			f.left -= each
		}
	}
	m.flowsAt = m.q.now
}

// schedule makes an event for the next end of a flow.
func (m *machine) schedule() {
	m.flowsID++
	if len(m.flows) == 0 {
		return
	}
	least := math.Inf(1)
	for _, f := range m.flows {
		least = min(least, f.left)
	}
	id := m.flowsID
	const longest = 1e9 // seconds; no run takes that long
	after := min(max(0, least)*float64(len(m.flows))/m.Link, longest)
	// A nanosecond more, so that rounding never leaves a rest.
	m.q.at(m.q.now+time.Duration(after*1e9)+1, func() {
		if id == m.flowsID {
			m.arrive()
		}
	})
}

// arrive ends the flows that are through.
func (m *machine) arrive() {
	m.advance()
	var through []*flow
	m.flows = slices.DeleteFunc(m.flows, func(f *flow) bool {
		if f.left > 0.5 {
			return false
		}
		through = append(through, f)
		return true
	})
	for _, f := range through {
		m.pulled += f.blob.size
		f.pull.flows--
		f.pull.downloaded[f.blob] = true
		m.commit(f.pull)
	}
	for _, f := range through {
		if slices.Contains(m.pulls, f.pull) {
			m.download(f.pull)
		}
	}
	m.schedule()
}

func (m *machine) complete(p *pull) {
	m.pulls = slices.DeleteFunc(m.pulls, func(other *pull) bool { return other == p })
	m.hold(p.image, p.name).users += len(p.wanted)
	if m.usedShare() > 1 {
		m.collect()
	}
	for _, ready := range p.wanted {
		ready()
	}
	m.startPulls()
}

// missing is what the link would have to bring for an image, by a name, beyond what
// it brings anyway: what an all-knowing scheduler looks at.
func (m *machine) missing(i *image, name string) int64 {
	var sum int64
	for _, p := range m.underway() {
		if p.name == name {
			return 0
		}
	}
	for _, b := range i.layers {
		if _, ok := m.present[b]; ok || m.model.Pulls == 1 && m.expects(b) {
			continue
		}
		sum += b.size
	}
	return sum
}

// underway are the pulls that go on or wait.
func (m *machine) underway() []*pull { return slices.Concat(m.pulls, m.waiting) }

// expects tells whether a layer is one of an image that is being pulled.
func (m *machine) expects(b *blob) bool {
	return slices.ContainsFunc(m.underway(), func(p *pull) bool { return slices.Contains(p.image.layers, b) })
}

// watch has the kubelet look at the disk the next time it does so, if it would find
// something to do.
func (m *machine) watch() {
	if m.looking || m.usedShare() <= m.model.GCHigh {
		return
	}
	m.looking = true
	m.q.at(nextTick(m.q.now, m.model.GCPeriod, m.phase[2]), func() {
		m.looking = false
		if m.usedShare() <= m.model.GCHigh {
			return
		}
		m.collect()
		for _, h := range m.images {
			if h.users == 0 { // too young, or there was enough without it
				m.watch()
				break
			}
		}
	})
}

// usedShare is the share of the disk that images take.
func (m *machine) usedShare() float64 { return float64(m.used) * m.model.Expansion / float64(m.Disk) }

// collect is the kubelet's image garbage collection. Layers that another image
// needs stay, but the kubelet counts them as freed and stops the earlier.
func (m *machine) collect() {
	var unused []*image
	for i, h := range m.images {
		if h.users == 0 && m.q.now-h.since >= m.model.GCMinAge {
			unused = append(unused, i)
		}
	}
	slices.SortFunc(unused, func(a, b *image) int {
		x, y := m.images[a], m.images[b]
		return cmp.Or(cmp.Compare(x.lastUsed, y.lastUsed), cmp.Compare(x.since, y.since), cmp.Compare(a.id, b.id))
	})
	gone := false
	toFree := (m.usedShare() - m.model.GCLow) * float64(m.Disk)
	for _, i := range unused {
		if toFree <= 0 {
			break
		}
		toFree -= float64(i.size) * m.model.Expansion
		delete(m.images, i)
		gone = true
		for _, b := range i.layers {
			if m.present[b]--; m.present[b] == 0 && !m.expects(b) {
				delete(m.present, b)
				m.used -= b.size
				m.removed += b.size
			}
		}
	}
	if gone {
		m.changed()
	}
}

// changed has the kubelet report: it lists its images at the next refresh, and
// the next status update after that tells.
func (m *machine) changed() {
	if m.listing {
		return
	}
	m.listing = true
	refresh := nextTick(m.q.now, m.model.ImageRefresh, m.phase[0])
	m.q.at(refresh, func() {
		m.listing = false
		m.listed = m.list()
		m.q.at(nextTick(m.q.now, m.model.StatusUpdate, m.phase[1]), func() { m.onLine(m) })
	})
}

// list returns the images that a NodeStatus names, the largest first.
func (m *machine) list() []listed {
	images := make([]listed, 0, len(m.images))
	for i, h := range m.images {
		images = append(images, listed{i, slices.Clone(h.names[:min(len(h.names), maxNames)])})
	}
	slices.SortFunc(images, func(a, b listed) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.id, b.id))
	})
	if m.model.MaxImages < 0 {
		return images
	}
	return images[:min(len(images), m.model.MaxImages)]
}

// maxNames is how many names of an image a kubelet states (MaxNamesPerImageInNodeStatus
// in k8s.io/kubernetes/pkg/kubelet/nodestatus).
const maxNames = 5

// nextTick returns the first moment after now of a clock with a period and phase.
func nextTick(now, period, phase time.Duration) time.Duration {
	if period <= 0 {
		return now
	}
	n := (now - phase) / period
	t := phase + n*period
	for t <= now {
		t += period
	}
	return t
}
