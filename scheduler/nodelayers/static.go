package nodelayers

import (
	"time"

	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/internal/objects"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// NewClient returns a client for the resources of this project, for those who only list them.
func NewClient(config *rest.Config) (rest.Interface, error) { return objects.NewClient(config) }

// Static has what NodeLayers say at one moment, and follows nothing. The zero value is not
// usable.
type Static struct {
	source  *Source
	reports map[string]*locality.NodeReport
}

// NewStatic returns a Static without objects.
func NewStatic() *Static {
	s := &Static{reports: map[string]*locality.NodeReport{}}
	s.source = &Source{nodes: map[string]*node{}, sink: keeper{reports: s.reports}}
	return s
}

// keeper keeps what it is told.
type keeper struct {
	locality.LayerSink
	reports map[string]*locality.NodeReport
}

// SetReport implements locality.LayerSink.
func (k keeper) SetReport(_, node string, report *locality.NodeReport) {
	if report == nil {
		delete(k.reports, node)
		return
	}
	k.reports[node] = report
}

// Add takes over an object as the apiserver has it. Its texts are shared with other objects
// afterwards. The error tells what of it is left out.
func (s *Static) Add(object *v1alpha1.NodeLayers, now time.Time) error {
	s.source.slim(object)
	return s.source.apply(object, now)
}

// Stats count what was added.
func (s *Static) Stats() Stats { return s.source.Stats() }

// Report tells a sink what the objects say.
func (s *Static) Report(sink locality.LayerSink) {
	for name, report := range s.reports {
		sink.SetReport(Name, name, report)
	}
}
