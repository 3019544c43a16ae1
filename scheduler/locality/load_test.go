package locality_test

import (
	"testing"

	"k8s.io/utils/ptr"

	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

func TestBalance(t *testing.T) {
	args := args(func(a *configv1.LayerLocalityArgs) {
		a.CPUPenalty, a.NoRequestPenalty = ptr.To[int32](8), ptr.To[int32](2)
	})
	// Of 10 CPUs, 60 % and 30 % are requested, by two pods and one; the second node has
	// two containers without a request, which count as 100m each.
	busy, other := locality.NewLoad(6000, 6000, 10_000, 2), locality.NewLoad(3000, 3200, 10_000, 1)
	var loads locality.Loads
	loads.Add(busy)
	loads.Add(other)
	loads.Add(locality.NewLoad(0, 0, 10_000, 0))
	for _, test := range []struct {
		request           int64 // the mean is (6000 + 3200) / 3
		penalty, ofTheOne float64
	}{
		{request: 9200, penalty: 8 * 3, ofTheOne: -8*3*(60-30) + 2*2./3},
		{request: 100_000, penalty: 8 * 4, ofTheOne: -8*4*(60-30) + 2*2./3},
		{request: 1, penalty: 8 * 0.25, ofTheOne: -8*0.25*(60-30) + 2*2./3},
	} {
		b := loads.BalanceFor(test.request, args)
		if !near(b.CPUPenalty, test.penalty) || b.NoRequestPenalty != 2 || !near(b.MeanCPUPercent, 30) || !near(b.MeanWithoutRequest, 2./3) {
			t.Errorf("request %d: %+v, want a penalty of %v", test.request, b, test.penalty)
		}
		if got := b.LoadPoints(busy); !near(got, test.ofTheOne) {
			t.Errorf("request %d: the busiest node loses %v, want %v", test.request, got, test.ofTheOne)
		}
		// As much CPU as the mean, but more containers without a request.
		if got, want := b.LoadPoints(other), -2*(2-2./3); !near(got, want) {
			t.Errorf("request %d: the second node loses %v, want %v", test.request, got, want)
		}
		if got := b.LoadPoints(locality.Load{}); got != 0 {
			t.Errorf("request %d: an idle node loses %v", test.request, got)
		}
	}
}

// The first pod of a cluster, and a node that says nothing of its CPU.
func TestBalanceOfNothing(t *testing.T) {
	args := args()
	var none locality.Loads
	none.Add(locality.NewLoad(0, 0, 0, 0))
	b := none.BalanceFor(100, args)
	if b.CPUPenalty != float64(args.CPUPenalty) || b.MeanCPUPercent != 0 {
		t.Errorf("%+v", b)
	}
	if got := b.LoadPoints(locality.NewLoad(500, 500, 0, 1)); got != 0 {
		t.Errorf("a node without CPU loses %v", got)
	}
}

func near(a, b float64) bool { return a-b < 1e-4 && b-a < 1e-4 }
