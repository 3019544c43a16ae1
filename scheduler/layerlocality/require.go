package layerlocality

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// Annotations of a pod that is to start on a node that has its layers.
const (
	// RequireAnnotation states how much of the known compressed bytes of the pod's images a node must have, from
	// "1%" to "100%". Other nodes are refused.
	RequireAnnotation = "layerlocality.io/require"
	// RequireTimeoutAnnotation states for how long after the pod's creation they are refused, from "1s" to "1h";
	// 5 minutes without it. Then any node is accepted.
	RequireTimeoutAnnotation = "layerlocality.io/require-timeout"
)

const (
	defaultRequireTimeout = 5 * time.Minute
	maxRequireTimeout     = time.Hour
)

// requirement is what the annotations of a pod state.
type requirement struct {
	percent int
	timeout time.Duration
}

// requirementOf returns the requirement of a pod; one of 0 % if it has none.
func requirementOf(pod *v1.Pod) (r requirement, err error) {
	percent, ok := pod.Annotations[RequireAnnotation]
	if !ok {
		return r, nil
	}
	number, ok := strings.CutSuffix(percent, "%")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 1 || n > 100 {
		return r, fmt.Errorf("annotation %s: want 1%% to 100%%, not %.20q", RequireAnnotation, percent)
	}
	timeout := defaultRequireTimeout
	if text, ok := pod.Annotations[RequireTimeoutAnnotation]; ok {
		if timeout, err = time.ParseDuration(text); err != nil || timeout < time.Second || timeout > maxRequireTimeout {
			return r, fmt.Errorf("annotation %s: want 1s to 1h, not %.20q", RequireTimeoutAnnotation, text)
		}
	}
	return requirement{n, timeout}, nil
}

// isMet reports whether a node has enough. It has nothing of an image of which nothing is known.
func (r requirement) isMet(m *index.Measurement, node string) bool {
	slot, ok := m.Slot(node)
	if !ok || !m.AllKnown(slot) {
		return false
	}
	bytes := m.At(slot)
	return bytes.Total > 0 && float64(bytes.Present)*100 >= float64(bytes.Total)*float64(r.percent)
}

// message is why a node is refused.
func (r requirement) message() string {
	return fmt.Sprintf("node(s) had less than %d%% of the layers of the pod's images", r.percent)
}

const (
	// requireTick is the interval at which waiting pods are looked at.
	requireTick = time.Second
	// maxMeasured bounds for how many requirements nodes are measured in one interval: pods with the same images
	// and the same share have one.
	maxMeasured = 100
	// maxActivated bounds how many pods are activated in one interval: kube-scheduler tries them at once.
	maxActivated = 20
	// maxWakes is how often one is, as long as it does not get as far as PreFilter: kube-scheduler ignores that for
	// a pod which it just tries, and another plugin may refuse the pod before.
	maxWakes = 3
)

// requirements has the pods that wait for a node with their layers. No event of the cluster lets kube-scheduler try
// such a pod again: an image that came to a node is none, nor is the passing of time. A loop activates them.
type requirements struct {
	ctx      context.Context //nolint:containedctx // of the scheduler: it ends the loop
	profile  *locality.Profile
	pods     corelisters.PodLister
	activate func(klog.Logger, map[string]*v1.Pod)
	events   events.EventRecorder

	mu      sync.Mutex
	waiting map[types.UID]waitingPod
	running bool

	// Of the loop: what nodes have, those that met each requirement the last time, and with which pod the next
	// interval begins.
	memory index.Measurement
	met    map[string]*nodesThatMeet
	next   int
}

// waitingPod is a pod with a requirement.
type waitingPod struct {
	namespace, name string
	// since is from when on the timeout counts, tried when what nodes have was last measured for it, and wakes how
	// often it was activated since.
	since, tried time.Time
	wakes        int
}

// nodesThatMeet are the nodes that meet a requirement, and when the last one was added.
type nodesThatMeet struct {
	names map[string]struct{}
	grew  time.Time
}

