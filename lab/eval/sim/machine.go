package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// Joins is which pulls share downloads, where pulls run at the same time.
type Joins int

const (
	// JoinNothing means that each pod pulls for itself, as with upstream's CRI-O 1.36 where
	// every pod has a cgroup of its own (lab/test/scheduler, TestSharedPulls).
	JoinNothing Joins = iota
	// JoinImages means that pods that want an image by the same name share its pull.
	JoinImages
	// JoinLayers means that any two pulls share the download of a layer, as with containerd.
	JoinLayers
)

var joinsNames = []string{"nothing", "images", "layers"}

// String returns the name. With Type and Set it makes Joins a flag.
func (j *Joins) String() string { return joinsNames[*j] }

// Type names the values.
func (j *Joins) Type() string { return strings.Join(joinsNames, "|") }

// Set reads a name.
func (j *Joins) Set(name string) error {
	i := slices.Index(joinsNames, name)
	if i < 0 {
		return fmt.Errorf("%q: want one of %s", name, strings.Join(joinsNames, ", "))
	}
	*j = Joins(i)
	return nil
}

// Model is how kubelets and runtimes behave. Zero values are not defaults; see
// DefaultModel.
type Model struct {
	// ImageRefresh is how often a kubelet lists its images, StatusUpdate how often it
	// checks whether its NodeStatus changed.
	ImageRefresh, StatusUpdate time.Duration
	// MaxImages is how many images, the largest ones, a NodeStatus lists; -1: all.
	MaxImages int
	// MinLayerBytes is the minimum (compressed) size of layers that are reported.
	MinLayerBytes int64
	// AgentSettle is the time from a change to when an agent writes it, AgentSpacing the least
	// time between two writes. The first one comes up to AgentSpread after its node.
	AgentSettle, AgentSpacing, AgentSpread time.Duration
	// ManifestDelay is the time from the first use of an image to its ImageManifest.
	ManifestDelay time.Duration
	// Pulls is how many images a node pulls at once, Downloads how many layers of
	// an image.
	Pulls, Downloads int
	Joins            Joins
	// PullDelay is how long a pull takes before its first layer: the round trips for a
	// token, the manifest and the configuration.
	PullDelay time.Duration
	// UnpackLayer is the time to unpack a layer, Unpack the additional time for each
	// (compressed) byte. The layers of an image are unpacked one after another, while
	// those above are downloaded.
	UnpackLayer time.Duration
	Unpack      float64 // seconds per byte
	// PodStart is the time until a pod's container runs, from the moment its image is
	// there, or from the pod's creation if the image was there before.
	PodStart time.Duration
	// GCPeriod is how often a kubelet checks its disk. Above GCHigh, it removes images
	// until GCLow is reached: the least recently used first, but none in use and none
	// younger than GCMinAge.
	GCPeriod, GCMinAge time.Duration
	GCHigh, GCLow      float64
	// PeerLink is the bandwidth between nodes, in bytes per second, where images come from
	// peers.
	PeerLink float64
	// AheadLead is how long before the first use of an image it is pulled on all nodes, where
	// that is done.
	AheadLead time.Duration
	// PrefetchDelay is the time from a change of a template to when nodes begin to pull ahead, TagLead that by which a tag
	// moves earlier than its Deployment rolls.
	PrefetchDelay, TagLead time.Duration
	// LazyShare is the share of an image's bytes with which a pod starts, LazyDelay the time
	// to find them, where images are pulled lazily.
	LazyShare float64
	LazyDelay time.Duration
	// Expansion is the ratio of uncompressed to compressed size. It matters for the
	// disk, and for the size of images in NodeStatus, which ImageLocality reads.
	Expansion float64
}

// DefaultModel is Kubernetes 1.36 and our CRI-O 1.36 with their defaults, except for
// parallel pulls (serializeImagePulls: false), as in CRI-O's distributions: pods with one
// image share its pull, as they do not with upstream's. The
// registry is four round trips of 50 ms away, for nodes and resolver alike. The times
// of unpacking and starting were measured on a cluster of this repository
// (README.md).
func DefaultModel() Model {
	return Model{
		ImageRefresh: 30 * time.Second, StatusUpdate: 10 * time.Second, // pkg/kubelet/images, nodeStatusUpdateFrequency
		MaxImages: 50, MinLayerBytes: 1 << 20,
		AgentSettle: 1200 * time.Millisecond, AgentSpacing: 5 * time.Second, AgentSpread: 30 * time.Second, // agent/read, agent/publish
		ManifestDelay: 200 * time.Millisecond, PullDelay: 200 * time.Millisecond,
		Pulls: 10, Downloads: 6, Joins: JoinImages, // registryBurst; go.podman.io/image/v5/copy
		UnpackLayer: 40 * time.Millisecond, Unpack: 10e-3 / 1e6, PodStart: 190 * time.Millisecond,
		GCPeriod: 5 * time.Minute, GCMinAge: 2 * time.Minute, GCHigh: 0.85, GCLow: 0.80,
		PeerLink:  10_000 * workload.Mbit,
		AheadLead: 10 * time.Minute, PrefetchDelay: time.Second, TagLead: 15 * time.Second,
		LazyShare: 0.064, LazyDelay: 100 * time.Millisecond, // Slacker, FAST '16; two round trips for the layers' indices
		Expansion: 2.5,
	}
}

