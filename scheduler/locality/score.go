package locality

import (
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// MaxScore is the highest score, the same as kube-scheduler's.
const MaxScore = 100

// scorer turns what a node has and lacks into a score.
type scorer struct {
	minBytes    float64
	linkPenalty float64
}

func newScorer(args *config.LayerLocalityArgs) scorer {
	return scorer{
		minBytes:    float64(args.MinImageBytes),
		linkPenalty: float64(args.LinkPenalty) / 100,
	}
}

// Points are the parts of a score. The score is their sum, cut off at 0 and
// 100.
type Points struct {
	// Locality is the share of the pod's bytes that are present or arriving. If
	// the pod has fewer bytes than MinImageBytes, it is the share of
	// MinImageBytes.
	Locality float64 `json:"locality"`
	// Link is what the queue of the node's link costs, compared with the queues of the
	// other feasible nodes (see Delays).
	Link float64 `json:"link"`
	// Load is what load above the mean costs.
	Load float64 `json:"load"`
}

// Delays is how late a pod is on the nodes that it may go to, all in all: because of other
// pulls, in compressed bytes of a link (see late).
type Delays struct {
	least, sum float64
	nodes      int
}

// points rates a node. load is the points for its load, at most 0.
func (s *scorer) points(b index.NodeBytes, load float64, all Delays) Points {
	scale := s.scale(b)
	p := Points{Locality: MaxScore * float64(b.Present+b.Arriving) / scale, Load: load}
	if excess := late(b) - all.least; excess > 0 {
		// The share by which it waits longer, of what it waits anyway.
		p.Link = -MaxScore * s.linkPenalty * excess / (scale + all.mean())
	}
	return p
}

// scale is the bytes that are worth all the points.
func (s *scorer) scale(b index.NodeBytes) float64 { return max(float64(b.Total), s.minBytes) }

// maxLate bounds how late one node counts in the mean, in times the pod's own bytes: an
// endless queue somewhere must not make all others look short.
const maxLate = 20

// addDelay adds a node.
func (s *scorer) addDelay(all *Delays, b index.NodeBytes) {
	late := late(b)
	if all.nodes == 0 || late < all.least {
		all.least = late
	}
	all.sum += min(late, maxLate*s.scale(b))
	all.nodes++
}

func (d *Delays) mean() float64 { return d.sum / float64(max(1, d.nodes)) }

// late returns how much longer a pod waits on this node than on one that has nothing and
// pulls nothing else, in compressed bytes of its link; 0 if it does not.
func late(b index.NodeBytes) float64 {
	if b.Pending == 0 {
		return 0 // the common case
	}
	var queue int64
	switch missing := b.Missing(); {
	case missing > 0: // it shares the link with all pulls in progress
		queue = missing + b.Pending
	case b.Arriving+b.Crowded > 0: // it waits for pulls in progress
		queue = b.Pending
	}
	return float64(max(0, queue-b.Total))
}

// Score returns the sum of the points as a whole number in [0, 100].
func (p Points) Score() int64 {
	// A mean of equal numbers may differ from them in the last digit; this must
	// not cost a point.
	sum := p.Locality + p.Link + p.Load + 1e-6
	switch {
	case !(sum > 0): // also NaN, which cannot be
		return 0
	case sum >= MaxScore:
		return MaxScore
	}
	return int64(sum)
}
