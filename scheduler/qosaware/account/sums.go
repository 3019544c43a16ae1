// Package account is the arithmetic of QosAware: what a workload got of the time that it was
// promised, and when it will have got too little. It has no state and no clock: every
// function depends on the times that it is given.
//
// The measure and its formulas are those of the qos-driven scheduler (Farias et al., 2020,
// doi 10.1186/s13174-020-00129-0), with a window added.
package account

import (
	"math"
	"time"
)

// Sums are pod-seconds, weighed by a Window.
type Sums struct {
	// Running counts as service.
	Running float64
	// Lost is time in which pods ran for nothing.
	Lost float64
	// Waiting is neither running nor binding: in the queue, or bound and not ready.
	Waiting float64
	// Binding passed between the choice of a node and the pod's being bound to it.
	Binding float64
}

// Total returns the age of the pods, in seconds.
func (s Sums) Total() float64 { return s.Running + s.Lost + s.Waiting + s.Binding }

// Plus adds.
func (s Sums) Plus(other Sums) Sums {
	return Sums{s.Running + other.Running, s.Lost + other.Lost, s.Waiting + other.Waiting, s.Binding + other.Binding}
}

// Times multiplies.
func (s Sums) Times(factor float64) Sums {
	return Sums{s.Running * factor, s.Lost * factor, s.Waiting * factor, s.Binding * factor}
}

// Service returns the share of the time that counts as service, from 0 to 1; 0 of no time.
func (s Sums) Service() float64 {
	if total := s.Total(); total > 0 {
		return s.Running / total
	}
	return 0
}

// Window is how long the past matters: a second that ended x ago weighs exp(-x/Window).
// Without a window (0), all seconds weigh the same.
type Window time.Duration

// Weigh returns the seconds between two times, weighed as of now. Nothing counts after now,
// and an interval that ends before it starts is empty.
func (w Window) Weigh(from, to, now time.Time) float64 {
	if to.After(now) {
		to = now
	}
	if !from.Before(to) {
		return 0
	}
	if w <= 0 {
		return to.Sub(from).Seconds()
	}
	// exp(-b) - exp(-a) for ages a > b, without the loss of digits of nearly equal numbers.
	return time.Duration(w).Seconds() * w.Decay(now.Sub(to)) * -math.Expm1(-to.Sub(from).Seconds()/time.Duration(w).Seconds())
}

// Decay returns what a weighed second still weighs after some time.
func (w Window) Decay(after time.Duration) float64 {
	if w <= 0 || after <= 0 {
		return 1
	}
	return math.Exp(-after.Seconds() / time.Duration(w).Seconds())
}

// Counter keeps sums of what is over: as they weighed at a time.
type Counter struct {
	Sums Sums
	At   time.Time
}

// As returns what the sums weigh at another time.
func (c Counter) As(w Window, now time.Time) Sums {
	if c.At.IsZero() {
		return Sums{}
	}
	return c.Sums.Times(w.Decay(now.Sub(c.At)))
}

// Add adds sums that are weighed as of now.
func (c *Counter) Add(s Sums, w Window, now time.Time) {
	if now.Before(c.At) { // an event that comes late
		s, now = s.Times(w.Decay(c.At.Sub(now))), c.At
	}
	*c = Counter{Sums: c.As(w, now).Plus(s), At: now}
}
