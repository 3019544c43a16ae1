package ledger

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

// The form of a saved state, and what it may have.
const (
	stateVersion = 1
	// maxState is how large it may be compressed: an object has at most 1 MiB.
	maxState = 900_000
	// maxStateText is how large it may be otherwise, when it is read.
	maxStateText = 16 << 20
	// maxSaved is how many workloads are saved.
	maxSaved = 10_000
)

// forgetAfter is when a workload without pods is forgotten if there is no window.
const forgetAfter = 7 * 24 * time.Hour

// state is what is saved: of each workload what its pods got until then. What pods got that
// still exist when it is read is taken out again, as the API has their times: see inherit. So
// what a pod got until the last save is not lost with it, however long it lived.
type state struct {
	Version   int     `json:"version"`
	Time      float64 `json:"time"` // Unix seconds; what all sums are weighed as of, and until when they go
	Workloads []saved `json:"workloads"`
}

// saved is a workload in a state. Times are Unix seconds.
type saved struct {
	Key
	SLO       float64           `json:"slo"`
	Measuring account.Measuring `json:"measuring"`
	Overhead  float64           `json:"overhead"`
	Stated    int64             `json:"stated"`
	By        string            `json:"by"`

	Running float64 `json:"running"`
	Lost    float64 `json:"lost"`
	Waiting float64 `json:"waiting"`
	Binding float64 `json:"binding"`
	Gone    int     `json:"gone"`
	// AllBinding is unweighed.
	AllBinding float64 `json:"allBinding"`
	// Live is the age of the pods that existed; the sums above have their seconds.
	Live float64 `json:"live,omitempty"`
	// Settled is until when running time is in Running and Lost even of pods that exist.
	Settled float64 `json:"settled,omitempty"`
	// Since is when the first pod was made.
	Since int64   `json:"since,omitempty"`
	Empty float64 `json:"empty,omitempty"`
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}

func timeOf(seconds float64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(seconds * 1e6))
}

// thousandths rounds: more digits would be half of a state.
func thousandths(seconds float64) float64 { return max(0, math.Round(seconds*1e3)/1e3) }

// Save returns what has to be kept over a restart, compressed: at most 900 kB; nil if there is
// nothing. If it is too much, workloads are left out of which no pod is gone, then those that
// have had no pods for longest, then those whose pods are oldest.
func (l *Ledger) Save() ([]byte, error) {
	now := l.clock.Now()
	s := state{Version: stateVersion, Time: seconds(now)}
	l.mu.Lock()
	changed := l.changes > 0
	l.changes = 0
	nothing := len(l.workloads) == 0
	l.mu.Unlock()
	if nothing && !changed {
		return nil, nil
	}
	l.eachWorkload(func(w *workload) {
		if !w.alone() {
			s.Workloads = append(s.Workloads, w.save(l.window, now))
		}
	})
	slices.SortFunc(s.Workloads, func(x, y saved) int { // the oldest last
		last := func(s saved) float64 {
			switch {
			case s.Empty != 0:
				return s.Empty
			case s.Gone == 0: // nearly all of it is found again in the API
				return 0
			default:
				return math.Inf(1)
			}
		}
		return cmp.Or(cmp.Compare(last(y), last(x)), cmp.Compare(y.Stated, x.Stated), cmp.Compare(x.String(), y.String()), cmp.Compare(x.UID, y.UID))
	})
	s.Workloads = s.Workloads[:min(len(s.Workloads), maxSaved)]
	for {
		if data, err := encode(s); err != nil || len(data) <= maxState {
			return data, err
		}
		s.Workloads = s.Workloads[:len(s.Workloads)*9/10]
	}
}

