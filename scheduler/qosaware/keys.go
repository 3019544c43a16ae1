package qosaware

import (
	"cmp"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// key is what the queue sorts a pod by.
type key struct {
	priority int32
	class    class
	slo      float64 // 0 unless urgent
	// deadline is when the SLO is broken, in nanoseconds since 1970; in its turn, when the pod
	// was first tried; otherwise when it came to the queue.
	deadline  int64
	timestamp time.Time
	uid       types.UID
}

// class is what pods of the same priority are sorted by first.
type class uint8

const (
	hasTurn class = iota // waited for long, and it is its turn
	urgent
	ordinary // as upstream sorts it
)

// before reports whether a is served before b. It compares one value after the other, so it is
// a strict weak order.
func (a *key) before(b *key) bool {
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	if a.class != b.class {
		return a.class < b.class
	}
	if a.slo != b.slo {
		return a.slo > b.slo
	}
	if a.deadline != b.deadline {
		return a.deadline < b.deadline
	}
	if order := a.timestamp.Compare(b.timestamp); order != 0 {
		return order < 0
	}
	return cmp.Less(a.uid, b.uid)
}

// keys has the keys of the pods in the queue. A pod with an SLO gets its key when it is
// first compared, and keeps it until it leaves the queue: a heap is of no use if keys
// change while they are in it.
type keys struct {
	rules           rules
	respectPriority bool
	// states reports, quickly, whether a pod may have an SLO. The queue sorts a pod anew when that
	// changes.
	states func(*v1.Pod) bool
	judge  func(*v1.Pod, time.Time) (ledger.Judgement, bool)
	now    func() time.Time

	// incomplete means that the Ledger does not have all pods yet: a key that is made of a part
	// of them is not retained.
	incomplete atomic.Bool

	mu   sync.Mutex
	byID map[types.UID]*queueEntry
	// recent has entries that were asked for lately, by where in memory the pod is: a pod is
	// compared dozens of times while it is in the queue.
	recent [recentEntries]atomic.Pointer[queueEntry]
}

// recentEntries is how many entries are found without a lock, at most; a power of two.
const recentEntries = 1 << recentBits

const recentBits = 13

// queueEntry is a pod in the queue between two attempts to place it.
type queueEntry struct {
	attempts int
	// version is the pod's, of which it is known that it may have an SLO.
	version string
	key     key
	pod     types.NamespacedName
	// unknown means that the pod was not there when last looked for.
	unknown bool
}

// less reports whether a pod in the queue is served before another one.
func (k *keys) less(a, b queuedPod) bool {
	var x, y key
	return k.of(a, &x).before(k.of(b, &y))
}

// of returns the key of a pod. That of a pod without SLO is written to plain.
func (k *keys) of(info queuedPod, plain *key) *key {
	pod, attempts := info.GetPodInfo().GetPod(), info.GetAttempts()
	recent := &k.recent[recentIndex(pod)]
	if e := recent.Load(); e != nil && e.attempts == attempts && e.key.uid == pod.UID && e.version == pod.ResourceVersion {
		return &e.key
	}
	if k.states(pod) || k.waitedLong(info) {
		if e := k.known(pod, attempts); e != nil {
			recent.Store(e)
			return &e.key
		}
		if made, ok := k.make(info, pod); ok {
			if !k.incomplete.Load() {
				e := k.remember(pod, attempts, made)
				recent.Store(e)
				return &e.key
			}
			*plain = made
			return plain
		}
	}
	*plain = k.plain(info, pod)
	return plain
}

// recentIndex returns which of the recent entries may be that of a pod.
func recentIndex(pod *v1.Pod) uint64 {
	const golden = 0x9e3779b97f4a7c15 // Fibonacci hashing: addresses are multiples of large numbers
	return uint64(reflect.ValueOf(pod).Pointer()) * golden >> (64 - recentBits)
}

// known returns the entry of a pod that may have an SLO; nil if it has none yet.
func (k *keys) known(pod *v1.Pod, attempts int) *queueEntry {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byID[pod.UID]
	if e == nil || e.attempts != attempts {
		return nil
	}
	if e.version != pod.ResourceVersion { // the pod was changed, and keeps its key
		e = &queueEntry{attempts: attempts, version: pod.ResourceVersion, key: e.key, pod: e.pod, unknown: e.unknown}
		k.byID[pod.UID] = e
	}
	return e
}

// remember gives a pod an entry, unless it has got one meanwhile.
func (k *keys) remember(pod *v1.Pod, attempts int, made key) *queueEntry {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.byID[pod.UID]; e != nil && e.attempts == attempts {
		return e
	}
	e := &queueEntry{attempts: attempts, version: pod.ResourceVersion, key: made, pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
	k.byID[pod.UID] = e
	return e
}

// plain returns the key of a pod without an SLO: the order of PrioritySort.
func (k *keys) plain(info queuedPod, pod *v1.Pod) key {
	priority := corev1helpers.PodPriority(pod)
	if !k.respectPriority && ledger.MayTakePart(pod) {
		priority = 0
	}
	since := info.GetTimestamp()
	return key{priority: priority, class: ordinary, deadline: since.UnixNano(), timestamp: since, uid: pod.UID}
}

// waitedLong reports whether a pod came to the queue again after a long wait; always the same
// of one stay.
func (k *keys) waitedLong(info queuedPod) bool {
	first := info.GetInitialAttemptTimestamp()
	return first != nil && info.GetTimestamp().Sub(*first) >= k.rules.longWait
}

// make returns the key of a pod, and whether it depends on more than the pod. One that is not
// urgent is sorted as if it had no SLO: it would come after all that have none otherwise.
func (k *keys) make(info queuedPod, pod *v1.Pod) (key, bool) {
	made, now := k.plain(info, pod), k.now()
	j, hasSLO := k.judge(pod, now)
	long := k.waitedLong(info)
	switch {
	case hasSLO && k.rules.urgent(&j):
		made.class, made.slo, made.deadline = urgent, j.Terms.SLO, deadline(now, j.Metric)
	case long && k.rules.turns.open():
		made.class, made.deadline = hasTurn, info.GetInitialAttemptTimestamp().UnixNano()
	}
	return made, hasSLO || long
}

// placed notes that a pod got a place, and whether in its turn. Who preempted for it had its
// turn then.
func (k *keys) placed(pod *v1.Pod) {
	k.mu.Lock()
	e := k.byID[pod.UID]
	inTurn := e != nil && e.key.class == hasTurn && pod.Status.NominatedNodeName == ""
	k.mu.Unlock()
	if inTurn {
		k.rules.turns.take()
	} else {
		k.rules.turns.pass()
	}
}

// deadline adds seconds, of any number, to a time.
func deadline(now time.Time, seconds float64) int64 {
	const century = 100 * 365 * 86400
	seconds = math.Max(-century, math.Min(century, seconds))
	return now.UnixNano() + int64(seconds*float64(time.Second))
}

// sweep forgets the entries of pods that are not in the queue any more: those that did not
// exist, or had a node, in two sweeps, because its events may reach the queue later. A pod that is
// being deleted may be there for long, and one that states no SLO any more, too.
func (k *keys) sweep(pending func(types.UID, types.NamespacedName) bool) {
	k.mu.Lock()
	pods := make(map[types.UID]types.NamespacedName, len(k.byID))
	for uid, e := range k.byID {
		pods[uid] = e.pod
	}
	k.mu.Unlock()
	forgot := false
	for uid, pod := range pods {
		known := pending(uid, pod)
		k.mu.Lock()
		if e := k.byID[uid]; e != nil {
			if e.unknown && !known {
				delete(k.byID, uid)
				forgot = true
			}
			e.unknown = !known
		}
		k.mu.Unlock()
	}
	if forgot {
		for i := range k.recent {
			k.recent[i].Store(nil)
		}
	}
}
