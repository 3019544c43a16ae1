package chaos

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
)

// Rules:
//
//   - a layer that a NodeStatus or a NodeLayers reports is in the node's container storage, or was; and so is the name
//     of an image
//   - nothing is reported for longer than grace after its removal; only time counts in which all could report
//   - a pod is placed no later than its counterpart, by the bound; and among pods that are ready after the longest time,
//     one of a hundred, the same holds
//   - the scheduler's index has for each node what one has that is built from the API
//   - the memory of a program in the last quarter is at most a tenth above that in the second.
const (
	grace   = time.Minute
	growth  = 1.1
	samples = 20 // of a quarter, at least, before memory is compared
)

// violations are what broke a rule, each once.
type violations struct {
	mu         sync.Mutex
	keys, list []string
	logf       func(string, ...any)
}

// add notes that something broke a rule, unless it is known by its key.
func (v *violations) add(key, format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Contains(v.keys, key) {
		return
	}
	v.keys, v.list = append(v.keys, key), append(v.list, fmt.Sprintf(format, args...))
	v.logf("VIOLATION: "+format, args...)
}

// outage is a time in which something did not work.
type outage struct {
	what     string
	from, to time.Time // to is zero as long as it lasts
}

// outages are all of them.
type outages struct {
	mu  sync.Mutex
	all []outage
}

// begin notes that something does not work, until end is called; works is false if it did not work before.
func (o *outages) begin(what string, now time.Time) (end func(time.Time), works bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.ContainsFunc(o.all, func(each outage) bool { return each.what == what && each.to.IsZero() }) {
		return nil, false
	}
	at := len(o.all)
	o.all = append(o.all, outage{what: what, from: now})
	return func(now time.Time) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all[at].to = now
	}, true
}

// during returns for how long one of these did not work between two times; several at once count more than once.
func (o *outages) during(from, to time.Time, what ...string) (sum time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, each := range o.all {
		if !slices.Contains(what, each.what) || each.from.After(to) || !each.to.IsZero() && each.to.Before(from) {
			continue
		}
		begin, end := each.from, each.to
		if begin.Before(from) {
			begin = from
		}
		if end.IsZero() || end.After(to) {
			end = to
		}
		sum += max(end.Sub(begin), 1) // a moment counts, too
	}
	return sum
}

// seen is when something was last in a node's container storage.
type seen map[string]time.Time

// check notes what is stored, and returns what is reported and should not be. down returns for how long nothing could be
// reported between two times. removing is whether images are being removed: what was pulled and removed between two checks
// was there, and is not known.
func (s seen) check(now time.Time, stored, reported []string, down func(from, to time.Time) time.Duration, removing bool) (broken []string) {
	for _, each := range stored {
		s[each] = now
	}
	for _, each := range reported {
		last, known := s[each]
		switch {
		case !known && removing:
			s[each] = now
		case !known:
			broken = append(broken, each+" is reported and was never there")
		case now.Sub(last)-down(last, now) > grace:
			broken = append(broken, fmt.Sprintf("%s is reported %.0f s after its removal", each, now.Sub(last).Seconds()))
		}
	}
	return broken
}

// waits are when a pod was created, placed and ready.
type waits struct{ created, scheduled, ready time.Time }

// late returns by how much a pod was placed later than it may be: as long as its counterpart took, a bound, and what the
// control plane was away. Times in objects are in whole seconds.
func (w waits) late(counterpart waits, bound time.Duration, o *outages, control ...string) time.Duration {
	if w.scheduled.IsZero() || counterpart.scheduled.IsZero() {
		return 0 // it is noted as one that was not placed
	}
	return w.scheduled.Sub(w.created) - counterpart.scheduled.Sub(counterpart.created) - bound - time.Second - o.during(w.created, w.scheduled, control...)
}

// sample is a program's resident memory at a time.
type sample struct {
	at    time.Duration
	bytes int64
}

// quarters returns the median of the second and of the last quarter of a time, and whether there are enough samples to
// compare them.
func quarters(all []sample, whole time.Duration) (second, last float64, enough bool) {
	var of [4][]float64
	for _, s := range all {
		of[min(3, int(4*s.at/whole))] = append(of[min(3, int(4*s.at/whole))], float64(s.bytes))
	}
	if len(of[1]) == 0 || len(of[3]) == 0 {
		return 0, 0, false
	}
	return timing.Median(of[1]), timing.Median(of[3]), len(of[1]) >= samples && len(of[3]) >= samples
}
