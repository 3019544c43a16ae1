package ledger

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

// Judgement is what is known of one pod's claim to run, as of one time.
type Judgement struct {
	// Workload is whose claim it is.
	Workload Key
	Terms    account.Terms
	// Metric is in how many seconds the SLO is broken if the pod does not run.
	Metric float64
	// Sums are those the metric is made of.
	Sums account.Sums
	// Overhead is which share preemptions cost already.
	Overhead float64
	// Refused means that the SLO is not admitted, or cannot be kept by scheduling: the pod is served
	// as if it had none.
	Refused bool
	// Waited is how long the pod has been there without a node, and Held how long it has had one.
	Waited, Held time.Duration
	// Ran is how long ago the pod began to run, interruptions or not.
	Ran time.Duration
	// Runs is whether it runs.
	Runs bool
	// GainsNothing means that the pod runs in vain: for others of its workload there is no node,
	// and only all of them together count (Concurrent).
	GainsNothing bool
}

// Accepts reports whether the overhead allows another preemption.
func (j *Judgement) Accepts() bool { return j.Terms.Accepts(j.Sums) }

// Now returns the time of the Ledger's clock.
func (l *Ledger) Now() time.Time { return l.clock.Now() }

// Judge judges a pod. It returns false for pods without an SLO. A pod that no informer has
// brought yet is judged as a new pod of its workload.
func (l *Ledger) Judge(p *v1.Pod, now time.Time) (Judgement, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.pods[p.UID]; known != nil {
		return l.judgeLocked(known, now), true
	}
	statement, _ := l.reader.Read(p)
	if statement.Terms.SLO == 0 {
		return Judgement{}, false
	}
	stranger := &pod{namespace: p.Namespace, name: p.Name, life: account.Life{Created: p.CreationTimestamp.Time}}
	if before, ok := l.apart[p.UID]; ok { // no event has shown yet that it counts again
		stranger.life = again(before, p, statement, now)
	}
	root := rootOf(p, statement.Controller, l.owners)
	if stranger.workload = l.workloads[root.key]; stranger.workload == nil {
		stranger.workload = &workload{key: root.key, replicas: root.replicas, refused: l.admission.Full}
	}
	if stranger.workload.terms.SLO == 0 { // a saved one without terms, or a new one
		stranger.workload.terms = statement.Terms
	}
	return l.judgeLocked(stranger, now), true
}

func (l *Ledger) judgeLocked(p *pod, now time.Time) Judgement {
	w := p.workload
	l.scaleLocked(w, now)
	t := w.tally(l.window, now)
	j := Judgement{
		Workload: w.key, Terms: w.terms, Sums: t.sums, Ran: p.life.Ran(now), Runs: p.life.Runs(),
	}
	// Where more pods do nothing with their nodes than run, another node would not help.
	j.Refused = w.refused || !j.Runs && t.stuck > t.running
	if p.life.Bound.IsZero() {
		j.Waited = max(0, now.Sub(p.life.Created))
	} else {
		j.Held = max(0, now.Sub(p.life.Bound))
	}
	c := account.Case{
		Sums: t.sums, Running: t.running, Pending: t.pending, Runs: j.Runs, BindingPerPod: t.binding,
	}
	if c.Running+c.Pending == 0 {
		c.Pending = 1 // the pod itself, if it is not known yet
	}
	switch w.terms.Measuring {
	case account.Independent:
		c.Sums, c.BindingPerPod = p.life.Sums(l.window, now), p.life.BindingSeconds(now)
		if c.BindingPerPod == 0 {
			c.BindingPerPod = account.FirstBinding
		}
	case account.Aggregate:
		if j.Runs { // judged as a victim, whose work is lost
			own := p.life.Sums(l.window, now).Running
			c.Sums.Running, c.Sums.Lost = c.Sums.Running-own, c.Sums.Lost+own
		}
	case account.Concurrent:
		c.Replicas = w.together()
		j.GainsNothing = j.Runs && t.placed < c.Replicas
	}
	j.Sums, j.Metric, j.Overhead = c.Sums, w.terms.Metric(c, l.window), w.terms.PreemptionOverhead(c.Sums)
	return j
}

// scaleLocked looks up how many pods of a workload have to run at once.
func (l *Ledger) scaleLocked(w *workload, now time.Time) {
	if w.terms.Measuring != account.Concurrent || w.key.UID == "" {
		return
	}
	reference := metav1.OwnerReference{Kind: w.key.Kind, Name: w.key.Name, UID: w.key.UID}
	owner, ok := l.owners(w.key.Namespace, reference)
	if ok {
		w.demand(owner.Replicas, l.window, now)
	}
}

