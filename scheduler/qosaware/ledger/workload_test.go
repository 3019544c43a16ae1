package ledger

import (
	"fmt"
	"math"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

// TestRunsAreBounded has the pods of a concurrent workload be interrupted many times: what it
// keeps of that stays small, and what it adds up to stays right.
func TestRunsAreBounded(t *testing.T) {
	start := time.Unix(0, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	w := &workload{terms: account.Terms{SLO: .5, Measuring: account.Concurrent}, replicas: 2, pods: map[types.UID]*pod{}}
	for i := range 2 {
		w.pods[types.UID(fmt.Sprint(i))] = &pod{workload: w, life: account.Life{Created: start, Bound: start}}
	}
	const interruptions = 1000
	for i := range interruptions {
		for _, p := range w.pods { // both run from 0 to 5, one of them until 8
			p.life.Since = at(10 * i)
		}
		w.interrupt(w.pods["0"], 0, at(10*i+5))
		w.interrupt(w.pods["1"], 0, at(10*i+8))
		if len(w.runs) > maxRuns {
			t.Fatalf("%d intervals are kept", len(w.runs))
		}
	}
	got := w.tally(0, at(10*interruptions)).sums
	if math.Abs(got.Running-10*interruptions) > 1e-3 || math.Abs(got.Lost-3*interruptions) > 1e-3 || math.Abs(got.Total()-20*interruptions) > 1e-3 {
		t.Errorf("%+v", got)
	}
}
