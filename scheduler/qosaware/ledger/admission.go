package ledger

import (
	"cmp"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

const (
	// admittedShare is which part of the places is promised: the rest is for what preemptions
	// cost, and for the pods that nothing is promised.
	admittedShare = .9
	// keptShare is up to which part of them an admitted workload stays admitted: places are seen,
	// not known, and a workload at the edge shall not change with each of them.
	keptShare = .95
	// placesFade is how slowly fewer places than before are believed in: a preemption empties
	// them for a moment.
	placesFade = 5 * time.Minute
	// fullFor is for how long the cluster counts as full after a pod found no room.
	fullFor = time.Minute
	// toldAfter is how old a decision is when the owner of the workload gets to know it.
	toldAfter = 30 * time.Second
)

// Admission is what is promised, in places: one pod that runs all the time needs one.
type Admission struct {
	// Full reports whether a pod with an SLO found no room in the last minute. If not, all
	// workloads are admitted.
	Full bool
	// Places is how many pods with an SLO had a node at once, of late.
	Places float64
	// Stated is the sum of SLO x pods of all workloads, and Admitted that of those whose SLO is
	// kept.
	Stated, Admitted float64
}

// Decision is what the owner of a workload has to know: whether its SLO is kept from now on.
type Decision struct {
	Workload Key
	SLO      float64
	Refused  bool
	// Pod is one of its pods, if possible one that waits.
	Pod types.NamespacedName
}

// admission is the state of what Admit does.
type admission struct {
	Admission
	// at is when it was last decided, and found when a pod last found no room.
	at, found time.Time
}

// claim is what a workload asks for.
type claim struct {
	key      Key
	priority int32
	since    int64
	places   float64
	refused  bool
}

// NoRoom notes whether a pod that fits nowhere would fit if another pod ended.
func (l *Ledger) NoRoom(uid types.UID, would bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pods[uid]; p != nil {
		p.noRoom = would
	}
}

// Admit decides whose SLOs are kept. While there is room for all, all are. Otherwise workloads
// are admitted by priority, if that counts, and by age, as long as the sum of SLO x pods is at
// most .9 of the places that pods with an SLO were seen to have at once. A workload that does
// not fit into the rest is left out, and later ones are still tried; the first one is always
// admitted. The others are served as if they had no SLO.
func (l *Ledger) Admit() Admission {
	at := l.clock.Now()
	var claims []claim
	placed, stated, waits := 0, 0., false
	l.eachWorkload(func(w *workload) {
		if w.terms.SLO == 0 || len(w.pods) == 0 {
			return
		}
		c := claim{key: w.key, priority: math.MinInt32, since: w.since, refused: w.refused}
		pods := 0
		for _, p := range w.pods {
			if !p.life.Ended.IsZero() {
				continue
			}
			pods++
			if l.respectPriority {
				c.priority = max(c.priority, p.priority)
			}
			if p.placed() {
				placed++
			} else if p.noRoom {
				waits = true
			}
		}
		if w.terms.Measuring == account.Concurrent {
			pods = max(pods, w.replicas)
		}
		c.places = w.terms.SLO * float64(pods)
		stated += c.places
		claims = append(claims, c)
	})
	l.mu.Lock()
	a := l.admission
	l.mu.Unlock()
	a.see(placed, waits, at)
	a.Stated = stated
	refused := make(map[Key]bool, len(claims))
	a.Admitted = decide(claims, a.Admission, refused)
	l.mu.Lock()
	l.admission = a
	l.mu.Unlock()
	l.eachWorkload(func(w *workload) {
		if now, known := refused[w.key]; known && now != w.refused { // others are newer
			w.refused, w.decided = now, at
		}
	})
	return a.Admission
}

// see takes over how many pods have a place now, and whether one found no room.
func (a *admission) see(placed int, waits bool, now time.Time) {
	if waits {
		a.found = now
	}
	a.Full = !a.found.IsZero() && now.Sub(a.found) < fullFor
	fewer := float64(placed) - a.Places
	if fewer < 0 && !a.at.IsZero() {
		fewer *= -math.Expm1(-now.Sub(a.at).Seconds() / placesFade.Seconds())
	}
	a.Places += fewer
	a.at = now
}

// decide writes of each workload whether it is refused, and returns how many places are
// promised to the others.
func decide(claims []claim, a Admission, refused map[Key]bool) (admitted float64) {
	const nearly = 1e-9
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.since, b.since), cmp.Compare(a.key.UID, b.key.UID), cmp.Compare(a.key.String(), b.key.String()))
	})
	for i, c := range claims {
		share := keptShare
		if c.refused {
			share = admittedShare
		}
		refused[c.key] = a.Full && i > 0 && admitted+c.places > share*a.Places+nearly
		if !refused[c.key] {
			admitted += c.places
		}
	}
	return admitted
}

// Admission returns what Admit decided last.
func (l *Ledger) Admission() Admission {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.admission.Admission
}

// Untold returns what owners do not know yet, at most so many decisions, and notes that they
// know it now. An owner who knows nothing takes the SLO for kept.
func (l *Ledger) Untold(most int) (decisions []Decision) {
	now := l.clock.Now()
	l.eachWorkload(func(w *workload) {
		if w.refused == w.told || now.Sub(w.decided) < toldAfter || len(decisions) >= most {
			return
		}
		d := Decision{Workload: w.key, SLO: w.terms.SLO, Refused: w.refused}
		waits, before := false, w.toldBy
		for _, p := range w.pods {
			name := types.NamespacedName{Namespace: p.namespace, Name: p.name}
			if d.Pod.Name == "" || p.waits() && !waits || name == before {
				d.Pod, waits = name, p.waits() || name == before // the same pod again, if it is there
			}
		}
		if d.Pod.Name != "" {
			w.told, w.toldBy = w.refused, d.Pod
			decisions = append(decisions, d)
		}
	})
	return decisions
}

// eachWorkload calls a function with each workload, some at a time under the lock.
func (l *Ledger) eachWorkload(do func(*workload)) {
	l.mu.Lock()
	keys := make([]Key, 0, len(l.workloads))
	for key := range l.workloads {
		keys = append(keys, key)
	}
	l.mu.Unlock()
	for batch := range slices.Chunk(keys, atOnce) {
		l.mu.Lock()
		for _, key := range batch {
			if w := l.workloads[key]; w != nil {
				do(w)
			}
		}
		l.mu.Unlock()
	}
}
