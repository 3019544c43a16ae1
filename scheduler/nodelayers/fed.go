package nodelayers

import (
	"context"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// Fed is a source that its host feeds with objects, in place of an apiserver; for simulations.
// It never takes an agent for gone.
type Fed struct{ source *Source }

var _ locality.NodeSource = &Fed{}

// NewFed returns a source without objects.
func NewFed() *Fed { return &Fed{&Source{nodes: map[string]*node{}}} }

// Name implements locality.NodeSource.
func (*Fed) Name() string { return Name }

// Start implements locality.NodeSource.
func (f *Fed) Start(_ context.Context, sink locality.NodeSink) (locality.Syncer, error) {
	f.source.sink = sink
	return f, nil
}

// HasSynced implements locality.Syncer.
func (*Fed) HasSynced() bool { return true }

// Set takes over an object as the apiserver has it, once the source is started. The error names
// what is left out.
func (f *Fed) Set(object *v1alpha1.NodeLayers, now time.Time) error {
	f.source.slim(object)
	return f.source.apply(object, now)
}
