// Package decisions logs how the nodes of a pod were rated, the same for a plugin and for an extender.
package decisions

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
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
func LogScores(logger klog.Logger, n int, of func(i int) (node string, score int64)) {
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
	logger.V(Pods).Info("Scored nodes", "nodes", n, "best", all[:min(n, best)])
	if each := logger.V(Nodes); each.Enabled() {
		for _, rated := range all {
			each.Info("Scored a node", "node", klog.KRef("", rated.Node), "score", rated.Score)
		}
	}
}

// LogPlugin is LogScores for the feasible nodes of a pod, as a plugin scores them.
func LogPlugin(ctx context.Context, plugin string, pod *v1.Pod, nodes []fwk.NodeInfo, score func(fwk.NodeInfo) int64) {
	logger := klog.FromContext(ctx)
	if !logger.V(Pods).Enabled() {
		return
	}
	LogScores(logger.WithCallDepth(1).WithValues("plugin", plugin, "pod", klog.KObj(pod)), len(nodes), func(i int) (string, int64) {
		return nodes[i].Node().Name, score(nodes[i])
	})
}
