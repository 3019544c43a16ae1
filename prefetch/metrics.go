package prefetch

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics by source: object, template, tag, node.
type metrics struct {
	active                                                    prometheus.Gauge
	bytes, used, usedInHour, wasted, seconds, nodes, failures *prometheus.CounterVec
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
		active:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "layerlocality_prefetch_active_pods", Help: "Pods that pull ahead now, as the leader counts them."}),
		bytes:      counter("layerlocality_prefetch_bytes_total", "Compressed bytes that nodes pulled ahead, by source."),
		used:       counter("layerlocality_prefetch_used_bytes_total", "Compressed bytes that nodes pulled ahead and a pod there then used, by source."),
		usedInHour: counter("layerlocality_prefetch_used_within_hour_bytes_total", "Compressed bytes that nodes pulled ahead and a pod there then used within an hour, by source."),
		wasted:     counter("layerlocality_prefetch_wasted_bytes_total", "Compressed bytes that nodes pulled ahead and no pod there used within a day, or before the ImagePrefetch expired, by source."),
		seconds:    counter("layerlocality_prefetch_saved_seconds_total", "Seconds that the first pods on nodes did not wait for what came ahead, by source."),
		nodes:      counter("layerlocality_prefetch_nodes_total", "Nodes that pulled ahead, once for each ImagePrefetch."),
		failures:   counter("layerlocality_prefetch_failed_attempts_total", "Attempts of nodes to pull ahead that failed."),
	}
	counters := []*prometheus.CounterVec{m.bytes, m.used, m.usedInHour, m.wasted, m.seconds, m.nodes, m.failures}
	if registerer != nil {
		registerer.MustRegister(m.active)
	}
	for _, c := range counters {
		if registerer != nil {
			registerer.MustRegister(c)
		}
		for _, source := range allSources {
			c.WithLabelValues(source)
		}
	}
	return m
}
