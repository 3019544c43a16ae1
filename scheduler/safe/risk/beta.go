package risk

import "math"

// The accuracy of the continued fraction, and how many of its terms are computed at most. It
// needs about the root of the larger parameter.
const (
	accuracy = 1e-13
	mostTerm = 10_000
	tiny     = 1e-300
)

// Beta returns I_x(a,b), the regularized incomplete beta function: the probability that a
// quantity with the beta distribution of the parameters a and b, both above 0, is at most x.
func Beta(x, a, b float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	// The continued fraction converges fast below the mean (DLMF 8.17.22), so above it the
	// other tail is computed (DLMF 8.17.4).
	case x > (a+1)/(a+b+2):
		return 1 - tail(1-x, x, b, a)
	}
	return tail(x, 1-x, a, b)
}

// tail returns I_x(a,b) for x below the mean; y is 1-x.
func tail(x, y, a, b float64) float64 {
	lnA, _ := math.Lgamma(a)
	lnB, _ := math.Lgamma(b)
	lnAB, _ := math.Lgamma(a + b)
	front := math.Exp(a*math.Log(x) + b*math.Log(y) + lnAB - lnA - lnB)
	return min(front*fraction(x, a, b)/a, 1)
}

// fraction returns the continued fraction of DLMF 8.17.22, 1/(1 + d1/(1 + d2/(1 + ...))), by
// the method of Lentz (DLMF 3.10.6).
func fraction(x, a, b float64) float64 {
	not0 := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1., 1/not0(1-(a+b)*x/(a+1)) // d1 has m = 0
	result := d
	for m := 1.; m < mostTerm; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d = 1 / not0(1+even*d)
		c = not0(1 + even/c)
		result *= c * d
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d = 1 / not0(1+odd*d)
		c = not0(1 + odd/c)
		result *= c * d
		if math.Abs(c*d-1) < accuracy {
			break
		}
	}
	return result
}
