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
	s.source = &Source{nodes: map[string]*node{}, sink: keeper{reports: s.reports, images: map[likeness][]index.Image{}}}
	return s
}

// keeper keeps the reports. Most images are on many nodes, which share them: otherwise they
// would be most of the memory.
type keeper struct {
	locality.LayerSink
	reports map[string]*locality.NodeReport
	images  map[likeness][]index.Image
}

// likeness is what images have in common that may be equal.
type likeness struct {
	name   string
	layers int
	last   index.Layer
}

// maxAlike bounds how many images another one is compared with: nodes may report anything.
const maxAlike = 16

// SetReport implements locality.LayerSink.
func (k keeper) SetReport(_, node string, report *locality.NodeReport) {
	if report == nil {
		delete(k.reports, node)
		return
	}
	for i := range report.Images {
		report.Images[i] = k.shared(&report.Images[i])
	}
	k.reports[node] = report
}

// shared returns an image that is equal to the given one: one from before, if there is one.
func (k keeper) shared(image *index.Image) index.Image {
	like := likeness{layers: len(image.Layers)}
	switch {
	case len(image.Names) > 0:
		like.name = image.Names[0]
	case len(image.Canonical) > 0:
		like.name = string(image.Canonical[0])
	}
	if like.layers > 0 {
		like.last = image.Layers[like.layers-1]
	}
	alike := k.images[like]
	for _, other := range alike {
		if slices.Equal(image.Names, other.Names) && slices.Equal(image.Canonical, other.Canonical) && slices.Equal(image.Layers, other.Layers) {
			return other
		}
	}
	if len(alike) < maxAlike {
		k.images[like] = append(alike, *image)
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
func (s *Static) Report(sink locality.LayerSink) {
	for name, report := range s.reports {
		sink.SetReport(Name, name, report)
	}
}
