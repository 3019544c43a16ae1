package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// metrics of the resolver. Requests to registries are counted by package registry,
// writes by client-go.
type metrics struct {
	lookups     *prometheus.CounterVec
	writeErrors prometheus.Counter
	// looked counts images that a worker took from a queue.
	looked prometheus.Counter
	// unwritten and suppressed count what was too much for a namespace: objects of
	// references that are not resolved, and events.
	unwritten, suppressed prometheus.Counter
	// repaired counts objects that somebody else had changed.
	repaired prometheus.Counter
}

// newMetrics registers the metrics if there is a registerer.
func newMetrics(in *usage.Usage, objects *store.Store, queued func() int, registerer prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		looked:     counter("layerlocality_resolver_looked_total", "Images that a worker took from a queue, whether there was something to do or not."),
		unwritten:  counter("layerlocality_resolver_unwritten_total", "Failures without an object, because the namespaces of the image have as many as they may."),
		suppressed: counter("layerlocality_resolver_suppressed_events_total", "Events that were not sent, because their namespace got too many."),
		repaired:   counter("layerlocality_resolver_repairs_total", "ImageManifests that somebody else had changed or made, and that were put right."),
		lookups: prometheus.V2.NewCounterVec(prometheus.CounterVecOpts{
			CounterOpts: prometheus.CounterOpts{
				Name: "layerlocality_resolver_lookups_total",
				Help: "Questions about images, by what was asked (resolve, confirm; held: the layers of an image that nodes hold and no workload names) and the reason of the answer.",
			},
			VariableLabels: prometheus.ConstrainedLabels{
				{Name: "question", Constraint: registry.OneOf("resolve", "confirm", "held")},
				{Name: "reason", Constraint: registry.OneOf(v1alpha1.ReasonResolved, v1alpha1.ReasonInvalidReference, v1alpha1.ReasonDenied, v1alpha1.ReasonUnauthorized,
					v1alpha1.ReasonNotFound, v1alpha1.ReasonPlatformNotFound, v1alpha1.ReasonRateLimited, v1alpha1.ReasonUnavailable, v1alpha1.ReasonTooMany,
					v1alpha1.ReasonNotAccepted, v1alpha1.ReasonInvalidManifest)},
			},
		}),
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
		m.lookups, m.writeErrors, m.looked, m.unwritten, m.suppressed, m.repaired,
		gauge("layerlocality_resolver_queued_images", "Images in queues, due or for later.", nil, queued),
		gauge("layerlocality_resolver_images_in_use", "Images that workloads name.", nil, func() int { return len(in.All()) - in.CountOnlyOnNodes() }),
		gauge("layerlocality_resolver_images_on_nodes", "Images that nodes hold and no workload names.", nil, in.CountOnlyOnNodes),
		gauge(manifests, help, prometheus.Labels{"resolved": "true"}, func() int { n, _ := objects.Count(); return n }),
		gauge(manifests, help, prometheus.Labels{"resolved": "false"}, func() int { _, n := objects.Count(); return n }),
	)
	return m
}
