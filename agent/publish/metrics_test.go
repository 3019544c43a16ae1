package publish

import (
	"testing"

	"github.com/layer-locality/layer-locality/internal/monitoring"
)

// The page of all metrics has those of the agent with their labels, and no others. Nobody can make up
// values of the labels.
func TestMetricsAreDocumented(t *testing.T) {
	registered := &monitoring.Registered{}
	newMetrics(registered, func() float64 { return 0 })
	if err := registered.Check("../..", "layerlocality_agent_"); err != nil {
		t.Error(err)
	}
	if err := registered.CheckBounds("../.."); err != nil {
		t.Error(err)
	}
}
