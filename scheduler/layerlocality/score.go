package layerlocality

import (
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

const maxScore = float64(fwk.MaxScore)

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

// points are what a score is made of; the sum, cut off at 0 and 100, is the
// score.
type points struct {
	// Locality is the share of the pod's bytes that are present or arriving, of
	// MinImageBytes if they are fewer.
	Locality float64 `json:"locality"`
	// Link is what the queue of the node's link costs.
	Link float64 `json:"link"`
	// Load is what load above the mean costs.
	Load float64 `json:"load"`
}

// points rates a node. load are the points for its load.
func (s *scorer) points(w index.Weight, load float64) points {
	scale := max(float64(w.Total), s.minBytes)
	p := points{Locality: maxScore * float64(w.Present+w.Arriving) / scale, Load: load}
	if late := s.late(w); late > 0 {
		p.Link = -maxScore * s.linkPenalty * late / scale
	}
	return p
}

// late returns for how many bytes the pod waits longer on this node than on one
// that has nothing and pulls nothing else.
func (s *scorer) late(w index.Weight) float64 {
	if w.Pending == 0 {
		return 0 // the common case
	}
	var queue int64
	switch missing := w.Missing(); {
	case missing > 0: // it shares the link with all that is pulled already
		queue = missing + w.Pending
	case w.Arriving+w.Crowded > 0: // it waits for what is pulled already
		queue = w.Pending
	}
	return float64(queue - w.Total)
}

// score returns the sum of the points as a whole number in [0, 100].
func (p points) score() int64 {
	// A mean of equal numbers may differ from them in the last digit; that must
	// not cost a point.
	sum := p.Locality + p.Link + p.Load + 1e-6
	switch {
	case !(sum > 0): // also NaN, which cannot be
		return 0
	case sum >= maxScore:
		return fwk.MaxScore
	}
	return int64(sum)
}
