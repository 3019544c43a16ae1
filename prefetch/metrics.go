package prefetch

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics by source: object, template, tag, node.
type metrics struct {
	active                              prometheus.Gauge
	bytes, used, wasted, nodes, failure *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.V2.NewCounterVec(prometheus.CounterVecOpts{
			CounterOpts: prometheus.CounterOpts{Name: name, Help: help},
			VariableLabels: prometheus.ConstrainedLabels{{Name: "source", Constraint: func(source string) string {
				if slices.Contains(allSources, source) {
					return source
				}
				return "other"
			}}},
		})
	}
	m := &metrics{
		active:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "layerlocality_prefetch_active_pods", Help: "Pods that pull ahead now, as the leader counts them."}),
		bytes:   counter("layerlocality_prefetch_bytes_total", "Compressed bytes that nodes pulled ahead, by source."),
		used:    counter("layerlocality_prefetch_used_bytes_total", "Compressed bytes that nodes pulled ahead and a pod there then used, by source."),
		wasted:  counter("layerlocality_prefetch_wasted_bytes_total", "Compressed bytes that nodes pulled ahead and no pod there used within a day, or before the ImagePrefetch expired, by source."),
		nodes:   counter("layerlocality_prefetch_nodes_total", "Nodes that pulled ahead, once for each ImagePrefetch."),
		failure: counter("layerlocality_prefetch_failed_attempts_total", "Attempts of nodes to pull ahead that failed."),
	}
	if registerer != nil {
		registerer.MustRegister(m.active, m.bytes, m.used, m.wasted, m.nodes, m.failure)
	}
	for _, source := range allSources {
		for _, c := range []*prometheus.CounterVec{m.bytes, m.used, m.wasted, m.nodes, m.failure} {
			c.WithLabelValues(source)
		}
	}
	return m
}