// check returns the requirement of a pod that is being scheduled, nil if any node will do. began is when measuring what
// nodes have began.
func (r *requirements) check(pod *v1.Pod, began time.Time) *requirement {
	required, err := requirementOf(pod)
	if err != nil {
		r.events.Eventf(pod, nil, v1.EventTypeWarning, "InvalidAnnotation", "Scheduling", "%s: any node is accepted", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.waiting[pod.UID]
	if !ok {
		w = waitingPod{namespace: pod.Namespace, name: pod.Name, since: began}
		if created := pod.CreationTimestamp.Time; created.Before(began) { // the clock of another machine may be ahead
			w.since = created
		}
	}
	if !required.holds(w, began) {
		delete(r.waiting, pod.UID)
		return nil
	}
	w.tried, w.wakes = began, 0
	r.waiting[pod.UID] = w
	if !r.running {
		r.running = true
		go r.run()
	}
	return &required
}

// holds reports whether a pod still has to wait for a node that meets the requirement.
func (r requirement) holds(w waitingPod, now time.Time) bool {
	return r.percent > 0 && now.Before(w.since.Add(r.timeout))
}

// reason returns why a pod waits; empty if it does not.
func (r *requirements) reason(pod *v1.Pod) string {
	required, err := requirementOf(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.waiting[pod.UID]; ok && err == nil {
		return fmt.Sprintf("waiting until %s for a node with %d%% of its layers", w.since.Add(required.timeout).UTC().Format(time.RFC3339), required.percent)
	}
	return ""
}

func (r *requirements) run() {
	ticker := time.NewTicker(requireTick)
	defer ticker.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-ticker.C:
		}
		pods, more := r.look()
		if len(pods) > 0 {
			r.activate(klog.FromContext(r.ctx), pods)
		}
		if !more {
			return
		}
	}
}

// look returns the pods that have to be tried again, by namespace and name, those first that wait for longest. It
// forgets those that are placed or gone, and those that any node will do for. Without more the loop must end.
func (r *requirements) look() (again map[string]*v1.Pod, more bool) {
	r.mu.Lock()
	all := maps.Clone(r.waiting)
	r.mu.Unlock()
	uids := slices.SortedFunc(maps.Keys(all), func(a, b types.UID) int {
		return cmp.Or(all[a].since.Compare(all[b].since), strings.Compare(string(a), string(b)))
	})
	again = map[string]*v1.Pod{}
	measured := r.measure(uids, all)
	now := time.Now()

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uid := range uids {
		w, ok := r.waiting[uid]
		pod, err := r.pods.Pods(w.namespace).Get(w.name)
		if !ok || err != nil || pod.UID != uid || pod.Spec.NodeName != "" {
			delete(r.waiting, uid)
			continue
		}
		required, err := requirementOf(pod)
		over := err != nil || !required.holds(w, now)
		if meet := measured[uid]; (over || meet != nil && meet.grew.After(w.tried)) && w.wakes < maxWakes && len(again) < maxActivated {
			w.wakes++
			again[w.namespace+"/"+w.name] = pod
		}
		if r.waiting[uid] = w; over && w.wakes == maxWakes {
			delete(r.waiting, uid) // PreFilter notes it again if need be
		}
	}
	r.running = len(r.waiting) > 0
	return again, r.running
}

// measure brings up to date which nodes meet the requirements of pods, of at most maxMeasured in turn. It returns what
// is known for each pod.
func (r *requirements) measure(uids []types.UID, all map[types.UID]waitingPod) map[types.UID]*nodesThatMeet {
	of, met, done := make(map[types.UID]*nodesThatMeet, len(uids)), make(map[string]*nodesThatMeet, len(r.met)), map[string]bool{}
	begin := r.next % max(1, len(uids))
	for i := range uids {
		at := (begin + i) % len(uids)
		w := all[uids[at]]
		pod, err := r.pods.Pods(w.namespace).Get(w.name)
		if err != nil {
			continue
		}
		required, err := requirementOf(pod)
		if err != nil || required.percent == 0 {
			continue
		}
		key := strings.Join(append(r.profile.Signature(pod), strconv.Itoa(required.percent)), "\n")
		meet := met[key]
		if meet == nil {
			if meet = r.met[key]; meet == nil {
				meet = &nodesThatMeet{names: map[string]struct{}{}}
			}
			met[key] = meet
		}
		of[uids[at]] = meet
		if done[key] || len(done) >= maxMeasured {
			continue
		}
		done[key] = true
		r.next = at + 1
		r.profile.Measure(r.profile.Wanted(pod), &r.memory)
		names := map[string]struct{}{}
		for name := range r.memory.Nodes() {
			if required.isMet(&r.memory, name) {
				if _, was := meet.names[name]; !was {
					meet.grew = time.Now()
				}
				names[name] = struct{}{}
			}
		}
		meet.names = names
	}
	r.met = met
	return of
}

// Filter refuses nodes that have less of the pod's layers than it requires.
func (pl *LayerLocality) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s := pl.stateOf(state)
	if s == nil || s.required == nil || s.cycle == nil {
		return nil
	}
	if s.required.isMet(&s.cycle.measured, node.Node().Name) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, s.required.message())
}
