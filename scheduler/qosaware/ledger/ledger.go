// Package ledger has all workloads that state an SLO, what their pods got, and how soon they
// break it. Informers feed it. It keeps a record for each pod that exists and one for each
// workload; of pods that are gone only sums are left.
package ledger

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

// Config is what a Ledger depends on.
type Config struct {
	Args *config.QosAwareArgs
	// Owners looks up owners of pods; it must not call the Ledger.
	Owners Owners
	Clock  clock.PassiveClock
}

// Ledger is the ledger of all workloads. Its methods may be called at once; none of them waits
// for anything but another one.
type Ledger struct {
	reader Reader
	window account.Window
	ready  bool
	// respectPriority is the argument of that name.
	respectPriority bool
	owners          Owners
	clock           clock.PassiveClock

	mu        sync.Mutex
	workloads map[Key]*workload
	pods      map[types.UID]*pod
	// orphans are the pods with an owner that is not known yet.
	orphans map[types.UID]map[types.UID]struct{}
	// apart are the pods that exist and count for nothing for a while: those that withdrew their SLO, with
	// their life until then, which the sums of their workload have already, and those with scheduling gates.
	apart map[types.UID]account.Life
	// seconds are those of all pods that are gone, unweighed.
	seconds   account.Sums
	admission admission
	// changes counts what a saved state would have, and has not: of pods that are gone.
	changes int
}

// New returns an empty Ledger.
func New(c Config) *Ledger {
	return &Ledger{
		reader: NewReader(c.Args), window: account.Window(c.Args.Window.Duration), ready: c.Args.MeasureFrom == config.MeasureFromReady,
		respectPriority: c.Args.RespectPriority,
		owners:          c.Owners, clock: c.Clock,
		workloads: map[Key]*workload{}, pods: map[types.UID]*pod{}, orphans: map[types.UID]map[types.UID]struct{}{}, apart: map[types.UID]account.Life{},
	}
}

// TakesPart reports whether a pod states an SLO.
func (l *Ledger) TakesPart(p *v1.Pod) bool {
	s, _ := l.reader.Read(p)
	return s.Terms.SLO > 0
}

// Observe takes over a pod as the API server has it. It may be called again with the same
// or a newer pod. The error names annotations that count as none.
func (l *Ledger) Observe(p *v1.Pod) error {
	statement, err := l.reader.Read(p)
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.pods[p.UID]
	// Nobody can keep a promise to a pod that may not be scheduled yet. If it counted, its owner
	// could make any number of them, and what runs of the workload would always be urgent.
	gated := len(p.Spec.SchedulingGates) > 0
	if statement.Terms.SLO == 0 || gated {
		if known != nil { // it states none any more
			l.apart[p.UID] = known.life
			l.buryLocked(p.UID, known, false, now)
		} else if gated && statement.Terms.SLO > 0 {
			l.apart[p.UID] = account.Life{}
		}
		return err
	}
	if known == nil {
		if finished(p) {
			return err // it is in the saved state, or nobody saw it
		}
		known = &pod{namespace: p.Namespace, name: p.Name, life: account.Life{Created: p.CreationTimestamp.Time}}
		if before, ok := l.apart[p.UID]; ok {
			known.life = again(before, p, statement, now)
			delete(l.apart, p.UID)
		}
		l.pods[p.UID] = known
	}
	if known.workload == nil || known.unknown != "" || known.controller != statement.Controller {
		l.assignLocked(p, known, statement, now)
	}
	known.workload.agree(statement.Terms, origin{created: p.CreationTimestamp.Unix(), pod: string(p.UID)})
	l.updateLocked(p, known, now)
	if !known.inherited {
		known.workload.inherit(known, l.window)
	}
	if finished(p) {
		l.buryLocked(p.UID, known, p.Status.Phase == v1.PodSucceeded, now)
	}
	return err
}

// again returns the life of a pod that counts again: from now on, because sums have what was before. Nothing
// else has it of a pod that is judged alone, or that is its workload, which went with it.
func again(before account.Life, p *v1.Pod, s Statement, now time.Time) account.Life {
	alone := s.Terms.Measuring == account.Independent || s.Controller == "" && metav1.GetControllerOfNoCopy(p) == nil
	if alone && !before.Created.IsZero() {
		return before
	}
	return account.Life{Created: now, First: before.Began()}
}

