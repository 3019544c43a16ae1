package page

import (
	"math"
	"testing"
)

var nan, inf = math.NaN(), math.Inf(1)

// same compares to six digits; NaN is NaN.
func same(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || a == b || math.Abs(a-b) <= 1e-6*math.Abs(b)
}

// The intervals were computed by hand from tables of Student's t: 12.7062,
// 2.77645, 2.26216 for 1, 4 and 9 degrees of freedom.
func TestEstimateOf(t *testing.T) {
	for name, test := range map[string]struct {
		values          []float64
		mean, low, high float64
		seeds           int
	}{
		"nothing":        {nil, nan, nan, nan, 0},
		"one seed":       {[]float64{3}, 3, nan, nan, 1},
		"two":            {[]float64{0, 1}, 0.5, -5.8531024, 6.8531024, 2},
		"five":           {[]float64{1, 2, 3, 4, 5}, 3, 1.0367568, 4.9632432, 5},
		"ten":            {[]float64{2, 4, 4, 4, 5, 5, 7, 9, 6, 4}, 5, 3.6095961, 6.3904039, 10},
		"no spread":      {[]float64{7, 7, 7}, 7, 7, 7, 3},
		"missing":        {[]float64{1, nan, 2, 3, 4, 5}, 3, 1.0367568, 4.9632432, 5},
		"all missing":    {[]float64{nan, nan}, nan, nan, nan, 0},
		"infinite":       {[]float64{1, inf, 2}, nan, nan, nan, 0},
		"minus infinite": {[]float64{1, -inf}, nan, nan, nan, 0},
	} {
		e := estimateOf(test.values)
		if !same(e.Mean, test.mean) || !same(e.Low, test.low) || !same(e.High, test.high) || e.Seeds != test.seeds {
			t.Errorf("%s: %+v, want %v", name, e, test)
		}
	}
}

func TestRatio(t *testing.T) {
	for _, test := range []struct{ value, base, want float64 }{
		{1, 4, 0.25}, {0, 4, 0}, {0, 0, 1}, {3, 0, inf}, {nan, 1, nan}, {1, nan, nan}, {nan, 0, nan},
	} {
		if got := ratio(test.value, test.base); !same(got, test.want) {
			t.Errorf("%v / %v = %v, want %v", test.value, test.base, got, test.want)
		}
	}
}
