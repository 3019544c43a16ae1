package account

import "time"

// Life has the times of one pod. A zero time has not come.
type Life struct {
	Created time.Time
	// Bound is when the pod got its node.
	Bound time.Time
	// Binding is how long the binding that ended at Bound took.
	Binding time.Duration
	// Reserved is the start of a binding that has not ended.
	Reserved time.Time
	// Since is when the pod began to run; zero if it does not run.
	Since time.Time
	// Earlier are seconds that it ran before it was interrupted, EarlierPlain the same unweighed,
	// and First is when it first began to run, if it was.
	Earlier      Counter
	EarlierPlain float64
	First        time.Time
	// Ended is when the pod finished or its deletion was asked for.
	Ended time.Time

	// stopped is when it was last interrupted.
	stopped time.Time
	// idled is for how long it had a node and did not run before it began to run, as far as that
	// counts; excused are the seconds that do not, and excusedPlain the same unweighed.
	idled        time.Duration
	excused      Counter
	excusedPlain float64
}

// MaxIdle is for how long, in all, the time counts in which a pod has a node and does not run: to be
// placed once more would not help it. It is pulling, starting, or broken.
const MaxIdle = 10 * time.Minute

// Runs reports whether the pod runs and nobody has asked for its end.
func (l *Life) Runs() bool { return !l.Since.IsZero() && l.Ended.IsZero() }

// end returns until when time is counted.
func (l *Life) end(now time.Time) time.Time {
	if !l.Ended.IsZero() && l.Ended.Before(now) {
		return l.Ended
	}
	return now
}

// binding returns the interval of the binding. Objects of the API have whole seconds, so a
// pod may seem to be bound as soon as it is created: then the binding comes first.
func (l *Life) binding(now time.Time) Interval {
	switch end := l.end(now); {
	case !l.Bound.IsZero():
		from := later(l.Created, l.Bound.Add(-l.Binding))
		return Interval{From: from, To: Earlier(from.Add(l.Binding), end)}
	case !l.Reserved.IsZero():
		return Interval{From: later(l.Created, l.Reserved), To: end}
	default:
		return Interval{}
	}
}

// Run returns the interval in which the pod runs or, after its end, ran; empty if it does
// not.
func (l *Life) Run(now time.Time) Interval {
	if l.Since.IsZero() {
		return Interval{}
	}
	return Interval{From: later(later(l.Since, l.Created), l.binding(now).To), To: l.end(now)}
}

// Exists returns the interval from the creation of the pod to its end.
func (l *Life) Exists(now time.Time) Interval { return Interval{From: l.Created, To: l.end(now)} }

// Began returns when the pod first began to run; zero if it never did.
func (l *Life) Began() time.Time {
	if !l.First.IsZero() || l.Since.IsZero() {
		return l.First
	}
	return later(l.Since, l.Created)
}

// Ran returns how long ago the pod began to run; 0 if it never did. An interruption does not
// begin anew, or a pod could keep itself young.
func (l *Life) Ran(now time.Time) time.Duration {
	if !l.First.IsZero() {
		return max(0, l.end(now).Sub(l.First))
	}
	run := l.Run(now)
	return max(0, run.To.Sub(run.From))
}

// idle returns the interval in which the pod has had its node and has not run until now, as far
// as it counts, and the rest.
func (l *Life) idle(now time.Time) (counts, excused Interval) {
	if l.Bound.IsZero() || !l.Since.IsZero() {
		return Interval{}, Interval{}
	}
	from, to := later(later(l.Bound, l.stopped), l.Created), l.end(now)
	limit := Earlier(from.Add(max(0, MaxIdle-l.idled)), to)
	return Interval{From: from, To: limit}, Interval{From: later(from, limit), To: to}
}

// Stuck reports whether the pod has had a node for so long without running that the time does not
// count any more.
func (l *Life) Stuck(now time.Time) bool {
	_, excused := l.idle(now)
	return l.Ended.IsZero() && excused.From.Before(excused.To)
}

// Begin notes that the pod, which did not run, runs from a time on.
func (l *Life) Begin(w Window, at time.Time) {
	counts, excused := l.idle(at)
	l.idled += max(0, counts.To.Sub(counts.From))
	if excused.From.Before(excused.To) {
		l.excused.Add(Sums{Waiting: excused.weigh(w, at)}, w, at)
		l.excusedPlain += excused.To.Sub(excused.From).Seconds()
	}
	l.Since = at
}

// Sums divides the age of the pod into running, waiting and binding, without what does not
// count. What is lost depends on more than one pod. Without a window nothing is weighed.
func (l *Life) Sums(w Window, now time.Time) Sums {
	ran, excused := l.EarlierPlain, l.excusedPlain
	if w > 0 {
		ran, excused = l.Earlier.As(w, now).Running, l.excused.As(w, now).Waiting
	}
	_, idle := l.idle(now)
	excused += idle.weigh(w, now)
	s := Sums{
		Running: ran + l.Run(now).weigh(w, now),
		Binding: l.binding(now).weigh(w, now),
	}
	s.Waiting = max(0, w.Weigh(l.Created, l.end(now), now)-s.Running-s.Binding-excused)
	return s
}

// Interrupt notes that the pod does not run from a time on.
func (l *Life) Interrupt(w Window, at time.Time) {
	if run := l.Run(at); run.From.Before(run.To) {
		l.Earlier.Add(Sums{Running: run.weigh(w, at)}, w, at)
		l.EarlierPlain += run.To.Sub(run.From).Seconds()
		if l.First.IsZero() {
			l.First = run.From
		}
	}
	l.Since, l.stopped = time.Time{}, at
}

// BindingSeconds returns how long bindings took, unweighed.
func (l *Life) BindingSeconds(now time.Time) float64 {
	if l.Bound.IsZero() && !l.Reserved.IsZero() {
		return max(0, l.end(now).Sub(l.Reserved).Seconds())
	}
	return l.Binding.Seconds()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Earlier returns the earlier one of two times.
func Earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
