package peers

import (
	"testing"

	"github.com/layer-locality/layer-locality/internal/monitoring"
)

// The page of all metrics has these with their labels, and no others. Nobody can make up values of the labels.
func TestMetricsAreDocumented(t *testing.T) {
	registered := &monitoring.Registered{}
	NewMetrics(registered)
	if err := registered.Check("../..", "layerlocality_peers_"); err != nil {
		t.Error(err)
	}
	if err := registered.CheckBounds("../.."); err != nil {
		t.Error(err)
	}
}
