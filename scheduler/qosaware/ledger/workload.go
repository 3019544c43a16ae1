package ledger

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

// workload is what is known of one workload: its pods that exist, and sums of the others.
type workload struct {
	key   Key
	terms account.Terms
	// from is the pod that stated the terms.
	from origin
	// since is when the first of its pods was made that is known, in Unix seconds.
	since int64
	// refused means that its SLO is not admitted, since decided; told is what its owner knows.
	refused, told bool
	// toldBy is the pod by which it was told last.
	toldBy  types.NamespacedName
	decided time.Time
	// replicas is how many pods have to run at once; 0 if nobody states it: then all that there are.
	replicas int
	pods     map[types.UID]*pod

	// ended are the sums of pods that are gone, and of Concurrent also of the running time of
	// all pods until settled.
	ended account.Counter
	// gone is how many pods are gone, and binding what their bindings took, in seconds:
	// unweighed, because how long a binding takes does not depend on when it was.
	gone    int
	binding float64
	// runs are intervals in which pods ran that are gone or were interrupted, and lives those
	// in which there were pods that are gone, as far as they are not settled. Only for
	// Concurrent.
	runs, lives []account.Interval
	settled     time.Time
	// empty is since when it has had no pods.
	empty time.Time
	// live is the age of the pods that existed when a state was saved, at savedAt, and have not
	// been seen since: ended has their seconds.
	live    float64
	savedAt time.Time

	// cached is the last tally; changed means that something has changed since.
	cached   tally
	cachedAt time.Time
	changed  bool
}

// pod is a pod that is not gone.
type pod struct {
	workload  *workload
	life      account.Life
	namespace string
	name      string
	// controller is the value of the annotation of that name.
	controller string
	priority   int32
	// nominated means that it has the promise of a node, on which others end.
	nominated bool
	// noRoom means that it found no room when it was last tried.
	noRoom bool
	// unknown is the owner that was not known when the workload was looked up.
	unknown types.UID
	// inherited means that a saved account of the workload does not have the pod any more.
	inherited bool
}

// alone reports whether the workload is a single pod without owner, which has no successor.
func (w *workload) alone() bool {
	_, alone := w.pods[w.key.UID]
	return alone
}

// waits reports whether the pod has no node, and nobody asked for its end.
func (p *pod) waits() bool { return p.life.Bound.IsZero() && p.life.Ended.IsZero() }

// placed reports whether the pod has a node, or one is held for it.
func (p *pod) placed() bool {
	return !p.life.Bound.IsZero() || !p.life.Reserved.IsZero() || p.nominated
}

// tally is what all pods of a workload add up to.
type tally struct {
	sums account.Sums
	// binding are the seconds that a binding takes.
	binding float64
	// running and pending count the pods whose end nobody has asked for, and placed those of
	// them that have a node, or for which one is held: they are on their way.
	running, pending, placed int
	// stuck counts those that have had a node for long and do not run.
	stuck int
}

const (
	// moment is for how long a tally is used to which nothing happened.
	moment = 100 * time.Millisecond
	// manyPods is from how many pods on the tally of a workload is used for longer, even if
	// something happened: for staleness.
	manyPods  = 64
	staleness = 250 * time.Millisecond
	// maxRuns is how many intervals a workload keeps before they are settled.
	maxRuns = 256
)

// tally adds up all pods.
func (w *workload) tally(window account.Window, now time.Time) tally {
	switch age := now.Sub(w.cachedAt); {
	case !w.changed && age >= 0 && age < moment, len(w.pods) >= manyPods && age >= 0 && age < staleness:
		return w.cached
	}
	t := tally{sums: w.ended.As(window, now)}
	seconds := w.binding
	for _, p := range w.pods {
		sums := p.life.Sums(window, now)
		switch {
		case w.terms.Measuring == account.Concurrent: // counted below
			sums.Running = 0
		case w.terms.Measuring == account.Aggregate && !p.life.Runs():
			sums = lost(sums)
		}
		t.sums = t.sums.Plus(sums)
		seconds += p.life.BindingSeconds(now)
		switch {
		case p.life.Runs():
			t.running++
		case p.life.Ended.IsZero():
			t.pending++
		}
		if p.life.Stuck(now) {
			t.stuck++
		}
		if p.life.Ended.IsZero() && p.placed() {
			t.placed++
		}
	}
	if w.terms.Measuring == account.Concurrent {
		t.sums = t.sums.Plus(w.unsettled(window, now))
	}
	if all := w.gone + len(w.pods); all > 0 && seconds > 0 {
		t.binding = seconds / float64(all)
	} else {
		t.binding = account.FirstBinding
	}
	w.cached, w.cachedAt, w.changed = t, now, false
	return t
}