// atOnce is how many pods or workloads are looked at before others may use the Ledger: nobody has
// to wait for all of them.
const atOnce = 256

// Waiting returns the pods without a node that are wanted, in an order.
func (l *Ledger) Waiting(wanted func(*Judgement) bool, order func(a, b *Judgement) int) []types.NamespacedName {
	now := l.clock.Now()
	type candidate struct {
		name types.NamespacedName
		j    Judgement
	}
	var waiting []types.UID
	l.mu.Lock()
	for uid, p := range l.pods {
		if p.waits() && p.life.Reserved.IsZero() {
			waiting = append(waiting, uid)
		}
	}
	l.mu.Unlock()
	var chosen []candidate
	for batch := range slices.Chunk(waiting, atOnce) {
		l.mu.Lock()
		for _, uid := range batch {
			p := l.pods[uid]
			if p == nil {
				continue
			}
			if j := l.judgeLocked(p, now); wanted(&j) {
				chosen = append(chosen, candidate{types.NamespacedName{Namespace: p.namespace, Name: p.name}, j})
			}
		}
		l.mu.Unlock()
	}
	slices.SortFunc(chosen, func(x, y candidate) int { return order(&x.j, &y.j) })
	names := make([]types.NamespacedName, len(chosen))
	for i := range chosen {
		names[i] = chosen[i].name
	}
	return names
}

// Row is what is known of one workload.
type Row struct {
	Workload Key
	Terms    account.Terms
	Sums     account.Sums
	// Left is the published "time to violate" in seconds.
	Left float64
	// Refused means that the SLO is not admitted.
	Refused bool
	Pods    []PodRow
}

// PodRow is what is known of one pod.
type PodRow struct {
	Name  string
	Phase string
	Judgement
}

// The phases of pods in a PodRow.
const (
	phasePending = "pending"
	phaseBinding = "binding"
	phaseBound   = "bound"
	phaseRunning = "running"
	phaseEnding  = "ending"
)

func phaseOf(l *account.Life) string {
	switch {
	case !l.Ended.IsZero():
		return phaseEnding
	case l.Runs():
		return phaseRunning
	case !l.Bound.IsZero():
		return phaseBound
	case !l.Reserved.IsZero():
		return phaseBinding
	default:
		return phasePending
	}
}

// Rows returns all workloads by name, with their pods if they are asked for. A workload
// without pods is left out if there is a newer one of its name.
func (l *Ledger) Rows(pods bool) []Row {
	type name struct{ namespace, kind, name string }
	live := map[name]bool{}
	var keys []Key
	l.mu.Lock()
	for key, w := range l.workloads {
		keys = append(keys, key)
		live[name{key.Namespace, key.Kind, key.Name}] = live[name{key.Namespace, key.Kind, key.Name}] || len(w.pods) > 0
	}
	l.mu.Unlock()
	rows := []Row{}
	for batch := range slices.Chunk(keys, atOnce) {
		l.mu.Lock()
		now := l.clock.Now()
		for _, key := range batch {
			w := l.workloads[key]
			if w == nil || len(w.pods) == 0 && live[name{key.Namespace, key.Kind, key.Name}] {
				continue
			}
			rows = append(rows, l.rowLocked(w, pods, now))
		}
		l.mu.Unlock()
	}
	for _, row := range rows {
		slices.SortFunc(row.Pods, func(a, b PodRow) int { return cmp.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Workload.String(), b.Workload.String()), cmp.Compare(a.Workload.Kind, b.Workload.Kind), cmp.Compare(a.Workload.UID, b.Workload.UID))
	})
	return rows
}

func (l *Ledger) rowLocked(w *workload, pods bool, now time.Time) Row {
	l.scaleLocked(w, now)
	t := w.tally(l.window, now)
	row := Row{Workload: w.key, Terms: w.terms, Refused: w.refused || t.stuck > t.running, Sums: t.sums}
	row.Left = w.terms.Left(row.Sums)
	if pods {
		for _, p := range w.pods {
			row.Pods = append(row.Pods, PodRow{Name: p.name, Phase: phaseOf(&p.life), Judgement: l.judgeLocked(p, now)})
		}
	}
	return row
}

// Seconds returns the seconds of all pods that are gone since the process started,
// unweighed.
func (l *Ledger) Seconds() account.Sums {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seconds
}
