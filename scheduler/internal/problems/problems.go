// Package problems reports that nodes are rated without statistics, in a way that many such
// nodes neither flood the log nor slow the scheduler down.
package problems

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/scheduler/usage"
)

var (
	nodes = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "nodes_without_statistics_total", StabilityLevel: metrics.ALPHA,
		Help: "How often a node was rated without statistics of a resource, by plugin and reason: the node has no annotation (missing), the annotation is no number (invalid), the node has no capacity (capacity), the annotation is too old (unavailable).",
	}, []string{"plugin", "reason"})
	register sync.Once
)

// Reporter reports for one plugin. It may be used by several goroutines at once.
type Reporter struct {
	plugin string
	counts map[usage.Problem]metrics.CounterMetric
	logged sync.Map // problem and name: bounded, because the names are the plugin's own
}

// New returns the Reporter of a plugin.
func New(plugin string) *Reporter {
	register.Do(func() { legacyregistry.MustRegister(nodes) })
	r := &Reporter{plugin: plugin, counts: map[usage.Problem]metrics.CounterMetric{}}
	for _, problem := range usage.Problems { // begin at 0
		r.counts[problem] = nodes.WithLabelValues(plugin, string(problem))
	}
	return r
}

type kind struct {
	problem usage.Problem
	of      string
}

// longest is how much of a text the log has.
const longest = 64

// Note counts that a node is rated without statistics, and logs the first node of each
// problem of each statistic. of names the statistic, such as an annotation.
func (r *Reporter) Note(logger klog.Logger, node *v1.Node, problem usage.Problem, of string) {
	r.counts[problem].Inc()
	if _, again := r.logged.Load(kind{problem, of}); again { // nearly always, and without memory
		return
	}
	if _, again := r.logged.LoadOrStore(kind{problem, of}, true); again {
		return
	}
	text := node.Annotations[of]
	if len(text) > longest {
		text = text[:longest] + "..."
	}
	logger.Info("A node is rated without statistics; others with the same problem are only counted, in scheduler_nodes_without_statistics_total",
		"plugin", r.plugin, "node", klog.KObj(node), "reason", problem, "of", of, "value", text)
}
