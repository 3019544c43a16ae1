package locality

import (
	"context"
	"iter"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Moment is what was read of a cluster at one moment.
type Moment struct {
	// Args are those of a profile.
	Args *config.LayerLocalityArgs
	// Nodes and Pods: those that are not finished. They must not change afterwards.
	Nodes []*v1.Node
	Pods  []*v1.Pod
	// Images are sources of the layers of images. They are not started.
	Images []ManifestSource
	// Reports writes the reports of nodes that count in place of their NodeStatus to the sink,
	// once; nil if there are none. It is not called without the argument nodeLayers.
	Reports func(NodeSink)
	Clock   clock.PassiveClock
}

// Snapshot is a Tracker of one moment, which follows nothing.
type Snapshot struct {
	*Profile
}

// NewSnapshot returns a Snapshot, whose profile has the name of a scheduler. It handles the
// objects as a Tracker does that lists them, so both rate nodes alike.
func NewSnapshot(ctx context.Context, profile string, m Moment) *Snapshot {
	t := newTracker(Config{Images: m.Images, Clock: m.Clock})
	t.nodeStore = cache.NewStore(cache.MetaNamespaceKeyFunc)
	t.podIndex = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byNode: nodeOf})
	s := &Snapshot{t.NewProfile(profile, m.Args)}
	if m.Reports != nil && m.Args.NodeLayers {
		m.Reports(nodeSink{t.index, t}) // kept until their Nodes come
	}
	for _, node := range m.Nodes {
		_ = t.nodeStore.Add(node) // its key is its name
	}
	for _, pod := range m.Pods {
		_ = t.podIndex.Add(pod)
	}
	nodes := t.nodeHandler(klog.FromContext(ctx))
	for _, node := range m.Nodes {
		nodes.OnAdd(node, true)
	}
	for _, pod := range m.Pods {
		t.follow(pod, false)
	}
	t.synced.Store(true)
	return s
}

// Index returns what is known about nodes and layers. Nothing may be reported to it.
func (s *Snapshot) Index() *index.Index { return s.tracker.index }

// ImagesOf counts the images of a node by what they are known from.
func (s *Snapshot) ImagesOf(node string) map[Provenance]int { return s.tracker.ImagesOf(node) }

// NodeImages yields the images of a node and what they are known from.
func (s *Snapshot) NodeImages(node string) iter.Seq2[index.NodeImage, Provenance] {
	return func(yield func(index.NodeImage, Provenance) bool) {
		for _, image := range s.tracker.index.NodeImages(node) {
			if !yield(image, provenanceOf(image.Report)) {
				return
			}
		}
	}
}

// Provenance returns how it is known that a node has an image under one of the names; empty if
// it does not have it.
func (s *Snapshot) Provenance(node string, names []imageref.Canonical) Provenance {
	return s.tracker.Provenance(node, names)
}

// HasFreshReport reports whether an agent reports the images of a Node, in place of its NodeStatus.
func (s *Snapshot) HasFreshReport(node *v1.Node) bool {
	return s.tracker.nodeReports.hasFresh(node)
}