// blob is a layer. All nodes share it.
type blob struct {
	digest string
	size   int64 // compressed
}

// image is what one or more references stand for.
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
	// namesOnly means that it states no layers.
	namesOnly bool
	// delivery is how images come here; lan is nil unless they come from peers.
	delivery Delivery
	lan      *lan
	agent    *agent // nil unless there is one

	// present has the layers on the disk, with the number of images that need each.
	present map[*blob]int
	images  map[*image]*held
	used    int64 // compressed bytes on disk
	pulls   []*pull
	waiting []*pull
	// early are images to be pulled ahead of any pod, earlyPull is the one that is being
	// pulled; it is also among the pulls.
	early     []*pull
	earlyPull *pull
	flows     []*flow
	// flowsAt is the time up to which flows are accounted for. flowsID distinguishes
	// the current event for the next end of a flow from outdated ones.
	flowsAt time.Duration
	flowsID uint64

	// What the kubelet listed at the last refresh, and the layers of the images in its
	// NodeStatus, including those too small to be reported.
	listed   []listed
	listing  bool
	stated   map[*blob]bool
	phase    [3]time.Duration // of refreshes, status updates and disk checks
	looking  bool             // a disk check is due
	pulled   int64            // bytes over the link and from peers
	removed  int64            // bytes removed by garbage collection
	requests int64            // milliCPU
	pods     int
	first    int // how many pods to come are among its first

	fromPeers int64 // bytes among those pulled
}

// listed is an image as a kubelet lists it.
type listed struct {
	*image
	names []string
}

// held is an image that is complete on a machine.
type held struct {
	// names are the references by which it was requested, in that order.
	names           []string
	since, lastUsed time.Duration
	users           int
}

// pull is an image that is being pulled, for one pod or, where pulls are joined, for all
// that want it by the same name: a runtime cannot see that two names stand for the same
// image.
type pull struct {
	image *image
	name  string
	// next is the next layer to look at. flows is how many layers are being downloaded,
	// committed how many, from the lowest on, are on the disk.
	next, flows, committed int
	// downloaded are layers that wait for one below them, wait to be unpacked, or are
	// being unpacked.
	downloaded map[*blob]bool
	unpacking  bool
	wanted     []func()
}

func newPull(i *image, name string, wanted ...func()) *pull {
	return &pull{image: i, name: name, downloaded: map[*blob]bool{}, wanted: wanted}
}

