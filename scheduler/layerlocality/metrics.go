package layerlocality

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// pluginMetrics are in the scheduler's own registry, which already has the
// plugin's execution time: scheduler_plugin_execution_duration_seconds.
type pluginMetrics struct {
	images     *metrics.CounterVec
	placements *metrics.CounterVec
	requested  *metrics.CounterVec
	missing    *metrics.CounterVec
	gated      *metrics.CounterVec
}

const (
	subsystem = "scheduler"
	prefix    = "layerlocality_"
)

var (
	processMetrics *pluginMetrics
	registerOnce   sync.Once
)

// registerMetrics returns the metrics of the process. The size of the index is
// that of the first caller's index.
func registerMetrics(stats func() index.Stats) *pluginMetrics {
	registerOnce.Do(func() {
		counter := func(name, help string) *metrics.CounterOpts {
			return &metrics.CounterOpts{Subsystem: subsystem, Name: prefix + name, Help: help, StabilityLevel: metrics.ALPHA}
		}
		m := &pluginMetrics{
			images: metrics.NewCounterVec(counter("images_total",
				"Images of pods that were scored, by what was known about them: their layers, their name only, that they are arriving somewhere, or nothing (unknown)."),
				[]string{"known"}),
			placements: metrics.NewCounterVec(counter("placements_total",
				"Pods that were placed on one of several feasible nodes, by the least that was known about any of their images: its layers, its name only, that it is arriving somewhere, or nothing (unknown)."),
				[]string{"profile", "known"}),
			requested: metrics.NewCounterVec(counter("requested_bytes_total",
				"Compressed bytes of the known images of pods, whether their nodes had them or not, by profile. Those that scheduler_layerlocality_missing_bytes_total{of=\"chosen\"} does not count were there or on their way."),
				[]string{"profile"}),
			missing: metrics.NewCounterVec(counter("missing_bytes_total",
				"Compressed bytes of known images of pods that the chosen nodes lacked (of=\"chosen\"), and that the feasible nodes lacked on average (of=\"mean\"), by profile. The difference is what the profile saved."),
				[]string{"profile", "of"}),
			gated: metrics.NewCounterVec(counter("held_pods_total",
				"Pods that were held until their images are known (waitForManifest), by how it ended: known, or known to be unresolvable (known), the time was over (timeout), the pod was deleted or placed by another (gone). Those that are held now are in scheduler_pending_pods{queue=\"gated\"}."),
				[]string{"ended"}),
		}
		legacyregistry.MustRegister(m.images, m.placements, m.requested, m.missing, m.gated)
		// Start at 0, so that the first of each is seen as an increase.
		for _, known := range allKnown {
			m.images.WithLabelValues(string(known))
		}
		for _, ended := range []string{"known", "timeout", "gone"} {
			m.gated.WithLabelValues(ended)
		}
		legacyregistry.CustomMustRegister(newSizeCollector(stats))
		processMetrics = m
	})
	return processMetrics
}

// observe counts what was known about the images of a pod.
func (m *pluginMetrics) observe(images []index.Known) {
	for _, known := range images {
		m.images.WithLabelValues(string(known)).Inc()
	}
}

// placed counts a pod of a profile: the least that was known about its images, what they are and
// the chosen node lacks, and what an average node would lack.
func (m *pluginMetrics) placed(profile string, known index.Known, chosen *placements.Weights, mean float64) {
	m.placements.WithLabelValues(profile, string(known)).Inc()
	// What is missing is measured again when the node is chosen: it may be more by then.
	m.requested.WithLabelValues(profile).Add(float64(max(chosen.TotalBytes, chosen.MissingBytes)))
	m.missing.WithLabelValues(profile, "chosen").Add(float64(chosen.MissingBytes))
	m.missing.WithLabelValues(profile, "mean").Add(mean)
}

// start lets the counters of a profile start at 0, so that the first of each is seen as an
// increase.
func (m *pluginMetrics) start(profile string) {
	for _, known := range allKnown {
		m.placements.WithLabelValues(profile, string(known))
	}
	m.requested.WithLabelValues(profile)
	for _, of := range []string{"chosen", "mean"} {
		m.missing.WithLabelValues(profile, of)
	}
}

var allKnown = []index.Known{index.ByLayers, index.ByName, index.Arriving, index.Unknown}

// released counts a pod that was gated.
func (m *pluginMetrics) released(ended string) { m.gated.WithLabelValues(ended).Inc() }

// sizeCollector reads the size of the index when metrics are collected.
type sizeCollector struct {
	metrics.BaseStableCollector
	stats func() index.Stats
	size  *metrics.Desc
	bytes *metrics.Desc
}

func newSizeCollector(stats func() index.Stats) *sizeCollector {
	desc := func(name, help string, labels ...string) *metrics.Desc {
		return metrics.NewDesc(metrics.BuildFQName("", subsystem, prefix+name), help, labels, nil, metrics.ALPHA, "")
	}
	return &sizeCollector{
		stats: stats,
		size: desc("index_size", "Entries of the index: nodes, images, names, layers, pairs of a layer and a node that has it (layer_nodes), "+
			"placed pods whose layers have not been reported yet (reservations).", "of"),
		bytes: desc("pending_bytes", "Compressed bytes that placed pods wait for."),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *sizeCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- c.size
	ch <- c.bytes
}

// CollectWithStability implements metrics.StableCollector.
func (c *sizeCollector) CollectWithStability(ch chan<- metrics.Metric) {
	stats := c.stats()
	for of, n := range map[string]int{
		"nodes": stats.Nodes, "images": stats.Images, "names": stats.Names, "layers": stats.Layers,
		"layer_nodes": stats.LayerNodes, "reservations": stats.Reservations,
	} {
		ch <- metrics.NewLazyConstMetric(c.size, metrics.GaugeValue, float64(n), of)
	}
	ch <- metrics.NewLazyConstMetric(c.bytes, metrics.GaugeValue, float64(stats.PendingBytes))
}
