package publish

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// The values of labels. Reasons of writes are those of Kubernetes: an admission webhook can make up others.
const (
	inReader, inWrite, inHandover = "reader", "write", "handover"
	// stateFailed and reportFailed are what of a handover could not be read.
	stateFailed, reportFailed = "state", "report"
	other                     = "other"
)

var (
	readerErrors   = []string{handover.ReadFailed, handover.WatchFailed, handover.HandoverFailed}
	handoverErrors = []string{stateFailed, reportFailed}
	writeErrors    = reasonsOf(
		metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict,
		metav1.StatusReasonGone, metav1.StatusReasonInvalid, metav1.StatusReasonServerTimeout, metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests,
		metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnsupportedMediaType,
		metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable)
	skipReasons = []string{handover.TooManyImages, handover.NoManifest, handover.NoLayers, handover.NotUnpacked, handover.NoArtifacts}
)

func reasonsOf(reasons ...metav1.StatusReason) (texts []string) {
	for _, reason := range reasons {
		texts = append(texts, string(reason))
	}
	return texts
}

// oneOf returns the constraint of a label to these values: all others are counted as other.
func oneOf(values ...string) prometheus.LabelConstraint {
	return func(value string) string {
		if slices.Contains(values, value) {
			return value
		}
		return other
	}
}

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
		bytes:  gauge("layer_bytes", "Compressed bytes of the layers of the node, each once."),
		object: gauge("object_bytes", "Bytes of the lists in the NodeLayers last written, as JSON."),
		left:   gauge("left_out_images", "Images that were left out of the NodeLayers because it would be too large."),
		pulls:  gauge("pulls", "Downloads of layers that were going on at the last reading; only known with containerd."),
		age: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "read_age_seconds",
			Help: "Time since the runtime was last read; -1 if it has not been."}, age),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: "write_delay_seconds",
			Help:    "Time from when a change of the images was noticed until it was written.",
			Buckets: []float64{0.5, 1, 1.5, 2, 3, 5, 7, 10, 30, 60, 300}}),
		writes: prometheus.V2.NewCounterVec(prometheus.CounterVecOpts{
			CounterOpts: prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "writes_total",
				Help: "NodeLayers written, because of a change or to renew them."},
			VariableLabels: prometheus.ConstrainedLabels{{Name: "why", Constraint: oneOf(changed, renewed)}}}),
		errors: prometheus.V2.NewCounterVec(prometheus.CounterVecOpts{
			CounterOpts: prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "errors_total",
				Help: "Failures, by what failed (reader: reading the runtime; write: writing to the apiserver; handover: between the two containers) and why."},
			VariableLabels: prometheus.ConstrainedLabels{{Name: "in", Constraint: oneOf(inReader, inWrite, inHandover)}, {Name: "reason", Constraint: oneOf(slices.Concat(readerErrors, handoverErrors, writeErrors)...)}}}),
		skipped: prometheus.V2.NewGaugeVec(prometheus.GaugeVecOpts{
			GaugeOpts: prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "skipped_images",
				Help: "Images of which the last reading could use a part only, by reason."},
			VariableLabels: prometheus.ConstrainedLabels{{Name: "reason", Constraint: oneOf(skipReasons...)}}}),
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

// read takes over the reader's state.
func (m *metrics) read(state *handover.State) {
	m.pulls.Set(float64(state.Pulls))
	counted := known(state.Errors, readerErrors...)
	for reason, n := range counted {
		m.errors.WithLabelValues(inReader, reason).Add(float64(max(0, n-m.reader[reason]))) // a reader that began again counts from 0
	}
	m.reader = counted
	m.skipped.Reset()
	for reason, n := range known(state.Skipped, skipReasons...) {
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
			reason = other
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