// flow is the download of a layer, for one pull or, where downloads are joined, several.
type flow struct {
	pulls []*pull
	blob  *blob
	left  float64 // bytes
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

// hold puts an image on the disk, or adds a name to it.
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

// keep puts a layer on the disk that does not yet belong to a complete image.
func (m *machine) keep(b *blob) {
	if _, ok := m.present[b]; !ok {
		m.present[b] = 0
		m.used += b.size
		m.watch()
	}
}

// use makes a pod use an image by a name. ready is called when the image is on the
// disk, at once if it is there already: another name only costs a manifest.
func (m *machine) use(i *image, name string, ready func()) {
	if p := m.joined(name); p != nil {
		p.wanted = append(p.wanted, ready)
		return
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
	m.waiting = append(m.waiting, newPull(i, name, ready))
	m.startPulls()
}

// joined returns the pull that another pod with the same name joins; nil if there is none.
func (m *machine) joined(name string) *pull {
	if m.model.Joins != JoinNothing {
		for _, p := range m.underway() {
			if p.name == name {
				return p
			}
		}
	}
	return nil
}

// release ends a use.
func (m *machine) release(i *image) {
	if h := m.images[i]; h != nil {
		h.users--
		h.lastUsed = m.q.now
		m.watch()
	}
}

// startPulls starts the pulls of the kubelet that may run now.
func (m *machine) startPulls() {
	most := m.model.Pulls
	if m.earlyPull != nil {
		most++
	}
	for len(m.pulls) < most && len(m.waiting) > 0 {
		p := m.waiting[0]
		m.waiting = m.waiting[1:]
		m.start(p)
	}
}

// start begins a pull.
func (m *machine) start(p *pull) {
	m.pulls = append(m.pulls, p)
	delay := m.model.PullDelay
	if m.delivery == Lazily {
		delay += m.model.LazyDelay
	}
	if delay == 0 {
		m.proceed(p)
	} else {
		m.q.at(m.q.now+delay, func() { m.proceed(p) })
	}
}

// proceed does the next step of a pull.
func (m *machine) proceed(p *pull) {
	m.advance()
	m.download(p)
	m.schedule()
}

// download starts flows of a pull. It looks for a layer on the disk when the layer's
// turn comes. If another pull has not committed the layer yet, both download it, as
// CRI-O does (measured on the real cluster, README.md).
func (m *machine) download(p *pull) {
	for p.flows < m.model.Downloads && p.next < len(p.image.layers) {
		b := p.image.layers[p.next]
		p.next++
		if _, ok := m.present[b]; ok {
			continue
		}
		m.fetch(p, b)
	}
	if m.commit(p); p.committed == len(p.image.layers) {
		m.complete(p)
	}
}

// fetch downloads a layer for a pull, or joins a download.
func (m *machine) fetch(p *pull, b *blob) {
	if m.model.Joins == JoinLayers {
		if f := m.flowOf(b); f != nil {
			f.pulls = append(f.pulls, p)
			p.flows++
			return
		}
		// Downloaded for another pull, which has not unpacked it yet.
		for _, other := range m.pulls {
			if other != p && other.downloaded[b] {
				p.downloaded[b] = true
				return
			}
		}
	}
	p.flows++
	if m.lan != nil {
		if from := m.lan.holder(b, m); from != nil {
			m.lan.send(b, from, m, p)
			return
		}
	}
	bytes := float64(b.size)
	if m.delivery == Lazily {
		bytes *= m.model.LazyShare // the rest delays nobody, because it waits for an idle link
	}
	m.flows = append(m.flows, &flow{[]*pull{p}, b, bytes})
}

// flowOf returns the download of a layer; nil if there is none.
func (m *machine) flowOf(b *blob) *flow {
	for _, f := range m.flows {
		if f.blob == b {
			return f
		}
	}
	if m.lan != nil {
		return m.lan.to(m, b)
	}
	return nil
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
		if takes == 0 || m.delivery == Lazily { // which mounts layers as they are
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

// advance accounts for the bytes since the last call.
func (m *machine) advance() {
	if elapsed := (m.q.now - m.flowsAt).Seconds(); elapsed > 0 && len(m.flows) > 0 {
		each := elapsed * m.Link / float64(len(m.flows))
		for _, f := range m.flows {
			f.left -= each
		}
	}
	m.flowsAt = m.q.now
}

const longest = 1e9 // seconds; no run takes that long

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
	after := min(max(0, least)*float64(len(m.flows))/m.Link, longest)
	// One nanosecond more, so that rounding never leaves a remainder.
	m.q.at(m.q.now+time.Duration(after*1e9)+1, func() {
		if id == m.flowsID {
			m.arrive()
		}
	})
}

// arrive ends the flows that are complete.
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
	m.landed(through)
	m.schedule()
}

// landed goes on with what waited for downloads.
func (m *machine) landed(through []*flow) {
	for _, f := range through {
		m.pulled += f.blob.size
		for _, p := range f.pulls {
			p.flows--
			p.downloaded[f.blob] = true
			m.commit(p)
		}
	}
	for _, f := range through {
		for _, p := range f.pulls {
			if slices.Contains(m.pulls, p) {
				m.download(p)
			}
		}
	}
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
	if p == m.earlyPull {
		m.earlyPull = nil
		m.startEarly()
	}
	m.startPulls()
}

// missing returns how many bytes the link would have to pull for an image, by a name,
// in addition to what it pulls anyway. A clairvoyant scheduler uses it.
func (m *machine) missing(i *image, name string) int64 {
	var sum int64
	if m.joined(name) != nil {
		return 0
	}
	for _, b := range i.layers {
		if _, ok := m.present[b]; ok || (m.model.Pulls == 1 || m.model.Joins == JoinLayers) && m.expects(b) {
			continue
		}
		sum += b.size
	}
	return sum
}

// underway returns the pulls that run or wait.
func (m *machine) underway() []*pull { return slices.Concat(m.pulls, m.waiting) }

// expects reports whether a layer belongs to an image that is being pulled.
func (m *machine) expects(b *blob) bool {
	return slices.ContainsFunc(m.underway(), func(p *pull) bool { return slices.Contains(p.image.layers, b) })
}

// watch schedules the kubelet's next disk check, if that would find something to do.
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
			if h.users == 0 { // too young, or enough was freed without it
				m.watch()
				break
			}
		}
	})
}

// usedShare is the share of the disk that images take.
func (m *machine) usedShare() float64 { return float64(m.used) * m.model.Expansion / float64(m.Disk) }

// collect is the kubelet's image garbage collection. Layers that another image needs
// stay, but the kubelet counts them as freed and stops earlier.
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

// changed makes the kubelet report: it lists its images at the next refresh, and
// reports them with the next status update after that. An agent gets an event, too.
func (m *machine) changed() {
	m.agent.changed()
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

// list returns the images that a NodeStatus lists, the largest first.
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

// maxNames is how many names of an image a kubelet reports
// (MaxNamesPerImageInNodeStatus in k8s.io/kubernetes/pkg/kubelet/nodestatus).
const maxNames = 5

// nextTick returns the first tick after now of a clock with a period and phase.
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