// save returns what is kept of the workload.
func (w *workload) save(window account.Window, now time.Time) saved {
	w.settle(window, now)
	sums, live := w.ended.As(window, now), 0.
	for _, p := range w.pods {
		share, age := w.share(p, window, now)
		sums, live = sums.Plus(share), live+age
	}
	return saved{
		Key: w.key, SLO: w.terms.SLO, Measuring: w.terms.Measuring, Overhead: w.terms.Overhead, Stated: w.from.created, By: w.from.pod,
		Running: thousandths(sums.Running), Lost: thousandths(sums.Lost), Waiting: thousandths(sums.Waiting), Binding: thousandths(sums.Binding),
		Gone: w.gone, AllBinding: thousandths(w.binding), Live: thousandths(live),
		Settled: seconds(w.settled), Empty: seconds(w.empty), Since: max(0, w.since),
	}
}

// share returns what a pod adds to the sums of its workload until a time, as a state has it,
// and its age: how a pod of Aggregate ends is not known yet, and running time of Concurrent is
// settled.
func (w *workload) share(p *pod, window account.Window, until time.Time) (s account.Sums, age float64) {
	s = p.life.Sums(window, until)
	age = s.Total()
	if w.terms.Measuring == account.Concurrent {
		s.Running = 0
	}
	return s, age
}

// inherit takes out of a saved account what a pod got until it was saved: from now on the pod
// is counted by its own times. A pod that the account cannot have, or of which it had less,
// takes at most what is left of those that existed.
func (w *workload) inherit(p *pod, window account.Window) {
	p.inherited = true
	if w.live <= 0 || !p.life.Created.Before(w.savedAt) {
		return
	}
	share, age := w.share(p, window, w.savedAt)
	if age > w.live {
		share, age = share.Times(w.live/age), w.live
	}
	w.live -= age
	w.ended.Add(share.Times(-1), window, w.savedAt)
	w.changed = true
}

// Changed reports whether something has changed since the last Save that a state would have and
// the API has not.
func (l *Ledger) Changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes > 0
}

// Dirty notes that what Save returned was not kept.
func (l *Ledger) Dirty() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes++
}

