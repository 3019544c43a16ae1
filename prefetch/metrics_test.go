package prefetch

import (
	"testing"

	"github.com/layer-locality/layer-locality/internal/monitoring"
)

// The page of all metrics has those of layer-prefetcher with their labels, and no others. Nobody can make up values of the
// labels.
func TestMetricsAreDocumented(t *testing.T) {
	registered := &monitoring.Registered{}
	newMetrics(registered)
	if err := registered.Check("..", "layerlocality_prefetch_"); err != nil {
		t.Error(err)
	}
	if err := registered.CheckBounds(".."); err != nil {
		t.Error(err)
	}
}
