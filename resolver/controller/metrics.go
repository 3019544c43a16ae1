package controller

import "github.com/prometheus/client_golang/prometheus"

// metrics of the resolver. Requests to registries are counted by package registry,
// writes by client-go, queues by controller-runtime.
type metrics struct {
	lookups     *prometheus.CounterVec
	writeErrors prometheus.Counter
}

// newMetrics registers the metrics if there is a registerer.
func newMetrics(usage *usage, store *store, registerer prometheus.Registerer) *metrics {
	m := &metrics{
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "layerlocality_resolver_lookups_total",
			Help: "Questions about images, by what was asked (resolve, confirm) and the reason of the answer.",
		}, []string{"question", "reason"}),
		writeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "layerlocality_resolver_write_errors_total",
			Help: "ImageManifests that could not be written; they are tried again.",
		}),
	}
	if registerer == nil {
		return m
	}
	gauge := func(name, help string, labels prometheus.Labels, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value()) })
	}
	const manifests, help = "layerlocality_resolver_image_manifests", "ImageManifests, by whether they have content. Of the leader."
	registerer.MustRegister(
		m.lookups, m.writeErrors,
		gauge("layerlocality_resolver_images_in_use", "Images that workloads name.", nil, func() int { return len(usage.all()) }),
		gauge(manifests, help, prometheus.Labels{"resolved": "true"}, func() int { n, _ := store.count(); return n }),
		gauge(manifests, help, prometheus.Labels{"resolved": "false"}, func() int { _, n := store.count(); return n }),
	)
	return m
}
