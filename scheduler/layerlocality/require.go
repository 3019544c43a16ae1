package layerlocality

import (
	"context"
	"fmt"
	"hash/maphash"
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

// isMet reports whether a node has enough. known is the least that is known about any of the images: of an unknown
// one, no node has anything.
func (r requirement) isMet(bytes index.NodeBytes, known index.Known) bool {
	return known != index.Unknown && bytes.Total > 0 && float64(bytes.Present)*100 >= float64(bytes.Total)*float64(r.percent)
}

// message is why a node is refused.
func (r requirement) message() string {
	return fmt.Sprintf("node(s) had less than %d%% of the layers of the pod's images", r.percent)
}

const (
	// requireTick is the interval at which waiting pods are looked at.
	requireTick = time.Second
	// maxMeasured bounds how many of them are measured in one interval; pods with the same images count once.
	maxMeasured = 100
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
	waiting map[types.UID]*waitingPod
	running bool
	seed    maphash.Seed
	memory  index.Measurement
}

// waitingPod is a pod with a requirement.
type waitingPod struct {
	namespace, name string
	until           time.Time
	// nodes is the hash of the nodes that met the requirement when the pod was last tried.
	nodes uint64
}

// check returns the requirement of a pod that is being scheduled, nil if any node will do. m is what the nodes have.
func (r *requirements) check(pod *v1.Pod, m *index.Measurement) *requirement {
	required, err := requirementOf(pod)
	if err != nil {
		r.events.Eventf(pod, nil, v1.EventTypeWarning, "InvalidAnnotation", "Scheduling", "%s: any node is accepted", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.waiting[pod.UID]
	if w == nil {
		w = &waitingPod{namespace: pod.Namespace, name: pod.Name, until: earlier(pod.CreationTimestamp.Time, time.Now()).Add(required.timeout)}
	}
	if required.percent == 0 || !time.Now().Before(w.until) {
		delete(r.waiting, pod.UID)
		return nil
	}
	w.nodes = r.nodesThatMeet(required, m)
	r.waiting[pod.UID] = w
	if !r.running {
		r.running = true
		go r.run()
	}
	return &required
}

// earlier returns the earlier time: a clock of another machine may be ahead.
func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// nodesThatMeet returns a hash of the nodes that meet a requirement.
func (r *requirements) nodesThatMeet(required requirement, m *index.Measurement) (hash uint64) {
	known := least(m.Images)
	for name := range m.Nodes() {
		if bytes, ok := m.Node(name); ok && required.isMet(bytes, known) {
			hash ^= maphash.String(r.seed, name)
		}
	}
	return hash
}

// reason returns why a pod waits; empty if it does not.
func (r *requirements) reason(pod *v1.Pod) string {
	required, err := requirementOf(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.waiting[pod.UID]; w != nil && err == nil {
		return fmt.Sprintf("waiting until %s for a node with %d%% of its layers", w.until.UTC().Format(time.RFC3339), required.percent)
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

// look returns the pods that have to be tried again, by namespace and name. It forgets those that are placed or gone.
// Without more the loop must end.
func (r *requirements) look() (again map[string]*v1.Pod, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again = map[string]*v1.Pod{}
	hashes := map[string]uint64{}
	for uid, w := range r.waiting {
		pod, err := r.pods.Pods(w.namespace).Get(w.name)
		if err != nil || pod.UID != uid || pod.Spec.NodeName != "" {
			delete(r.waiting, uid)
			continue
		}
		required, err := requirementOf(pod)
		if err != nil || required.percent == 0 || !time.Now().Before(w.until) {
			again[w.namespace+"/"+w.name] = pod
			continue
		}
		key := strings.Join(append(slices.Clone(r.profile.Signature(pod)), strconv.Itoa(required.percent)), "\n")
		hash, ok := hashes[key]
		if !ok && len(hashes) < maxMeasured { // others are looked at the next time: a map has no order
			r.profile.Measure(r.profile.Wanted(pod), &r.memory)
			hash, ok = r.nodesThatMeet(required, &r.memory), true
			hashes[key] = hash
		}
		if ok && hash != w.nodes {
			again[w.namespace+"/"+w.name] = pod
		}
	}
	r.running = len(r.waiting) > 0
	return again, r.running
}

// Filter refuses nodes that have less of the pod's layers than it requires.
func (pl *LayerLocality) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s := pl.stateOf(state)
	if s == nil || s.required == nil || s.cycle == nil {
		return nil
	}
	if bytes, ok := s.cycle.measured.Node(node.Node().Name); ok && s.required.isMet(bytes, s.known) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, s.required.message())
}
