package risk

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestGolden has the published figures of the formulas: with the threshold .90, and risks up
// to .30 accepted.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		mean, deviation, risk float64
		overload, balance     int // of 10: rounded down, and half up
	}{
		{0, 0, 0, 10, 10}, {.5, 0, 0, 10, 8}, {.9, 0, 0, 10, 6}, {.95, 0, 1, 0, 5},
		{.5, .2, .013266, 7, 5}, {.7, .2, .174820, 2, 4}, {.8, .1, .158360, 2, 4},
		{.8, .3, .623471, 0, 3}, {.85, .1, .371595, 0, 4}, {.5, .5, 1, 0, 4},
	} {
		u := Usage{c.mean, c.deviation}
		risk := u.Above(.9)
		if math.Abs(risk-c.risk) > 5e-7 {
			t.Errorf("%+v: risk %.6f, want %.6f", u, risk, c.risk)
		}
		if got := int(Overload(risk, .3) * 10); got != c.overload {
			t.Errorf("%+v: overload %d, want %d", u, got, c.overload)
		}
		if got := int(u.Balance()*10 + .5); got != c.balance {
			t.Errorf("%+v: balance %d, want %d", u, got, c.balance)
		}
	}
	n := Node{Capacity: 4000, Free: 1600, Deviation: 400, Forecast: 1200, Weight: .2}
	u := n.With(500)
	if math.Abs(u.Mean-.745) > 1e-12 || math.Abs(u.Deviation-.1) > 1e-12 || math.Abs(u.Above(.9)-.039164) > 5e-7 {
		t.Errorf("%+v: %+v, risk %.6f", n, u, u.Above(.9))
	}
}

// TestWith has measurements that cannot be: more is free than there is, or nothing
// fits any more.
func TestWith(t *testing.T) {
	for _, c := range []struct {
		node   Node
		demand float64
		want   Usage
	}{
		{Node{Capacity: 4000, Free: 9000, Deviation: 9000}, 1000, Usage{.25, 1}},
		{Node{Capacity: 4000, Free: 0}, 1000, Usage{1, 0}},
		{Node{Capacity: 4000, Free: 4000, Forecast: 2000, Weight: 1}, 0, Usage{.5, 0}},
		{Node{Capacity: 4000, Free: 4000, Forecast: 2000}, 0, Usage{0, 0}},
	} {
		if got := c.node.With(c.demand); got != c.want {
			t.Errorf("%+v with %v: %+v, want %+v", c.node, c.demand, got, c.want)
		}
	}
}

// TestBounds draws uses, and checks what holds for all of them.
func TestBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		u := Usage{random.Float64(), math.Pow(random.Float64(), 4)}
		threshold := random.Float64()
		risk := u.Above(threshold)
		if !(risk >= 0 && risk <= 1) { // also if it is not a number
			t.Fatalf("%+v above %v: %v", u, threshold, risk)
		}
		if more := u.Above(threshold / 2); more < risk-1e-9 {
			t.Fatalf("%+v: more than %v is less likely (%v) than more than %v (%v)", u, threshold/2, more, threshold, risk)
		}
		accepted := random.Float64()
		if score := Overload(risk, accepted); !(score >= 0 && score <= 1) || (risk > accepted) && score != 0 {
			t.Fatalf("overload of %v, accepted %v: %v", risk, accepted, score)
		}
		if score := u.Balance(); !(score >= 0 && score <= 1) {
			t.Fatalf("balance of %+v: %v", u, score)
		}
	}
}

// TestNoneAccepted: where no risk is accepted, every risk is too large.
func TestNoneAccepted(t *testing.T) {
	if Overload(0, 0) != 1 || Overload(1e-9, 0) != 0 {
		t.Errorf("%v %v", Overload(0, 0), Overload(1e-9, 0))
	}
}

// TestShortCut compares the bound of the tails with what it stands for.
func TestShortCut(t *testing.T) {
	for mean := .05; mean < 1; mean += .05 {
		for _, deviation := range []float64{.001, .003, .01, .03, .1} {
			k := mean*(1-mean)/(deviation*deviation) - 1
			for threshold := .01; threshold < 1; threshold += .01 {
				u := Usage{mean, deviation}
				if got, want := u.Above(threshold), 1-Beta(threshold, k*mean, k*(1-mean)); math.Abs(got-want) > 1e-9 {
					t.Fatalf("%+v above %v: %v, want %v", u, threshold, got, want)
				}
			}
		}
	}
}

func BenchmarkAbove(b *testing.B) {
	for i := 0; b.Loop(); i++ {
		Usage{.3 + float64(i%50)/100, .05 + float64(i%7)/50}.Above(.9)
	}
}

// TestWorst: it is the larger one of both, however it was found.
func TestWorst(t *testing.T) {
	skipped := 0
	random := rand.New(rand.NewPCG(5, 6))
	for range 50_000 {
		u, threshold, risk := Usage{random.Float64(), math.Pow(random.Float64(), 3)}, random.Float64(), math.Pow(random.Float64(), 2)
		if got, want := u.Worst(threshold, risk), max(risk, u.Above(threshold)); got != want {
			t.Fatalf("%+v above %v, at least %v: %v, want %v", u, threshold, risk, got, want)
		}
		if u.within(threshold, risk) {
			skipped++
		}
	}
	if skipped < 1000 {
		t.Errorf("only %d risks need no distribution", skipped)
	}
}

// TestExceeds compares with the risk itself, also where it is defined and not computed.
func TestExceeds(t *testing.T) {
	exceeds := 0
	shares := []float64{0, 1e-4, 1e-3, .01, .05, .1, .2, .3, .4, .5, .6, .7, .8, .85, .9, .95, 1}
	for _, mean := range shares {
		for _, deviation := range shares {
			for _, threshold := range shares {
				for _, accepted := range shares {
					u := Usage{mean, deviation}
					want := u.Above(threshold) > accepted
					if got := u.Exceeds(threshold, accepted); got != want {
						t.Errorf("%+v above %v: risk %v, more than %v: %t", u, threshold, u.Above(threshold), accepted, got)
					}
					if want {
						exceeds++
					}
				}
			}
		}
	}
	if exceeds < 1000 {
		t.Errorf("only %d risks are too large", exceeds)
	}
}
