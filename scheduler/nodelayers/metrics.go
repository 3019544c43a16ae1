package nodelayers

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var registerOnce sync.Once

// register registers the metrics of the process; those of the first caller.
func register(stats func() Stats) {
	registerOnce.Do(func() { legacyregistry.CustomMustRegister(newCollector(stats)) })
}

// collector reads the state of a source when metrics are collected.
type collector struct {
	metrics.BaseStableCollector
	stats   func() Stats
	nodes   *metrics.Desc
	refused *metrics.Desc
}

func newCollector(stats func() Stats) *collector {
	return &collector{
		stats: stats,
		nodes: metrics.NewDesc("scheduler_layerlocality_node_layers",
			"NodeLayers, by whether their layer-agent renews them (fresh), so that they count in place of NodeStatus, or not (stale).", []string{"state"}, nil, metrics.ALPHA, ""),
		refused: metrics.NewDesc("scheduler_layerlocality_node_layers_refused_total",
			"NodeLayers that are about no Node, and lines in them that are not valid, as often as they came.", nil, nil, metrics.ALPHA, ""),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- c.nodes
	ch <- c.refused
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	stats := c.stats()
	ch <- metrics.NewLazyConstMetric(c.nodes, metrics.GaugeValue, float64(stats.Fresh), "fresh")
	ch <- metrics.NewLazyConstMetric(c.nodes, metrics.GaugeValue, float64(stats.Stale), "stale")
	ch <- metrics.NewLazyConstMetric(c.refused, metrics.CounterValue, float64(stats.Refused))
}
