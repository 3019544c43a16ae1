package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// Delivery is how images come to nodes: what people use instead of placing pods by layers,
// or beside it.
type Delivery int

const (
	// FromRegistry means that a node pulls an image from its registry when a pod needs it.
	FromRegistry Delivery = iota
	// FromPeers means that a layer which another node has comes from there, over the network
	// between the nodes (Spegel). Who begins before another node has it asks the registry.
	FromPeers
	// Ahead means that every node pulls each image before a pod needs it (ImagePullJob of
	// OpenKruise): Model.AheadLead before the first use of its name in the cluster.
	Ahead
	// Lazily means that a pod starts with a part of its image, Model.LazyShare; the rest
	// follows when the link is idle (eStargz, SOCI).
	Lazily
	// Template means that nodes which run a Deployment pull its next version as layer-prefetcher has them do: all but
	// one, Model.PrefetchDelay after the template has it, and the scheduler sees what is on its way.
	Template
	// Tag means the same, also for a single node, Model.TagLead before the rollout: that a tag has moved is known before a Deployment follows.
	Tag
	// NewNode means that a node which joins pulls the images that pods on at least half of the other nodes have, as
	// layer-prefetcher has it do: one after another, while its pods lack no more than pendingBytes.
	NewNode
)

// pendingBytes is what --max-pending-bytes of layer-prefetcher is by default.
const pendingBytes = 64 << 20

var deliveryNames = []string{"registry", "peers", "ahead", "lazy", "template", "tag", "node"}

// String returns the name that ParsePolicy takes.
func (d Delivery) String() string { return deliveryNames[d] }

func parseDelivery(name string) (Delivery, error) {
	i := slices.Index(deliveryNames, name)
	if i < 0 {
		return 0, fmt.Errorf("%q: want one of %s", name, strings.Join(deliveryNames, ", "))
	}
	return Delivery(i), nil
}

// lan is the network between nodes. A node sends and receives at the same bandwidth, which
// its transfers share equally; a transfer is as fast as the slower of its two shares.
type lan struct {
	q     *queue
	link  float64 // bytes per second of a node
	nodes []*machine
	flows []*transfer
	// at is the time up to which transfers are accounted for; id distinguishes the current
	// event for the next end of one from outdated ones.
	at time.Duration
	id uint64
}

// transfer is a layer on its way between two nodes.
type transfer struct {
	flow
	from, to *machine
	rate     float64
}

// holder returns a node that has a layer: of several, the one that sends least. nil if there
// is none.
func (l *lan) holder(b *blob, wants *machine) *machine {
	sends := map[*machine]int{}
	for _, f := range l.flows {
		sends[f.from]++
	}
	var best *machine
	for _, m := range l.nodes {
		if _, ok := m.present[b]; ok && m != wants && (best == nil || sends[m] < sends[best]) {
			best = m
		}
	}
	return best
}

// send begins a transfer for a pull.
func (l *lan) send(b *blob, from, to *machine, p *pull) {
	l.advance()
	l.flows = append(l.flows, &transfer{flow: flow{[]*pull{p}, b, float64(b.size)}, from: from, to: to})
	l.schedule()
}

// advance accounts for the bytes since the last call.
func (l *lan) advance() {
	for _, f := range l.flows {
		f.left -= (l.q.now - l.at).Seconds() * f.rate
	}
	l.at = l.q.now
}

// schedule sets the rates, and makes an event for the next end of a transfer.
func (l *lan) schedule() {
	l.id++
	if len(l.flows) == 0 {
		return
	}
	sends, receives := map[*machine]int{}, map[*machine]int{}
	for _, f := range l.flows {
		sends[f.from]++
		receives[f.to]++
	}
	after := math.Inf(1)
	for _, f := range l.flows {
		f.rate = l.link / float64(max(sends[f.from], receives[f.to]))
		after = min(after, max(0, f.left)/f.rate)
	}
	id := l.id
	l.q.at(l.q.now+time.Duration(min(after, longest)*1e9)+1, func() {
		if id == l.id {
			l.arrive()
		}
	})
}

// arrive ends the transfers that are complete.
func (l *lan) arrive() {
	l.advance()
	var through []*transfer
	l.flows = slices.DeleteFunc(l.flows, func(f *transfer) bool {
		if f.left > 0.5 {
			return false
		}
		through = append(through, f)
		return true
	})
	for _, f := range through {
		f.to.fromPeers += f.blob.size
		f.to.advance()
		f.to.landed([]*flow{&f.flow})
		f.to.schedule()
	}
	l.schedule()
}

// to returns the transfer that brings a layer to a node; nil if there is none.
func (l *lan) to(m *machine, b *blob) *flow {
	for _, f := range l.flows {
		if f.to == m && f.blob == b {
			return &f.flow
		}
	}
	return nil
}

