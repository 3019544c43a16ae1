package safe

import (
	"math"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// NodeRating is how a node is rated for a pod.
type NodeRating struct {
	Node string `json:"node"`
	// Rejected means that the filter does not let the pod go there.
	Rejected bool  `json:"rejected"`
	Score    int64 `json:"score"`
	// Resources has cpu and memory.
	Resources map[v1.ResourceName]ResourceRating `json:"resources"`
}

// ResourceRating is what a resource contributes. All numbers are shares, from 0 to 1.
type ResourceRating struct {
	// Mean is how much would be used on average with the pod, Deviation its standard
	// deviation.
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"deviation"`
	// Risk is the probability that more than utilizationPercent is used.
	Risk  float64 `json:"risk"`
	Score float64 `json:"score"`
	// Without is why there are no statistics, and Of what has that problem; empty if there
	// are.
	Without usage.Problem `json:"without,omitempty"`
	Of      string        `json:"of,omitempty"`
}

// RateNodes implements debugpage.Rater.
func (pl *Safe) RateNodes(pod *v1.Pod, nodes []fwk.NodeInfo) any {
	return pl.ratings(pl.begin(logr.Discard(), pod), nodes)
}

func (pl *Safe) ratings(c *cycle, nodes []fwk.NodeInfo) []NodeRating {
	all := make([]NodeRating, 0, len(nodes))
	for _, info := range nodes {
		rating := NodeRating{Node: info.Node().Name, Resources: map[v1.ResourceName]ResourceRating{}}
		known, score := pl.memory.of(info), math.Inf(1)
		for i, resource := range resources {
			p := pl.rate(c, known, i)
			r := ResourceRating{Mean: p.Mean, Deviation: p.Deviation, Risk: pl.risk(&p), Without: p.problem, Of: p.of}
			if p.problem == usage.None {
				r.Score = pl.score(&p)
				score = min(score, r.Score)
			}
			rating.Rejected = rating.Rejected || r.Risk > pl.accepted
			rating.Resources[resource] = r
		}
		if !math.IsInf(score, 1) {
			rating.Score = points(score)
		}
		all = append(all, rating)
	}
	return all
}
