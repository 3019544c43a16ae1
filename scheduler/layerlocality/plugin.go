// Package layerlocality is a kube-scheduler plugin that sends pods to the nodes
// that have the least to pull.
package layerlocality

import (
	"context"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "LayerLocality"

// LayerLocality scores nodes by the bytes of a pod's images they lack.
type LayerLocality struct {
	// profile has the arguments and what is known; tracker is shared by all
	// profiles.
	profile *locality.Profile
	tracker *locality.Tracker
	metrics *pluginMetrics
	nodes   corelisters.NodeLister
	pods    corelisters.PodLister
	// cycles are the memory of scheduling cycles, *cycle.
	cycles sync.Pool
	// last is the state of the pod that is being scheduled.
	last atomic.Pointer[podState]
	// gate is nil unless pods may be held (waitForManifest).
	gate *gate
}

var (
	_ fwk.PreEnqueuePlugin  = &LayerLocality{}
	_ fwk.EnqueueExtensions = &LayerLocality{}
	_ fwk.PreScorePlugin    = &LayerLocality{}
	_ fwk.ScorePlugin       = &LayerLocality{}
	_ fwk.ReservePlugin     = &LayerLocality{}
	_ fwk.SignPlugin        = &LayerLocality{}
)

// Scores are handed over as they are.
var _ = [1]struct{}{}[locality.MaxScore-fwk.MaxScore]

// Name returns the name of the plugin.
func (pl *LayerLocality) Name() string { return Name }

// PreEnqueue holds a pod with an unknown image as long as an answer may come and
// waitForManifest allows it.
func (pl *LayerLocality) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if pl.gate == nil {
		return nil
	}
	return pl.gate.check(pod)
}

// EventsToRegister returns no event: no cluster event lets a pod pass that
// PreEnqueue holds; the gate tells the queue itself. Without this method the queue
// would ask again at every event.
func (pl *LayerLocality) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

const stateKey fwk.StateKey = Name

// podState is what PreScore leaves for Score and Reserve.
type podState struct {
	// of is the cycle state that it was written to.
	of fwk.CycleState
	// cycle is nil once it has been given back.
	cycle *cycle
	// meanMissing is what the nodes would have to pull on average.
	meanMissing float64
}

// Clone returns the same state: scores do not change it.
func (s *podState) Clone() fwk.StateData { return s }

// PreScore computes what every node has and lacks in one pass. It returns Skip
// when nothing is known by which one node would be better than another; missing
// data is never an error.
func (pl *LayerLocality) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	pl.tracker.WaitForSync(ctx)
	images := pl.profile.Wanted(pod)
	if len(images) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	c := &cycle{}
	if group := state.IsPodGroupSchedulingCycle(); !group {
		// Within the cycle of a group, pods are assumed in the snapshot and
		// generations are restored, so nothing may be remembered.
		c = pl.cycles.Get().(*cycle)
	}
	m := &c.measured
	pl.profile.Measure(images, m)
	pl.metrics.observe(m.Images)
	s := &podState{of: state, meanMissing: m.MeanTotal()}
	state.Write(stateKey, s)
	pl.last.Store(s)
	if m.Empty() {
		pl.giveBack(state, c)
		return fwk.NewStatus(fwk.Skip)
	}
	c.look(nodes, locality.RequestOf(pod), pl.profile)
	s.cycle, s.meanMissing = c, c.meanMissing
	if logger := klog.FromContext(ctx).V(5); logger.Enabled() {
		logger.Info("Measured what nodes lack", "plugin", Name, "pod", klog.KObj(pod),
			"images", m.Images, "meanMissingBytes", int64(s.meanMissing), "meanCPUPercent", c.balance.MeanCPUPercent, "pointsForCPUPercent", c.balance.CPUPenalty)
	}
	return nil
}

// Score looks up what PreScore computed for a node.
func (pl *LayerLocality) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	s := pl.last.Load() // nearly always, and faster than Read
	if s == nil || s.of != state {
		data, err := state.Read(stateKey)
		if err != nil {
			return 0, nil
		}
		s = data.(*podState)
	}
	if s.cycle == nil {
		return 0, nil
	}
	bytes, load, ok := s.cycle.node(node)
	if !ok || bytes.Present+bytes.Arriving == 0 {
		return 0, nil // penalties take nothing away from nothing
	}
	return pl.profile.Points(bytes, load, s.cycle.delays).Score(), nil
}

// ScoreExtensions returns nil: scores mean the same for every pod, and stretching
// them to 100 would make small images count as much as large ones.
func (pl *LayerLocality) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Reserve notes what the node now has to pull.
func (pl *LayerLocality) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	missing := pl.profile.Reserve(pod, nodeName)
	if pl.gate != nil {
		pl.gate.placed(pod.UID)
	}
	if data, err := state.Read(stateKey); err == nil {
		s := data.(*podState)
		if !state.IsPodGroupSchedulingCycle() { // which reserves more than once
			pl.metrics.placed(missing, s.meanMissing)
		}
		if s.cycle != nil { // scoring is over
			pl.giveBack(state, s.cycle)
			s.cycle = nil
		}
	}
	if logger := klog.FromContext(ctx).V(5); logger.Enabled() {
		logger.Info("Node has to pull layers", "plugin", Name, "pod", klog.KObj(pod), "node", nodeName, "bytes", missing)
	}
	return nil
}

// giveBack makes the memory of a cycle available to the next pod.
func (pl *LayerLocality) giveBack(state fwk.CycleState, c *cycle) {
	if !state.IsPodGroupSchedulingCycle() {
		pl.cycles.Put(c)
	}
}

// Unreserve undoes Reserve, unless the pod was bound after all: a bind may succeed
// although its answer got lost.
func (pl *LayerLocality) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, nodeName string) {
	if bound, err := pl.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && bound.UID == pod.UID && bound.Spec.NodeName == nodeName {
		return
	}
	pl.profile.Release(pod.UID)
}

// SignPod makes opportunistic batching possible: pods with the same images and the
// same CPU request get the same scores.
func (pl *LayerLocality) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{
		{Key: Name + ".Images", Value: pl.profile.Signature(pod)},
		{Key: Name + ".MilliCPU", Value: locality.RequestOf(pod)},
	}, nil
}
