package nodelayers

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var registerOnce sync.Once

// register registers the metrics of the process; those of the first caller.
func register(stats func() Stats, ages func() Ages) {
	registerOnce.Do(func() { legacyregistry.CustomMustRegister(newCollector(stats, ages)) })
}

// collector reads the state of a source when metrics are collected.
type collector struct {
	metrics.BaseStableCollector
	stats   func() Stats
	ages    func() Ages
	nodes   *metrics.Desc
	age     *metrics.Desc
	refused *metrics.Desc
}

func newCollector(stats func() Stats, ages func() Ages) *collector {
	return &collector{
		stats: stats,
		ages:  ages,
		nodes: metrics.NewDesc("scheduler_layerlocality_node_layers",
			"NodeLayers, by whether their layer-agent renews them (fresh), so that they count in place of NodeStatus, or not (stale).", []string{"state"}, nil, metrics.ALPHA, ""),
		// Three gauges: component-base has no histogram of a state, only of events, and a label
		// quantile belongs to summaries.
		age: metrics.NewDesc("scheduler_layerlocality_node_layers_age_seconds",
			"Time since this process last saw NodeLayers renewed: median, 99th percentile (p99) and longest (oldest). Absent without NodeLayers.", []string{"of"}, nil, metrics.ALPHA, ""),
		refused: metrics.NewDesc("scheduler_layerlocality_node_layers_refused_total",
			"NodeLayers that are about no Node, and lines in them that are not valid, as often as they came.", nil, nil, metrics.ALPHA, ""),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- c.nodes
	ch <- c.age
	ch <- c.refused
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	stats := c.stats()
	ch <- metrics.NewLazyConstMetric(c.nodes, metrics.GaugeValue, float64(stats.Fresh), "fresh")
	ch <- metrics.NewLazyConstMetric(c.nodes, metrics.GaugeValue, float64(stats.Stale), "stale")
	if stats.Fresh+stats.Stale > 0 {
		ages := c.ages()
		ch <- metrics.NewLazyConstMetric(c.age, metrics.GaugeValue, ages.Median.Seconds(), "median")
		ch <- metrics.NewLazyConstMetric(c.age, metrics.GaugeValue, ages.P99.Seconds(), "p99")
		ch <- metrics.NewLazyConstMetric(c.age, metrics.GaugeValue, ages.Oldest.Seconds(), "oldest")
	}
	ch <- metrics.NewLazyConstMetric(c.refused, metrics.CounterValue, float64(stats.Refused))
}
