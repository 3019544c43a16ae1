package nodelayers

import (
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/objects"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// NewClient returns a client for the resources of this project, for those who only list them.
func NewClient(config *rest.Config) (rest.Interface, error) { return objects.NewClient(config) }

// Static has the NodeLayers of one moment, and follows nothing. The zero value is not usable.
type Static struct {
	source  *Source
	reports map[string]*locality.NodeReport
}

// NewStatic returns a Static without objects.
func NewStatic() *Static {
	s := &Static{reports: map[string]*locality.NodeReport{}}
	s.source = &Source{nodes: map[string]*node{}, sink: internSink{reports: s.reports, images: map[fingerprint][]index.Image{}}}
	return s
}

// internSink retains the reports. Most images are on many nodes, which share them: otherwise they
// would be most of the memory.
type internSink struct {
	locality.NodeSink
	reports map[string]*locality.NodeReport
	images  map[fingerprint][]index.Image
}

// fingerprint is equal for equal images, and seldom for others.
type fingerprint struct {
	name   string
	layers int
	last   index.Layer
}

// maxCompared bounds how many images with its fingerprint an image is compared with: nodes may
// report anything.
const maxCompared = 16

// SetReport implements locality.NodeSink.
func (s internSink) SetReport(_, node string, report *locality.NodeReport) {
	if report == nil {
		delete(s.reports, node)
		return
	}
	for i := range report.Images {
		report.Images[i] = s.shared(&report.Images[i])
	}
	s.reports[node] = report
}

// shared returns an image that is equal to the given one: one from before, if there is one.
func (s internSink) shared(image *index.Image) index.Image {
	key := fingerprint{layers: len(image.Layers)}
	switch {
	case len(image.Names) > 0:
		key.name = image.Names[0]
	case len(image.Canonical) > 0:
		key.name = string(image.Canonical[0])
	}
	if key.layers > 0 {
		key.last = image.Layers[key.layers-1]
	}
	same := s.images[key]
	for _, other := range same {
		if slices.Equal(image.Names, other.Names) && slices.Equal(image.Canonical, other.Canonical) && slices.Equal(image.Layers, other.Layers) {
			return other
		}
	}
	if len(same) < maxCompared {
		s.images[key] = append(same, *image)
	}
	return *image
}

// Add takes over an object as the apiserver has it. Its texts are shared with other objects
// afterwards. The error names what is left out.
func (s *Static) Add(object *v1alpha1.NodeLayers, now time.Time) error {
	s.source.slim(object)
	return s.source.apply(object, now)
}

// Refused is what was refused so far; see Stats.
func (s *Static) Refused() int64 {
	s.source.mu.Lock()
	defer s.source.mu.Unlock()
	return s.source.stats.Refused
}

// Of returns the report from the NodeLayers of a node; nil if there is none.
func (s *Static) Of(node string) *locality.NodeReport { return s.reports[node] }

// Report writes the reports to a sink.
func (s *Static) Report(sink locality.NodeSink) {
	for name, report := range s.reports {
		sink.SetReport(Name, name, report)
	}
}