// planAhead has every node pull each image before its first use.
func (r *run) planAhead(plan *workload.Plan) {
	planned := map[string]bool{}
	for _, e := range plan.Events {
		var name string
		switch {
		case e.Pod != nil:
			name = e.Pod.Image
		case e.Deploy != nil && e.Deploy.Replicas > 0:
			name = e.Deploy.Image
		}
		if name == "" || planned[name] {
			continue
		}
		planned[name] = true
		r.q.at(e.At-r.model.AheadLead, func() { // at the start, if that is in the past
			for _, m := range r.order {
				m.pullAhead(r.images[name], name)
			}
		})
	}
}

// pullsAhead reports whether a node still pulls what no pod waits for.
func (r *run) pullsAhead() bool {
	return r.prefetching > 0 || slices.ContainsFunc(r.order, func(m *machine) bool { return m.earlyPull != nil })
}

// planPrefetches has nodes pull the versions of Deployments that run before.
func (r *run) planPrefetches(plan *workload.Plan) {
	for _, e := range plan.Events {
		if e.Deploy == nil {
			continue
		}
		at := e.At + r.model.PrefetchDelay
		if r.delivery == Tag {
			at = e.At - r.model.TagLead
		}
		r.q.at(at, func() {
			if d := r.deployments[e.Deploy.Name]; d != nil {
				r.prefetch(d, e.Deploy.Image)
			}
		})
	}
}

// prefetch has nodes that run a Deployment pull an image with a pod each: all but one, those that lack least first.
func (r *run) prefetch(d *deployment, name string) {
	i := r.images[name]
	var nodes []*machine
	for _, p := range d.pods {
		if p.running && p.name != name && !slices.Contains(nodes, p.machine) {
			nodes = append(nodes, p.machine)
		}
	}
	slices.SortStableFunc(nodes, func(a, b *machine) int { return cmp.Compare(a.missing(i, name), b.missing(i, name)) })
	least := 0
	if r.delivery == Tag { // then no pod of the new version is there yet
		least = 1
	}
	for _, m := range nodes[:min(len(nodes), max(least, len(nodes)-1))] {
		r.prefetchOn(m, name, func() {})
	}
}

// prefetchNew has a new node pull what pods on at least half of the other nodes have, what most have first.
func (r *run) prefetchNew(m *machine) {
	where := map[string]map[string]bool{}
	for _, object := range r.scheduler.Pods.GetIndexer().List() {
		pod := object.(*v1.Pod)
		name := pod.Spec.Containers[0].Image
		if strings.HasPrefix(pod.Name, "prefetch-") {
			continue
		}
		if where[name] == nil {
			where[name] = map[string]bool{}
		}
		where[name][pod.Spec.NodeName] = true
	}
	maps.DeleteFunc(where, func(_ string, nodes map[string]bool) bool { return len(nodes) < 2 || 2*len(nodes) < len(r.order)-1 })
	names := slices.SortedFunc(maps.Keys(where), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(where[b]), len(where[a])), strings.Compare(a, b))
	})
	var next func()
	next = func() {
		var pending int64
		for _, p := range m.underway() {
			for _, b := range p.image.layers {
				if _, ok := m.present[b]; !ok {
					pending += b.size
				}
			}
		}
		switch {
		case len(names) == 0:
		case pending > pendingBytes:
			r.q.at(r.q.now+3*time.Second, next)
		default:
			name := names[0]
			names = names[1:]
			r.prefetchOn(m, name, next)
		}
	}
	next()
}

// prefetchOn has a node pull an image with a pod, unless it has all of it. done is called when it has.
func (r *run) prefetchOn(m *machine, name string, done func()) {
	i := r.images[name]
	r.use(name)
	if m.missing(i, name) == 0 {
		done()
		return
	}
	pod := r.newPod(name, "", 0, 0, false, "").object
	r.prefetches++
	pod.Name = fmt.Sprintf("prefetch-%d", r.prefetches)
	pod.UID, pod.Spec.NodeName = types.UID(pod.Name), m.Name
	r.fail(r.scheduler.Pods.Set(nil, pod))
	r.prefetching++
	m.use(i, name, func() {
		r.prefetching--
		running := runs(pod, name)
		r.fail(r.scheduler.Pods.Set(pod, running))
		// It ends when the node has reported the image.
		refresh := nextTick(r.q.now, r.model.ImageRefresh, m.phase[0])
		r.q.at(refresh, func() {
			r.q.at(nextTick(refresh, r.model.StatusUpdate, m.phase[1]), func() {
				m.release(i)
				r.fail(r.scheduler.Pods.Drop(running))
			})
		})
		done()
	})
}

// pullAhead pulls an image that no pod of the node needs yet, when all others that were
// asked for in this way are there. That is beside the pulls of the kubelet, which does not see
// it.
func (m *machine) pullAhead(i *image, name string) {
	m.early = append(m.early, newPull(i, name))
	m.startEarly()
}

func (m *machine) startEarly() {
	for m.earlyPull == nil && len(m.early) > 0 {
		p := m.early[0]
		m.early = m.early[1:]
		switch {
		case m.images[p.image] != nil:
			m.hold(p.image, p.name)
		case m.joined(p.name) == nil:
			m.earlyPull = p
			m.start(p)
		}
	}
}
