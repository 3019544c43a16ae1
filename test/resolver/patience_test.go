//go:build e2e

package resolver

import (
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/cluster/addons"
	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// TestPatience schedules pods of new images with the recommended profile, which waits a
// second for the resolver, while that is alive, dead, and back again.
func TestPatience(t *testing.T) {
	const pods = 16
	rows := [][]string{{"layer-resolver", "median", "longest", "more than half a second"}}
	var median time.Duration
	schedule := func(what string, most int) {
		t.Helper()
		references := make([]string, pods)
		for i := range references {
			references[i] = pushSmall(t, fmt.Sprintf("patience-%s-%d:v1", what, i+1)).Reference
		}
		took := latencies(t, "patience-"+what, scenario.Pod{Scheduler: scenario.Layers}, references...)
		held := 0
		for _, d := range took {
			if d > 500*time.Millisecond {
				held++
			}
		}
		rows = append(rows, []string{what, milliseconds(took[pods/2]), milliseconds(took[pods-1]), fmt.Sprint(held)})
		if held > most {
			t.Errorf("%s: %d of %d pods took more than half a second, %d may: %v", what, held, pods, most, took)
		}
		median = took[pods/2]
	}
	schedule("alive", pods)
	must(t, c.Addon(addons.LayerResolver).Kill(t.Context()))
	defer startResolver(t)
	schedule("dead", 3)
	if median > 250*time.Millisecond {
		t.Errorf("a dead resolver delays pods: the median is %s", median)
	}
	startResolver(t)
	schedule("back", pods)
	livetest.Table(t, rows...)
}
