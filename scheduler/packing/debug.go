package packing

import (
	"math"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/packing/objective"
)

// Rating is what the objective is, and what it becomes with a pod on each of the nodes.
type Rating struct {
	Objective string `json:"objective"`
	// Value is the objective as the nodes are now: smaller is better.
	Value float64 `json:"value"`
	// Mean is how much nodes use, as a share of their capacity, and Deviation the standard
	// deviation over the nodes, by resource.
	Mean      map[v1.ResourceName]float64 `json:"mean"`
	Deviation map[v1.ResourceName]float64 `json:"deviation"`
	// NodesDiffer is how much nodes differ, PodsDiffer how much the pods do that were
	// counted: BinPack has them equal.
	NodesDiffer float64 `json:"nodesDiffer"`
	PodsDiffer  float64 `json:"podsDiffer"`
	PodsCounted int     `json:"podsCounted"`
	// Nodes are all nodes.
	Nodes []NodeRating `json:"nodes"`
}

// NodeRating is what the objective becomes with the pod on a node.
type NodeRating struct {
	Node string `json:"node"`
	// Use is how much of each resource is used, as a share.
	Use map[v1.ResourceName]float64 `json:"use"`
	// Value is the objective; nil if the pod has no room.
	Value *float64 `json:"value"`
	Score int64    `json:"score"`
}

// RateNodes implements debugpage.Rater. The pod does not count as seen.
func (pl *Packing) RateNodes(pod *v1.Pod, infos []fwk.NodeInfo) any {
	uses, capacity := pl.measure(infos)
	pl.mu.Lock()
	pods, differ := pl.demand.Pods(), pl.demand.Variability(capacity)
	pl.mu.Unlock()
	system, demand := objective.NewSystem(pl.kind, len(pl.resources), uses, differ), pl.demandOf(pod)
	rating := Rating{
		Objective: pl.args.Objective, Value: system.Now(), Mean: pl.named(system.Mean()), Deviation: pl.named(system.Deviation()),
		NodesDiffer: system.Variability(), PodsDiffer: differ, PodsCounted: pods, Nodes: []NodeRating{},
	}
	values, _ := pl.values(system, infos, demand)
	for i, score := range objective.Scores(values) {
		n, _ := pl.nodeOf(infos[i])
		node := NodeRating{Node: infos[i].Node().Name, Use: pl.named(n.use(objective.Vector{})), Score: score}
		if !math.IsNaN(values[i]) {
			node.Value = &values[i]
		}
		rating.Nodes = append(rating.Nodes, node)
	}
	return rating
}

// named returns numbers by the names of their resources.
func (pl *Packing) named(numbers objective.Vector) map[v1.ResourceName]float64 {
	named := map[v1.ResourceName]float64{}
	for i, name := range pl.resources {
		named[name] = numbers[i]
	}
	return named
}
