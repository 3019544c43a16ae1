// Package risk has the formulas of the plugin Safe: how likely a node uses more of a resource
// than it should, and what that is worth as a score. Everything is a share of what the node
// has of the resource, from 0 to 1.
//
// The use of a resource is taken to have the beta distribution with the mean and the standard
// deviation that were measured.
package risk

import "math"

// leastDeviation is the deviation below which a use counts as constant: 0.1 % of a resource
// is less than measurements show, and smaller ones would need more and more time.
const leastDeviation = 1e-3

// Usage is how much of a resource is used: the mean and the standard deviation.
type Usage struct{ Mean, Deviation float64 }

// Node is what is known of a resource of a node, in any unit.
type Node struct {
	// Capacity is what there is of it, above 0.
	Capacity float64
	// Free is how much is free on average, Deviation the standard deviation of that.
	Free, Deviation float64
	// Forecast is how much will be free, and Weight, from 0 to 1, what that counts against
	// Free.
	Forecast, Weight float64
}

// With returns the use of the resource once a pod has come that demands more of it.
func (n Node) With(demand float64) Usage {
	free := (1-n.Weight)*n.Free + n.Weight*n.Forecast
	used := max(n.Capacity-free, 0)
	return Usage{Mean: share(used+demand, n.Capacity), Deviation: share(n.Deviation, n.Capacity)}
}

// share returns a part as a share of the whole, from 0 to 1.
func share(part, whole float64) float64 { return min(max(part/whole, 0), 1) }

// Above returns the probability that more than the share t of the resource is used.
func (u Usage) Above(t float64) float64 {
	constant := u.Deviation < leastDeviation
	switch {
	case u.Mean == 0, constant && u.Mean <= t:
		return 0
	// As much variance as only all or nothing has, or more.
	case constant, u.Deviation*u.Deviation >= u.Mean*(1-u.Mean):
		return 1
	}
	k := u.Mean*(1-u.Mean)/(u.Deviation*u.Deviation) - 1 // the sum of both parameters
	// The tails of a beta distribution are below exp(-2(k+1)d²), where d is the distance to
	// the mean (Marchal and Arbel, On the sub-Gaussianity of the Beta and Dirichlet
	// distributions, 2017). Here that is less than a double can add to 1.
	if d := t - u.Mean; 2*(k+1)*d*d > 40 {
		if d > 0 {
			return 0
		}
		return 1
	}
	return min(max(1-Beta(t, k*u.Mean, k*(1-u.Mean)), 0), 1)
}

// Exceeds reports whether the risk Above(t) is larger than an accepted one. Mostly that takes no
// distribution.
func (u Usage) Exceeds(t, accepted float64) bool {
	return !u.within(t, accepted) && u.Above(t) > accepted
}

// within reports whether the risk Above(t) is at most an accepted one whatever the distribution is: by
// Cantelli's inequality, none with this mean and deviation has a larger risk than s²/(s² + d²),
// where d is the distance from the mean up to t.
func (u Usage) within(t, accepted float64) bool {
	variance, d := u.Deviation*u.Deviation, t-u.Mean
	return d > 0 && variance < u.Mean*(1-u.Mean) && variance/(variance+d*d) <= accepted
}

// Worst returns the larger one of a risk and Above(t).
func (u Usage) Worst(t, risk float64) float64 {
	if u.within(t, risk) {
		return risk
	}
	return max(risk, u.Above(t))
}

// Overload returns the score of a risk, from 0 to 1, when risks up to accepted are taken.
func Overload(risk, accepted float64) float64 {
	if risk <= 0 {
		return 1
	}
	return 1 - math.Sqrt(min(risk/accepted, 1)) // also where nothing is accepted
}

// Balance returns the score of a use that is the better the smaller its mean is, and the
// steadier it is; from 0 to 1.
func (u Usage) Balance() float64 { return 1 - (u.Mean+math.Sqrt(u.Deviation))/2 }
