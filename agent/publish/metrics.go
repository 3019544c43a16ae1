package publish

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// metrics of the agent on one node; those of the reader come through the handover.
type metrics struct {
	images, layers, bytes prometheus.Gauge
	object, left, pulls   prometheus.Gauge
	age                   prometheus.GaugeFunc
	delay                 prometheus.Histogram
	writes                *prometheus.CounterVec
	errors                *prometheus.CounterVec
	skipped               *prometheus.GaugeVec
	// reader counts what the reader has counted, from its last start on.
	reader map[string]int64
}

// newMetrics registers the metrics. age returns for how many seconds the runtime has not been
// read.
func newMetrics(registry prometheus.Registerer, age func() float64) *metrics {
	const namespace, subsystem = "layerlocality", "agent"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	m := &metrics{
		images: gauge("images", "Images of the node."),
		layers: gauge("layers", "Layers of the node, each once."),
		bytes:  gauge("layer_bytes", "Compressed bytes of these layers."),
		object: gauge("object_bytes", "Bytes of the lists in the NodeLayers last written, as JSON."),
		left:   gauge("left_out_images", "Images that were left out of it because it would be too large."),
		pulls:  gauge("pulls", "Downloads of layers that were going on at the last reading; only known with containerd."),
		age: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "read_age_seconds",
			Help: "Time since the runtime was last read; -1 if it has not been."}, age),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: "write_delay_seconds",
			Help:    "Time from when a change of the images was noticed until it was written.",
			Buckets: []float64{0.5, 1, 1.5, 2, 3, 5, 7, 10, 30, 60, 300}}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "writes_total",
			Help: "NodeLayers written, because of a change or to renew them."}, []string{"why"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "errors_total",
			Help: "Failures, by what failed (reader: reading the runtime; write: writing to the apiserver; handover: between the two containers) and why."}, []string{"in", "reason"}),
		skipped: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "skipped_images",
			Help: "Images of which something could not be used at the last reading, by what."}, []string{"reason"}),
		reader: map[string]int64{},
	}
	registry.MustRegister(m.images, m.layers, m.bytes, m.object, m.left, m.pulls, m.age, m.delay, m.writes, m.errors, m.skipped)
	// Start at 0, so that the first of each is seen as an increase.
	for _, why := range []string{changed, renewed} {
		m.writes.WithLabelValues(why)
	}
	m.read(&handover.State{})
	return m
}

// read takes over what the reader says of itself.
func (m *metrics) read(state *handover.State) {
	m.pulls.Set(float64(state.Pulls))
	counted := known(state.Errors, handover.ReadFailed, handover.WatchFailed, handover.HandoverFailed)
	for reason, n := range counted {
		m.errors.WithLabelValues("reader", reason).Add(float64(max(0, n-m.reader[reason]))) // a reader that began again counts from 0
	}
	m.reader = counted
	m.skipped.Reset()
	for reason, n := range known(state.Skipped, handover.TooManyImages, handover.NoManifest, handover.NoLayers, handover.NotUnpacked) {
		m.skipped.WithLabelValues(reason).Set(float64(n))
	}
}

// known returns counts by reason, 0 for those there are none of, with all but the reasons that are
// known as one: the reader has to do with whoever may pull images, and reasons become labels.
func known[N int | int64](counts map[string]N, reasons ...string) map[string]N {
	bounded := map[string]N{}
	for _, reason := range reasons {
		bounded[reason] = 0
	}
	for reason, n := range counts {
		if !slices.Contains(reasons, reason) {
			reason = "other"
		}
		bounded[reason] += n
	}
	return bounded
}

// wrote takes over what was written.
func (m *metrics) wrote(spec *v1alpha1.NodeLayersSpec, left int) {
	m.images.Set(float64(spec.TotalImages))
	m.layers.Set(float64(spec.TotalLayers))
	m.bytes.Set(float64(spec.TotalBytes))
	size := 0
	for _, list := range [][]string{spec.Layers, spec.Images} {
		for _, text := range list {
			size += len(text) + len(`"",`)
		}
	}
	m.object.Set(float64(size))
	m.left.Set(float64(left))
}
