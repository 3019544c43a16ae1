package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
)

// Rules:
//
//   - a layer that a NodeStatus or a NodeLayers reports is in the node's container storage, or was; and so is the name
//     of an image
//   - each of them reports something in a run: layers, and a NodeStatus names of images; and so does the index
//   - nothing is reported for longer than grace after its removal; only time counts in which all could report
//   - a pod is placed no later than its counterpart, by the bound. When it is ready is printed alone: a pull that a fault
//     ends is tried again after up to five minutes
//   - the scheduler's index has for each node what one has that is built from the API
//   - the memory of scheduler, resolver and agents in the last quarter is at most a tenth above that in the third. They are
//     killed in the first third alone: a leak would begin anew with each. One that starts again by itself is not compared.
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
	// after is how long those of a name count beyond their end.
	after map[string]time.Duration
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
		begin, end := each.from, each.to.Add(o.after[each.what])
		if each.to.IsZero() || end.After(to) {
			end = to
		}
		if !slices.Contains(what, each.what) || begin.After(to) || end.Before(from) {
			continue
		}
		if begin.Before(from) {
			begin = from
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

// counts is how often layers and names of images were reported, by what reported them.
type counts map[string]int

// add counts what was reported at once.
func (c counts) add(by string, reported []string) {
	for _, each := range reported {
		if strings.HasPrefix(each, "sha256:") {
			c[by+" layers"]++
		} else {
			c[by+" names"]++
		}
	}
}

// none returns those that never reported anything.
func (c counts) none(want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(each string) bool { return c[each] > 0 })
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
	pid   int
	bytes int64
}

// quarters returns the median of the third and of the last quarter of a time, how many processes there were in them, and
// whether there are enough samples to compare them.
func quarters(all []sample, whole time.Duration) (third, last float64, processes int, enough bool) {
	var of [4][]float64
	pids := map[int]bool{}
	for _, s := range all {
		quarter := min(3, int(4*s.at/whole))
		of[quarter] = append(of[quarter], float64(s.bytes))
		if quarter >= 2 {
			pids[s.pid] = true
		}
	}
	if len(of[2]) == 0 || len(of[3]) == 0 {
		return 0, 0, len(pids), false
	}
	return timing.Median(of[2]), timing.Median(of[3]), len(pids), len(of[2]) >= samples && len(of[3]) >= samples
}
