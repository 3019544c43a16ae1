package formulas

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mathext"

	"github.com/layer-locality/layer-locality/scheduler/safe/risk"
)

// compare checks the incomplete beta function at one place.
func compare(t *testing.T, x, a, b float64) {
	t.Helper()
	if got, want := risk.Beta(x, a, b), mathext.RegIncBeta(a, b, x); !(math.Abs(got-want) <= 1e-9) { // also if it is not a number
		t.Errorf("I_%v(%v,%v) = %v, gonum has %v", x, a, b, got, want)
	}
}

// TestBeta compares the incomplete beta function with that of gonum: for parameters of all
// sizes, and for those that a mean and a deviation lead to.
func TestBeta(t *testing.T) {
	for _, x := range []float64{0, 1e-12, .001, .1, .5, .9, .999, 1 - 1e-12, 1} {
		for _, a := range []float64{1e-3, .1, .5, 1, 1.5, 10, 100, 1000} {
			for _, b := range []float64{1e-3, .1, .5, 1, 1.5, 10, 100, 1000} {
				compare(t, x, a, b)
			}
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		mean := random.Float64()
		deviation := .003 + random.Float64()*(math.Sqrt(mean*(1-mean))-.003)
		k := mean*(1-mean)/(deviation*deviation) - 1
		if k <= 0 || k*mean == 0 || k*(1-mean) == 0 {
			continue
		}
		compare(t, random.Float64(), k*mean, k*(1-mean))
		// Around the mean, where it changes most.
		compare(t, min(max(mean+deviation*random.NormFloat64(), 0), 1), k*mean, k*(1-mean))
	}
}

func FuzzBeta(f *testing.F) {
	f.Add(.9, .5, .2)
	f.Add(.9, .85, .1)
	f.Fuzz(func(t *testing.T, x, mean, deviation float64) {
		if !(x >= 0 && x <= 1 && mean > 1e-6 && mean < 1-1e-6 && deviation > .003 && deviation < 1) {
			t.Skip("not a share of a resource")
		}
		if k := mean*(1-mean)/(deviation*deviation) - 1; k > 0 {
			compare(t, x, k*mean, k*(1-mean))
		}
	})
}