// lost returns sums whose running time was for nothing.
func lost(s account.Sums) account.Sums {
	s.Lost, s.Running = s.Lost+s.Running, 0
	return s
}

// demand notes how many pods have to run at once from now on. What was before stays as it was.
func (w *workload) demand(replicas int, window account.Window, now time.Time) {
	if replicas == 0 || replicas == w.replicas {
		return
	}
	if w.replicas > 0 { // otherwise it is not a change, but was not known
		w.settle(window, now)
	}
	w.replicas, w.changed = replicas, true
}

// age notes when a pod was made.
func (w *workload) age(created int64) {
	if w.since == 0 || created < w.since {
		w.since = created
	}
}

// together returns how many pods have to run at once.
func (w *workload) together() int {
	if w.replicas > 0 {
		return w.replicas
	}
	n := 0
	for _, p := range w.pods {
		if p.life.Ended.IsZero() {
			n++
		}
	}
	return max(1, n)
}

// unsettled returns the running time after settled.
func (w *workload) unsettled(window account.Window, now time.Time) account.Sums {
	runs, lives := slices.Clone(w.runs), slices.Clone(w.lives)
	for _, p := range w.pods {
		runs, lives = append(runs, p.life.Run(now)), append(lives, p.life.Exists(now))
	}
	together, alone := account.Together(runs, lives, w.replicas, w.settled, now, window, now)
	return account.Sums{Running: together, Lost: alone}
}

// settle moves the running time until now to the sums, of which nothing can be changed any
// more. It keeps the memory of a workload small, and is done before something changes that
// running time depends on.
func (w *workload) settle(window account.Window, now time.Time) {
	if w.terms.Measuring != account.Concurrent || !w.settled.Before(now) {
		return
	}
	w.ended.Add(w.unsettled(window, now), window, now)
	w.settled, w.runs, w.lives, w.changed = now, nil, nil, true
}

// agree sets the terms that the newest pod states. Measuring to or from Concurrent begins
// anew with the pods that there are: running time is divided in another way then.
func (w *workload) agree(terms account.Terms, from origin) {
	if w.from != (origin{}) && from.compare(w.from) < 0 {
		return
	}
	if w.from != (origin{}) && (w.terms.Measuring == account.Concurrent) != (terms.Measuring == account.Concurrent) {
		w.ended, w.runs, w.lives, w.settled, w.live = account.Counter{}, nil, nil, time.Time{}, 0
	}
	w.terms, w.from, w.changed = terms, from, true
}

// interrupt notes that a pod does not run from a time on.
func (w *workload) interrupt(p *pod, window account.Window, at time.Time) {
	run := p.life.Run(at)
	p.life.Interrupt(window, at) // first, or what is settled would have the run twice
	w.remember(&w.runs, run)
	w.settleIfMany(window, at)
}

// remember keeps an interval of a pod, one of runs or of lives.
func (w *workload) remember(intervals *[]account.Interval, i account.Interval) {
	if w.terms.Measuring == account.Concurrent && i.From.Before(i.To) && w.settled.Before(i.To) {
		*intervals = append(*intervals, i)
	}
}

// settleIfMany settles if many intervals are kept.
func (w *workload) settleIfMany(window account.Window, now time.Time) {
	if max(len(w.runs), len(w.lives)) > maxRuns {
		w.settle(window, now)
	}
}

// bury adds a pod that is gone to the sums, and returns what it had, unweighed.
func (w *workload) bury(uid types.UID, p *pod, succeeded bool, window account.Window, now time.Time) account.Sums {
	delete(w.pods, uid)
	w.changed = true
	plain, sums := p.life.Sums(0, now), p.life.Sums(window, now)
	switch {
	case w.terms.Measuring == account.Concurrent:
		sums.Running = 0
		w.remember(&w.runs, p.life.Run(now))
		w.remember(&w.lives, p.life.Exists(now))
		w.settleIfMany(window, now)
	case w.terms.Measuring == account.Aggregate && !succeeded:
		sums, plain = lost(sums), lost(plain)
	}
	w.ended.Add(sums, window, now)
	w.gone++
	w.binding += p.life.BindingSeconds(now)
	if len(w.pods) == 0 {
		w.empty = now
	}
	return plain
}
