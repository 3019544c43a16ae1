//go:build e2e

package resolver

import (
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/internal/cluster/addons"
	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// TestPatience schedules pods of new images with the recommended profile, which waits a
// second for the resolver, while that is alive, dead, and back again.
func TestPatience(t *testing.T) {
	const pods = 16
	rows := [][]string{{"layer-resolver", "median", "longest", "held and answered", "held in vain"}}
	// schedule returns how many pods were held, and by how that ended.
	schedule := func(what string) (ended map[string]int) {
		t.Helper()
		references := make([]string, pods)
		for i := range references {
			references[i] = pushSmall(t, fmt.Sprintf("patience-%s-%d:v1", what, i+1)).Reference
		}
		before, err := lab.Held(t.Context())
		must(t, err)
		took := latencies(t, "patience-"+what, scenario.Pod{Scheduler: scenario.Layers}, references...)
		ended, err = lab.Held(t.Context())
		must(t, err)
		for how := range ended {
			ended[how] -= before[how]
		}
		rows = append(rows, []string{what, milliseconds(took[pods/2]), milliseconds(took[pods-1]), fmt.Sprint(ended["known"]), fmt.Sprint(ended["timeout"])})
		return ended
	}
	// The metric has a value once a pod was held.
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: "patience", Image: pushSmall(t, "patience:v1").Reference, Scheduler: scenario.Layers}))
	removeAtEnd(t, "patience")
	must(t, lab.Ready(t.Context(), "patience"))

	if ended := schedule("alive"); ended["known"] == 0 {
		t.Errorf("alive: no pod waited for an answer: %v", ended)
	}
	must(t, c.Addon(addons.LayerResolver).Kill(t.Context()))
	defer startResolver(t)
	if ended := schedule("dead"); ended["timeout"] != 3 || ended["known"] != 0 {
		t.Errorf("dead: %v, want three pods that waited in vain", ended)
	}
	startResolver(t)
	if ended := schedule("back"); ended["known"] == 0 {
		t.Errorf("back: no pod waited for an answer: %v", ended)
	}
	livetest.Table(t, rows...)
}