func finished(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

// assignLocked puts a pod into the workload that it belongs to.
func (l *Ledger) assignLocked(p *v1.Pod, known *pod, statement Statement, now time.Time) {
	root := rootOf(p, statement.Controller, l.owners)
	known.controller = statement.Controller
	l.awaitLocked(known.unknown, p.UID, false)
	known.unknown = root.unknown
	l.awaitLocked(known.unknown, p.UID, true)
	if known.workload != nil && known.workload.key == root.key {
		return
	}
	if old := known.workload; old != nil {
		delete(old.pods, p.UID)
		old.changed = true
		switch {
		case len(old.pods) > 0:
		case old.gone == 0:
			delete(l.workloads, old.key)
		default:
			old.empty = now
		}
	}
	w := l.workloads[root.key]
	if w == nil {
		w = &workload{key: root.key, pods: map[types.UID]*pod{}, refused: l.admission.Full, decided: now}
		l.workloads[root.key] = w
	}
	w.demand(root.replicas, l.window, now) // before the pod is one of them
	w.age(p.CreationTimestamp.Unix())
	w.pods[p.UID], known.workload, known.inherited, w.empty = known, w, false, time.Time{}
}

// awaitLocked notes, or forgets, that a pod is to be assigned again once its owner is known.
func (l *Ledger) awaitLocked(owner, pod types.UID, waits bool) {
	switch {
	case owner == "":
	case waits:
		if l.orphans[owner] == nil {
			l.orphans[owner] = map[types.UID]struct{}{}
		}
		l.orphans[owner][pod] = struct{}{}
	default:
		if delete(l.orphans[owner], pod); len(l.orphans[owner]) == 0 {
			delete(l.orphans, owner)
		}
	}
}

// Orphans returns the names of the pods that should be observed again
// now that an owner is known.
func (l *Ledger) Orphans(owner types.UID) []types.NamespacedName {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []types.NamespacedName
	for uid := range l.orphans[owner] {
		p := l.pods[uid]
		names = append(names, types.NamespacedName{Namespace: p.namespace, Name: p.name})
	}
	return names
}

// updateLocked takes the times from a pod.
func (l *Ledger) updateLocked(p *v1.Pod, known *pod, now time.Time) {
	life := &known.life
	known.workload.changed = true
	known.priority, known.nominated = corev1helpers.PodPriority(p), p.Status.NominatedNodeName != ""
	if p.Spec.NodeName != "" && life.Bound.IsZero() {
		life.Bound = account.Earlier(boundAt(p, now), now)
		if !life.Reserved.IsZero() { // until PostBind is more exact
			life.Binding = now.Sub(life.Reserved)
		}
	}
	// Before what it ran: a pod that is not ready because it ends ran until then at most.
	if p.DeletionTimestamp != nil && life.Ended.IsZero() {
		// When it was asked for: from then on its owner makes another.
		ended := p.DeletionTimestamp.Time
		if p.DeletionGracePeriodSeconds != nil {
			ended = ended.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
		}
		life.Ended = account.Earlier(ended, now)
	}
	since, until := l.runs(p, life, now)
	if since.After(now) { // the clock of the node is ahead
		since = now
		if life.Runs() {
			since = life.Since
		}
	}
	switch {
	case life.Since.IsZero() && !since.IsZero():
		life.Begin(l.window, since)
	case life.Since.IsZero():
	case since.After(life.Since): // an interruption that was not seen
		known.workload.interrupt(known, l.window, since)
		life.Begin(l.window, since)
	case since.IsZero():
		known.workload.interrupt(known, l.window, account.Earlier(until, now))
	}
}

// runs returns since when a pod runs, or since when it does not.
func (l *Ledger) runs(p *v1.Pod, life *account.Life, now time.Time) (since, until time.Time) {
	if !l.ready {
		return life.Bound, now
	}
	_, ready := podutil.GetPodCondition(&p.Status, v1.PodReady)
	switch {
	case ready == nil || p.Spec.NodeName == "":
		return time.Time{}, now
	case ready.Status == v1.ConditionTrue:
		return ready.LastTransitionTime.Time, now
	default:
		return time.Time{}, ready.LastTransitionTime.Time
	}
}

// boundAt returns when a pod got its node.
func boundAt(p *v1.Pod, now time.Time) time.Time {
	if _, c := podutil.GetPodCondition(&p.Status, v1.PodScheduled); c != nil && c.Status == v1.ConditionTrue && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if p.Status.StartTime != nil {
		return p.Status.StartTime.Time
	}
	return now
}

// Remove notes that a pod is gone from the informer: deleted or finished. It returns true if
// it matters which of them; then the caller finds out and calls Finish.
func (l *Ledger) Remove(p *v1.Pod) (ask bool) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.apart, p.UID)
	known := l.pods[p.UID]
	if known == nil {
		return false
	}
	l.updateLocked(p, known, now)
	if known.life.Ended.IsZero() {
		known.life.Ended = now
	}
	known.workload.changed = true
	if known.workload.terms.Measuring == account.Aggregate && !known.life.Bound.IsZero() {
		return true
	}
	l.buryLocked(p.UID, known, false, now)
	return false
}

// Finish notes how a pod ended for which Remove returned true.
func (l *Ledger) Finish(uid types.UID, succeeded bool) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.pods[uid]; known != nil {
		l.buryLocked(uid, known, succeeded, now)
	}
}

// buryLocked replaces a pod by sums.
func (l *Ledger) buryLocked(uid types.UID, known *pod, succeeded bool, now time.Time) {
	if known.life.Ended.IsZero() {
		known.life.Ended = now
	}
	l.awaitLocked(known.unknown, uid, false)
	w := known.workload
	l.seconds = l.seconds.Plus(w.bury(uid, known, succeeded, l.window, now))
	delete(l.pods, uid)
	if w.key.UID == uid && len(w.pods) == 0 { // a pod without owner has no successor
		delete(l.workloads, w.key)
	}
	l.changes++
}

// Reserved notes that the binding of a pod begins; one that began before has failed.
func (l *Ledger) Reserved(uid types.UID) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pods[uid]; p != nil && p.life.Bound.IsZero() {
		p.life.Reserved, p.workload.changed = now, true
	}
}

// Bound notes that the binding of a pod has ended.
func (l *Ledger) Bound(uid types.UID) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pods[uid]; p != nil && !p.life.Reserved.IsZero() {
		p.life.Binding, p.life.Reserved, p.workload.changed = now.Sub(p.life.Reserved), time.Time{}, true
	}
}

// Unreserved notes that a pod was not bound after all.
func (l *Ledger) Unreserved(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pods[uid]; p != nil && !p.life.Reserved.IsZero() {
		p.life.Reserved, p.workload.changed = time.Time{}, true
	}
}
