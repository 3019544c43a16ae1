package page

import (
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// estimate is a mean over seeds with the ends of its 95 % confidence interval
// (Student's t).
type estimate struct {
	// Mean is NaN if there is none.
	Mean float64
	// Low and High are NaN if fewer than two seeds were run.
	Low, High float64
	// Seeds is the number of seeds in it.
	Seeds int
}

const confidence = 0.95

// none is the estimate without data.
func none() estimate { return estimate{math.NaN(), math.NaN(), math.NaN(), 0} }

// estimateOf leaves out missing values (NaN). If a value is infinite, there is
// no mean: leaving that value out would flatter the policy.
func estimateOf(values []float64) estimate {
	var known []float64
	for _, v := range values {
		if math.IsInf(v, 0) {
			return none()
		}
		if !math.IsNaN(v) {
			known = append(known, v)
		}
	}
	n := len(known)
	e := none()
	switch e.Seeds = n; n {
	case 0:
	case 1:
		e.Mean = known[0]
	default:
		mean, deviation := stat.MeanStdDev(known, nil)
		t := distuv.StudentsT{Sigma: 1, Nu: float64(n - 1)}.Quantile((1 + confidence) / 2)
		half := t * stat.StdErr(deviation, float64(n))
		e.Mean, e.Low, e.High = mean, mean-half, mean+half
	}
	return e
}

// ratio of a policy's value to that of the default policy. If both are 0, there
// is no difference; if only the default is 0, the ratio is infinite.
func ratio(value, base float64) float64 {
	if base == 0 && value == 0 {
		return 1
	}
	return value / base // infinite for a base of 0
}

// finite: there is a mean that can be printed and drawn.
func (e estimate) finite() bool { return !math.IsNaN(e.Mean) && !math.IsInf(e.Mean, 0) }

// half returns half of the interval's width; NaN if there is no interval.
func (e estimate) half() float64 { return e.High - e.Mean }
