package account

import (
	"math"
	"time"
)

// Measuring is how the service of a workload is made up of that of its pods.
type Measuring string

// The ways to measure.
const (
	// Average counts all running time.
	Average Measuring = "average"
	// Independent judges each pod alone.
	Independent Measuring = "independent"
	// Aggregate is for work that a preemption loses: only running pods and those that
	// succeeded count.
	Aggregate Measuring = "aggregate"
	// Concurrent counts the time in which all replicas run at once.
	Concurrent Measuring = "concurrent"
)

// Measurings are all of them.
var Measurings = []Measuring{Average, Independent, Aggregate, Concurrent}

// Terms are what a workload was promised.
type Terms struct {
	// SLO is the share of its time in which a workload shall run: above 0, at most 1.
	SLO float64
	// Measuring is what counts as running.
	Measuring Measuring
	// Overhead is the largest preemption overhead at which it may still be preempted
	// although it is short of service, from 0 to 1.
	Overhead float64
}

// Case is what the metric of a pod depends on.
type Case struct {
	// Sums are those of its workload; of the pod itself if the measuring is Independent.
	Sums Sums
	// Running and Pending are the pods of the workload whose end nobody has asked for.
	Running, Pending int
	// Runs is whether the pod itself is one of those that run.
	Runs bool
	// Replicas is how many have to run at once (Concurrent), at least 1.
	Replicas int
	// BindingPerPod is how long a pod's binding takes, in seconds.
	BindingPerPod float64
}

// FirstBinding is what a binding is taken to last before the first one was seen, in seconds:
// the published value.
const FirstBinding = 2.4

// nearly is by how much two shares may differ and still be taken as equal.
const nearly = 1e-9

// Metric returns in how many seconds the workload of a pod breaks its SLO if the pod does
// not run: negative if it is below it already, infinite if it never does.
func (t Terms) Metric(c Case, w Window) float64 {
	service := c.Sums.Service()
	left := t.Left(c.Sums)
	switch {
	case t.Measuring == Independent:
		return left - c.BindingPerPod
	case t.Measuring == Concurrent && service >= t.SLO:
		return left / float64(max(1, c.Replicas))
	case t.Measuring == Concurrent:
		return left - c.BindingPerPod
	case math.Abs(service-t.SLO) < nearly:
		return 0
	case service < t.SLO:
		return left - c.BindingPerPod
	default:
		return t.whileOthersRun(c, w)
	}
}

// Left returns the published "time to violate": for how many seconds nothing could run until
// the service is down to the SLO; negative if it is below.
func (t Terms) Left(s Sums) float64 { return s.Running/t.SLO - s.Total() }

// whileOthersRun returns in how many seconds a workload that is above its SLO breaks it
// while all its running pods but the judged one go on. Of n pods r run: the service moves
// towards r/n, so it is broken at last only if that is less than the SLO. With a window, old
// seconds lose their weight meanwhile: (E - sT) exp(-t/w) = (sn - r) w (1 - exp(-t/w)),
// solved for t.
func (t Terms) whileOthersRun(c Case, w Window) float64 {
	others, n := float64(c.Running), float64(c.Running+c.Pending)
	if c.Runs {
		others--
	}
	if n == 0 || others >= t.SLO*n {
		return math.Inf(1)
	}
	ahead := (c.Sums.Running - t.SLO*c.Sums.Total()) / (t.SLO*n - others)
	if w > 0 {
		window := time.Duration(w).Seconds()
		ahead = window * math.Log1p(ahead/window)
	}
	return ahead - c.BindingPerPod
}

// PreemptionOverhead returns which share of a workload's time on nodes preemptions cost: the
// bindings that they made necessary and, of Aggregate, the work that was lost. 0 of no time.
func (t Terms) PreemptionOverhead(s Sums) float64 {
	all := s.Binding + s.Running + s.Lost
	if all == 0 {
		return 0
	}
	if t.Measuring == Aggregate {
		return (s.Binding + s.Lost) / all
	}
	return s.Binding / all
}

// Accepts reports whether the overhead of a workload allows another preemption: it may not cost
// more than what the SLO leaves over.
func (t Terms) Accepts(s Sums) bool { return t.PreemptionOverhead(s) <= t.Acceptable()+nearly }

// Acceptable returns the largest overhead at which a preemption is accepted.
func (t Terms) Acceptable() float64 { return min(1-t.SLO, t.Overhead) }
