package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

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
	// Copies means that layers which many images need are kept on a few nodes each, also if no pod brings them there:
	// nodes whose links are idle pull the smallest image on them.
	Copies
)

var deliveryNames = []string{"registry", "peers", "ahead", "lazy", "copies"}

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

// A layer is a base if so many images need it and it is so large. Copies of it are kept on so many nodes.
const (
	copiesTick     = time.Minute
	imagesOnBase   = 10
	leastBaseBytes = 20_000_000
	copiesOfBase   = 3
	copiesShare    = 0.6 // of a disk, as --max-disk-share of layer-prefetcher
)

// keepCopies has idle nodes pull bases of the images that have been used, from now on.
func (r *run) keepCopies() {
	var bases []*blob
	users, smallest := map[*blob]int{}, map[*blob]string{}
	for _, name := range slices.Sorted(maps.Keys(r.known)) {
		for _, b := range r.images[name].layers {
			if users[b]++; users[b] == imagesOnBase && b.size >= leastBaseBytes {
				bases = append(bases, b)
			}
			if before := smallest[b]; before == "" || r.images[name].size < r.images[before].size {
				smallest[b] = name
			}
		}
	}
	for _, b := range bases {
		copies := 0
		var idle *machine
		for _, m := range r.order {
			switch _, there := m.present[b]; {
			case there || m.expects(b):
				copies++
			case len(m.underway())+len(m.early) == 0 && m.usedShare() < copiesShare && (idle == nil || m.usedShare() < idle.usedShare()):
				idle = m
			}
		}
		if idle != nil && copies < copiesOfBase {
			idle.pullAhead(r.images[smallest[b]], smallest[b])
		}
	}
	r.q.at(r.q.now+copiesTick, r.keepCopies)
}

// pullsAhead reports whether a node still pulls what no pod waits for.
func (r *run) pullsAhead() bool {
	return slices.ContainsFunc(r.order, func(m *machine) bool { return m.earlyPull != nil })
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
