package layerlocality

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// NodeImage is an image of the pod that a node has, and from what that is known.
type NodeImage struct {
	Image imageref.Canonical  `json:"image"`
	By    locality.Provenance `json:"by"`
}

// imagesOn returns those of the images that a node has.
func (pl *LayerLocality) imagesOn(node string, images []index.Wanted) (found []NodeImage) {
	for _, image := range images {
		if by := pl.tracker.Provenance(node, image.Names); by != "" {
			found = append(found, NodeImage{image.Names[0], by})
		}
	}
	return found
}

var registerProvenanceOnce sync.Once

// registerProvenance registers the metrics of what the images of nodes are known from; those of
// the first caller's index.
func registerProvenance(count func() map[locality.Provenance]int, silent func() (missing, stale int)) {
	registerProvenanceOnce.Do(func() { legacyregistry.CustomMustRegister(newProvenanceCollector(count, silent)) })
}

// provenanceCollector counts the images of nodes, and nodes without a fresh report of their agent,
// when metrics are collected.
type provenanceCollector struct {
	metrics.BaseStableCollector
	count   func() map[locality.Provenance]int
	silent  func() (missing, stale int)
	images  *metrics.Desc
	without *metrics.Desc
	stale   *metrics.Desc
}

func newProvenanceCollector(count func() map[locality.Provenance]int, silent func() (missing, stale int)) *provenanceCollector {
	return &provenanceCollector{
		count: count, silent: silent,
		images: metrics.NewDesc(
			metrics.BuildFQName("", subsystem, prefix+"node_images"),
			"Pairs of a node and an image it has, by what that is known from: the node's layers (layers), its name for the image and an ImageManifest (manifest), its name alone (name), pods that use or used it there (use).",
			[]string{"by"}, nil, metrics.ALPHA, ""),
		without: metrics.NewDesc(
			metrics.BuildFQName("", subsystem, prefix+"nodes_without_node_layers"),
			"Ready nodes with Linux that have no NodeLayers, although others have, and state no layers themselves.",
			nil, nil, metrics.ALPHA, ""),
		stale: metrics.NewDesc(
			metrics.BuildFQName("", subsystem, prefix+"nodes_with_stale_node_layers"),
			"Ready nodes whose NodeLayers is not renewed.",
			nil, nil, metrics.ALPHA, ""),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *provenanceCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- c.images
	ch <- c.without
	ch <- c.stale
}

// CollectWithStability implements metrics.StableCollector.
func (c *provenanceCollector) CollectWithStability(ch chan<- metrics.Metric) {
	for by, n := range c.count() {
		ch <- metrics.NewLazyConstMetric(c.images, metrics.GaugeValue, float64(n), string(by))
	}
	missing, stale := c.silent()
	ch <- metrics.NewLazyConstMetric(c.without, metrics.GaugeValue, float64(missing))
	ch <- metrics.NewLazyConstMetric(c.stale, metrics.GaugeValue, float64(stale))
}
