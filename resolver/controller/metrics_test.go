package controller

import (
	"testing"

	"github.com/layer-locality/layer-locality/internal/monitoring"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// The page of all metrics has those of the resolver, and of its client of registries, with their
// labels, and no others. Neither a registry nor a tenant can make up values of the labels.
func TestMetricsAreDocumented(t *testing.T) {
	registered := &monitoring.Registered{}
	newTestResolver(t, &fakeRegistry{}, func(o *Options, _ *dependencies) { o.Registerer = registered })
	if _, err := registry.New(registry.Config{Policy: emptyPolicy(t), Registerer: registered}); err != nil {
		t.Fatal(err)
	}
	if err := registered.Check("../..", "layerlocality_resolver_"); err != nil {
		t.Error(err)
	}
	if err := registered.CheckBounds("../.."); err != nil {
		t.Error(err)
	}
}
