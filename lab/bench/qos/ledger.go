package qos

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// ledger measures what workloads got, from a watch of pods: with the plugin's definition, but
// independently of it, so that all arms are measured alike. Times are when the watch sends
// something.
type ledger struct {
	now func() time.Time

	mu   sync.Mutex
	pods map[types.UID]*life
	// gone are the times of pods that are gone, by workload.
	gone map[string]service
}

// life has the times of a pod; a zero time has not come.
type life struct {
	workload              string
	created, ready, ended time.Time
}

// service is what the pods of a workload got, in seconds.
type service struct{ running, existed float64 }

func (s service) plus(other service) service {
	return service{s.running + other.running, s.existed + other.existed}
}

// quality is the share of the time in which the pods existed that they ran; 0 without pods.
func (s service) quality() float64 {
	if s.existed == 0 {
		return 0
	}
	return s.running / s.existed
}

var _ toolscache.ResourceEventHandler = (*ledger)(nil)

func newLedger(now func() time.Time) *ledger {
	return &ledger{now: now, pods: map[types.UID]*life{}, gone: map[string]service{}}
}

// OnAdd implements ResourceEventHandler.
func (l *ledger) OnAdd(object any, _ bool) { l.set(object) }

// OnUpdate implements ResourceEventHandler.
func (l *ledger) OnUpdate(_, object any) { l.set(object) }

func (l *ledger) set(object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.pods[pod.UID]
	if known == nil {
		known = &life{workload: pod.Labels[workloadLabel], created: now}
		l.pods[pod.UID] = known
	}
	if pod.DeletionTimestamp != nil && known.ended.IsZero() {
		known.ended = now
	}
	if known.ready.IsZero() && known.ended.IsZero() && isReady(pod) {
		known.ready = now
	}
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// OnDelete implements ResourceEventHandler.
func (l *ledger) OnDelete(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.pods[pod.UID]; known != nil {
		l.gone[known.workload] = l.gone[known.workload].plus(known.until(now))
		delete(l.pods, pod.UID)
	}
}

// until returns what the pod got until a time.
func (p *life) until(now time.Time) (s service) {
	end := now
	if !p.ended.IsZero() {
		end = p.ended
	}
	if !p.ready.IsZero() {
		s.running = end.Sub(p.ready).Seconds()
	}
	s.existed = end.Sub(p.created).Seconds()
	return s
}

// services returns what workloads got until now.
func (l *ledger) services() map[string]service {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]service, len(l.gone))
	for name, s := range l.gone {
		all[name] = s
	}
	for _, pod := range l.pods {
		all[pod.workload] = all[pod.workload].plus(pod.until(now))
	}
	return all
}

// count returns how many pods run, and how many wait.
func (l *ledger) count() (running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pod := range l.pods {
		switch {
		case !pod.ended.IsZero():
		case pod.ready.IsZero():
			waiting++
		default:
			running++
		}
	}
	return running, waiting
}