func encode(s state) ([]byte, error) {
	var buffer bytes.Buffer
	w := gzip.NewWriter(&buffer)
	if err := json.NewEncoder(w).Encode(s); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

// decode reads a saved state. What it returns is safe to count with, whoever wrote it: skipped
// is how many workloads were left out because something is wrong with them. They do not cost
// the others their account.
func decode(data []byte) (s state, skipped int, err error) {
	if len(data) > maxState {
		return state{}, 0, fmt.Errorf("it has %d bytes, more than %d", len(data), maxState)
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return state{}, 0, fmt.Errorf("it is damaged: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxStateText+1))
	if err != nil {
		return state{}, 0, fmt.Errorf("it is damaged: %w", err)
	}
	if len(text) > maxStateText {
		return state{}, 0, fmt.Errorf("it has more than %d bytes uncompressed", maxStateText)
	}
	var version struct{ Version int }
	if err := json.Unmarshal(text, &version); err != nil {
		return state{}, 0, fmt.Errorf("it is damaged: %w", err)
	}
	if version.Version != stateVersion {
		return state{}, 0, fmt.Errorf("it has version %d, and this scheduler reads version %d only", version.Version, stateVersion)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, 0, fmt.Errorf("it is damaged: %w", err)
	}
	if len(s.Workloads) > maxSaved {
		return state{}, 0, fmt.Errorf("it has %d workloads, more than %d", len(s.Workloads), maxSaved)
	}
	if !within(maxTime, s.Time) {
		return state{}, 0, errors.New("it is damaged: time")
	}
	all := len(s.Workloads)
	s.Workloads = slices.DeleteFunc(s.Workloads, func(w saved) bool { return !w.valid(s.Time) })
	return s, all - len(s.Workloads), nil
}

const (
	// maxTime is the latest time in a state, in Unix seconds: after some thousand years.
	maxTime = 3e10
	// maxSeconds are the most pod-seconds, and pods, of a workload: 30,000 pods for as long.
	maxSeconds = 1e15
)

// within reports whether numbers are not negative and at most so large.
func within(most float64, numbers ...float64) bool {
	return !slices.ContainsFunc(numbers, func(x float64) bool { return !(x >= 0 && x <= most) })
}

// valid reports whether a Ledger could have saved the workload at a time. Terms that were stated
// later than that, by clocks a day apart, would count for ever.
func (s *saved) valid(at float64) bool {
	optional := func(name string) bool { return name == "" || usable(name) }
	return usable(s.Namespace) && usable(s.Name) && optional(s.Kind) && optional(string(s.UID)) && optional(s.By) &&
		within(1, s.SLO, s.Overhead) && s.SLO > 0 && slices.Contains(account.Measurings, s.Measuring) &&
		within(maxTime, s.Settled, s.Empty) && within(at+86400, float64(s.Stated), float64(s.Since)) &&
		within(maxSeconds, s.Running, s.Lost, s.Waiting, s.Binding, s.AllBinding, s.Live, float64(s.Gone))
}

// Load adds a saved state to the Ledger. Own means that it was saved before this process
// followed any pod, so nothing is in both. Otherwise another process saved it while this one
// followed the same pods: then of each workload that history counts which has more pods.
// Skipped is of how many workloads the saved account cannot be used; the error is for none.
func (l *Ledger) Load(data []byte, own bool) (skipped int, err error) {
	s, skipped, err := decode(data)
	if err != nil {
		return 0, err
	}
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, from := range s.Workloads {
		l.loadLocked(from, timeOf(s.Time), now, own)
	}
	return skipped, nil
}

func (l *Ledger) loadLocked(from saved, at, now time.Time, own bool) {
	w := l.workloads[from.Key]
	if w == nil {
		w = &workload{key: from.Key, pods: map[types.UID]*pod{}, empty: timeOf(from.Empty)}
		if w.empty.IsZero() || w.empty.After(now) {
			w.empty = now
		}
		l.workloads[from.Key] = w
	}
	if from.Since > 0 {
		w.age(from.Since)
	}
	if !own && w.gone >= from.Gone {
		return
	}
	w.agree(account.Terms{SLO: from.SLO, Measuring: from.Measuring, Overhead: from.Overhead}, origin{created: from.Stated, pod: from.By})
	if (w.terms.Measuring == account.Concurrent) != (from.Measuring == account.Concurrent) {
		return // it was measured in another way
	}
	if !own {
		// From when on running time is not in the saved sums it is counted again.
		w.ended, w.gone, w.binding, w.settled, w.live = account.Counter{}, 0, 0, time.Time{}, 0
	}
	if at.After(now) { // saved by a clock that is ahead
		at = now
	}
	w.ended.Add(account.Sums{Running: from.Running, Lost: from.Lost, Waiting: from.Waiting, Binding: from.Binding}, l.window, at)
	w.gone += from.Gone
	w.binding += from.AllBinding
	if settled := timeOf(from.Settled); settled.After(w.settled) && !settled.After(now) {
		w.settled = settled
	}
	w.live, w.savedAt, w.changed = from.Live, at, true
	for _, p := range w.pods {
		w.inherit(p, l.window)
	}
}

// Forget drops workloads that have had no pods for as long as the past matters, and of the
// others without pods those that have had none for longest, if there are more than are saved.
func (l *Ledger) Forget() {
	after := time.Duration(l.window)
	if after == 0 {
		after = forgetAfter
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	var empty []*workload
	for key, w := range l.workloads {
		switch {
		case len(w.pods) > 0:
		case now.Sub(w.empty) >= after:
			delete(l.workloads, key)
			l.changes++
		default:
			empty = append(empty, w)
		}
	}
	if len(empty) <= maxSaved {
		return
	}
	slices.SortFunc(empty, func(x, y *workload) int { return x.empty.Compare(y.empty) })
	for _, w := range empty[:len(empty)-maxSaved] {
		delete(l.workloads, w.key)
		l.changes++
	}
}
