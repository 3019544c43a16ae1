// Package objective has the formulas of the plugin Packing: what the use of all nodes is
// worth if a pod is put on one of them. Smaller is better.
//
// The use of a node is a share of its capacity, from 0 to 1, for each of a few resources.
// What all nodes together are worth is kept as sums, so that the use of one node can be
// exchanged without looking at the others.
package objective

import (
	"math"
	"slices"
)

// Most is how many resources there may be.
const Most = 5

// Vector has a number for each resource. Those that are not used are 0.
type Vector [Most]float64

// Kind is what is to become small.
type Kind int

const (
	// BinPack has nodes differ as much as pods do: the adaptive bin packing of Tantawi and
	// Steinder (Autonomic Cloud Placement of Mixed Workload, ICAC 2019). Equal pods are
	// spread, and where small ones and large ones are mixed, room for large ones is kept.
	BinPack Kind = iota
	// LoadBalance has all nodes use the same share of the first resource.
	LoadBalance
	// Consolidate has nodes use all or nothing of the first resource.
	Consolidate
)

// System is what all nodes use.
type System struct {
	kind      Kind
	resources int
	demand    float64 // the variability of demands
	n         float64
	// center is the mean of all uses. What follows are sums of the distances to it, so that
	// little is lost when they are subtracted.
	center   Vector
	sum      Vector
	products [Most]Vector
	// For Consolidate: the distances of the first resource, in order, and sums of the first
	// i of them and of their squares.
	sorted, sums, squares []float64
}

// NewSystem returns the System of the uses of all nodes, of so many resources. demand is
// Demand.Variability, which only BinPack needs.
func NewSystem(kind Kind, resources int, uses []Vector, demand float64) *System {
	s := &System{kind: kind, resources: resources, demand: demand, n: float64(len(uses))}
	for k := range uses {
		for i := range resources {
			s.center[i] += uses[k][i] / s.n
		}
	}
	for k := range uses {
		s.add(&uses[k], 1)
	}
	if kind == Consolidate {
		s.sort(uses)
	}
	return s
}

// add adds a use to the sums, or subtracts it with the sign -1.
func (s *System) add(use *Vector, sign float64) {
	for i := range s.resources {
		x := sign * (use[i] - s.center[i])
		s.sum[i] += x
		for j := range s.resources {
			s.products[i][j] += x * (use[j] - s.center[j])
		}
	}
}

// sort prepares the sums of Consolidate.
func (s *System) sort(uses []Vector) {
	s.sorted = make([]float64, len(uses))
	for i, use := range uses {
		s.sorted[i] = use[0] - s.center[0]
	}
	slices.Sort(s.sorted)
	s.sums, s.squares = make([]float64, len(uses)+1), make([]float64, len(uses)+1)
	for i, x := range s.sorted {
		s.sums[i+1], s.squares[i+1] = s.sums[i]+x, s.squares[i]+x*x
	}
}

// Now returns the objective as it is.
func (s *System) Now() float64 { return s.Exchange(Vector{}, Vector{}) }

// Exchange returns what the objective would be if one node did not use before but after.
func (s *System) Exchange(before, after Vector) float64 {
	changed := *s // the sorted lists are shared, and not changed
	if s.kind != BinPack {
		changed.resources = min(s.resources, 1) // the others look at the first one only
	}
	if before != after {
		changed.add(&before, -1)
		changed.add(&after, 1)
	}
	switch mean, covariance := changed.moments(); s.kind {
	case LoadBalance:
		return math.Sqrt(max(covariance[0][0], 0))
	case Consolidate:
		return s.consolidation(mean[0], before[0], after[0])
	default:
		return math.Abs(gamma(s.resources, &mean, &covariance) - s.demand)
	}
}

// Mean returns the mean use of each resource, and Deviation its standard deviation.
func (s *System) Mean() Vector {
	mean, _ := s.moments()
	return mean
}

// Deviation returns the standard deviation of the use of each resource.
func (s *System) Deviation() (deviation Vector) {
	_, covariance := s.moments()
	for i := range deviation {
		deviation[i] = math.Sqrt(max(covariance[i][i], 0))
	}
	return deviation
}

// Variability returns how much the uses of nodes differ: their gamma.
func (s *System) Variability() float64 {
	mean, covariance := s.moments()
	return gamma(s.resources, &mean, &covariance)
}

// moments returns the mean and the covariance of the uses.
func (s *System) moments() (mean Vector, covariance [Most]Vector) {
	if s.n == 0 {
		return mean, covariance
	}
	for i := range s.resources {
		mean[i] = s.center[i] + s.sum[i]/s.n
		for j := range s.resources {
			covariance[i][j] = s.products[i][j]/s.n - s.sum[i]/s.n*s.sum[j]/s.n
		}
	}
	return mean, covariance
}

// gamma returns sqrt(m'Sm)/(m'm) of a mean m and a covariance S of so many resources, a
// variability without a unit; 0 if the mean is.
func gamma(resources int, mean *Vector, covariance *[Most]Vector) float64 {
	var norm, form float64
	for i := range resources {
		norm += mean[i] * mean[i]
		for j := range resources {
			form += mean[i] * covariance[i][j] * mean[j]
		}
	}
	if norm == 0 {
		return 0
	}
	return math.Sqrt(max(form, 0)) / norm
}

// consolidation returns how far nodes are from using all or nothing of the first resource,
// whose mean is a, when one of them exchanges its use: 1 less the root of the mean square of
// their distances to a, each relative to the largest one that is possible.
func (s *System) consolidation(a, before, after float64) float64 {
	if s.n == 0 || a <= 0 || a >= 1 {
		return 0
	}
	// All nodes as they are: those up to the mean, and those above.
	shift := a - s.center[0]
	low, _ := slices.BinarySearchFunc(s.sorted, shift, func(x, shift float64) int {
		if x <= shift {
			return -1
		}
		return 1
	})
	all := len(s.sorted)
	below := float64(low)*shift*shift - 2*shift*s.sums[low] + s.squares[low]
	n, sum, square := s.n-float64(low), s.sums[all]-s.sums[low], s.squares[all]-s.squares[low]
	above := n*shift*shift - 2*shift*sum + square
	squares := below/(a*a) + above/((1-a)*(1-a))
	if before != after {
		squares += squared(after, a) - squared(before, a)
	}
	return 1 - math.Sqrt(max(squares/s.n, 0))
}

// squared returns the square of a use's distance to the mean a, as a share of the largest.
func squared(use, a float64) float64 {
	d := (a - use) / a
	if use > a {
		d = (use - a) / (1 - a)
	}
	return d * d
}

// equal is the difference below which objectives are the same: they are computed in another
// order for each node.
const equal = 1e-9

// Scores returns a score from 0 to 100 for each objective: 100 for the best, 10 for the
// worst, in proportion between them. If all are the same, each gets 100. One that is not a
// number gets 0: the pod has no room on that node.
func Scores(objectives []float64) []int64 {
	best, worst := math.Inf(1), math.Inf(-1)
	for _, x := range objectives {
		if !math.IsNaN(x) {
			best, worst = min(best, x), max(worst, x)
		}
	}
	scores := make([]int64, len(objectives))
	for i, x := range objectives {
		switch {
		case math.IsNaN(x):
		case worst-best <= equal:
			scores[i] = 100
		default:
			scores[i] = int64(10 + 90*(worst-x)/(worst-best) + equal)
		}
	}
	return scores
}
