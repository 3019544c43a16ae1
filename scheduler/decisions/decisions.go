// Package decisions logs how the nodes of a pod were rated, the same for a plugin and for an extender.
package decisions

import (
	"cmp"
	"slices"

	"k8s.io/klog/v2"
)

// The levels of -v at which decisions are in the log.
const (
	// Refusals is for nodes that a filter refuses, and for pods that are preempted.
	Refusals = 2
	// Pods is for each pod, with its best nodes.
	Pods = 4
	// Nodes is for each node of each pod.
	Nodes = 6
)

// best is how many nodes the log has at level Pods.
const best = 5

// Rated is a node with its score.
type Rated struct {
	Node  string `json:"node"`
	Score int64  `json:"score"`
}

// LogScores logs the best of n nodes, and at level Nodes all of them. of returns the i-th node and its
// score; nobody asks for it below level Pods. The values of the logger name the pod.
func LogScores(logger klog.Logger, message string, n int, of func(i int) (node string, score int64)) {
	logger = logger.WithCallDepth(1)
	if !logger.V(Pods).Enabled() {
		return
	}
	all := make([]Rated, n)
	for i := range all {
		all[i].Node, all[i].Score = of(i)
	}
	slices.SortFunc(all, func(a, b Rated) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Node, b.Node))
	})
	logger.V(Pods).Info(message, "nodes", n, "best", all[:min(n, best)])
	if each := logger.V(Nodes); each.Enabled() {
		for _, rated := range all {
			each.Info("Scored a node", "node", klog.KRef("", rated.Node), "score", rated.Score)
		}
	}
}
