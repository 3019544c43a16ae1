// Package layerlocality is a kube-scheduler plugin that sends pods to the nodes
// that have the least to pull.
package layerlocality

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/placements"
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
	// placements is shared by all profiles.
	placements *placements.Memory
	nodes      corelisters.NodeLister
	// snapshot is what the scheduling cycle sees of the cluster.
	snapshot fwk.SharedLister
	pods     corelisters.PodLister
	// cycles are the memory of scheduling cycles, *cycle.
	cycles sync.Pool
	// last is the state of the pod that is being scheduled.
	last atomic.Pointer[podState]
	// turn counts the pods, so that equal nodes are preferred in turn.
	turn atomic.Uint32
	// gate is nil unless pods may be gated (waitForManifest).
	gate *gate
	// requirements is nil where pods cannot be held (WithoutHolding).
	requirements *requirements
}

var (
	_ fwk.PreEnqueuePlugin  = &LayerLocality{}
	_ fwk.EnqueueExtensions = &LayerLocality{}
	_ fwk.PreFilterPlugin   = &LayerLocality{}
	_ fwk.FilterPlugin      = &LayerLocality{}
	_ fwk.PreScorePlugin    = &LayerLocality{}
	_ fwk.ScorePlugin       = &LayerLocality{}
	_ fwk.ReservePlugin     = &LayerLocality{}
	_ fwk.SignPlugin        = &LayerLocality{}
)

// Scores are handed over as they are.
var _ = [1]struct{}{}[locality.MaxScore-fwk.MaxScore]

// Name returns the name of the plugin.
func (pl *LayerLocality) Name() string { return Name }

// HasSynced reports whether the first reports are in: before, PreFilter and PreScore wait for
// them. kube-scheduler does not ask; layer-extender does, and refuses to answer until then.
func (pl *LayerLocality) HasSynced() bool { return pl.tracker.HasSynced() }

// PreEnqueue gates a pod with an unknown image as long as an answer may come and
// waitForManifest allows it.
func (pl *LayerLocality) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if pl.gate == nil {
		return nil
	}
	return pl.gate.check(pod)
}

// EventsToRegister returns no event: no cluster event lets a pod pass that PreEnqueue gates or
// Filter refuses; the gate and the requirements activate it themselves. Without this method the
// queue would ask again at every event.
func (pl *LayerLocality) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

const stateKey fwk.StateKey = Name

// podState is what one step of a scheduling cycle leaves for the next.
type podState struct {
	// of is the cycle state that it was written to, pod whose attempt that is.
	of  fwk.CycleState
	pod types.UID
	// prefiltered means that PreFilter made it, so that it is of the last attempt; observed that it is counted.
	prefiltered, observed bool
	// cycle is nil once it has been given back.
	cycle *cycle
	// meanMissing is what the nodes would have to pull on average.
	meanMissing float64
	// scored means that there was more than one node to choose from: feasible ones. There is one also
	// where kube-scheduler tries a node first: a nominated one, or that of opportunistic batching.
	scored   bool
	feasible int32
	// known is the least that is known about any of the pod's images.
	known index.Known
	// required is nil if any node will do.
	required *requirement
	// trial is the last placement on trial, in the cycle of a pod group; nil if there was none.
	trial *placements.Placement
}

// Clone returns the same state: scores do not change it.
func (s *podState) Clone() fwk.StateData { return s }

// preferredNodesKey is where the patched kube-scheduler looks for the nodes to begin with
// (patches/kubernetes, "look first at the nodes that a plugin prefers"). Others do not.
const preferredNodesKey fwk.StateKey = "layerlocality.io/preferred-nodes"

// preferredNodes are the nodes that kube-scheduler looks at first.
type preferredNodes []string

// maxPreferred is how many they are at most. They take places in kube-scheduler's sample,
// which has 100 nodes and more; the rest of it is for all the other plugins.
const maxPreferred = 32

// PreferredNodes returns their names.
func (p preferredNodes) PreferredNodes() []string { return p }

// Clone returns the same nodes.
func (p preferredNodes) Clone() fwk.StateData { return p }

// PreFilter computes what every node has and lacks, and names the nodes that have most, among those that the pod
// looks as if it fits on. Filter is skipped but for pods with RequireAnnotation.
func (pl *LayerLocality) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	began := time.Now()
	if s := pl.measure(ctx, state, pod); s != nil {
		s.prefiltered = true
		fits := newFit(klog.FromContext(ctx), pod, pl.snapshot)
		if names := s.cycle.measured.TopNodes(maxPreferred, pl.turn.Add(1), fits.on); len(names) > 0 {
			state.Write(preferredNodesKey, preferredNodes(names))
		}
		if _, ok := pod.Annotations[RequireAnnotation]; ok && pl.requirements != nil {
			if s.required = pl.requirements.check(pod, began); s.required != nil {
				return nil, nil
			}
		}
	}
	return nil, fwk.NewStatus(fwk.Skip)
}

// PreFilterExtensions returns nil: other pods do not change what a node has.
func (pl *LayerLocality) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// measure computes what every node has and lacks of a pod's images in one pass; nil if the
// pod has no images.
func (pl *LayerLocality) measure(ctx context.Context, state fwk.CycleState, pod *v1.Pod) *podState {
	pl.tracker.WaitForSync(ctx)
	images := pl.profile.Wanted(pod)
	if len(images) == 0 {
		return nil
	}
	c := pl.cycles.Get().(*cycle)
	pl.profile.Measure(images, &c.measured)
	s := &podState{of: state, pod: pod.UID, cycle: c, known: least(c.measured.Images)}
	state.Write(stateKey, s)
	pl.last.Store(s)
	return s
}

// PreScore scores the nodes that are left after the filters. It returns Skip when
// nothing is known by which one node would be better than another; missing data is
// never an error.
func (pl *LayerLocality) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	s := pl.stateOf(state)
	if s == nil {
		// kube-scheduler may score once more in an attempt, in a copy of its state or in a new one.
		if last := pl.last.Load(); last != nil && last.prefiltered && last.pod == pod.UID {
			s = last
			state.Write(stateKey, s)
		} else { // a profile that does not enable PreFilter, or a pod without images
			s = pl.measure(ctx, state, pod)
		}
	}
	if s == nil || s.cycle == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	c := s.cycle
	if !s.observed {
		s.observed = true
		pl.metrics.observe(c.measured.Images)
	}
	s.scored, s.feasible = true, int32(min(len(nodes), math.MaxInt32)) //nolint:gosec // bounded
	if c.measured.Empty() {
		s.meanMissing = c.measured.MeanTotal()
		pl.giveBack(s)
		return fwk.NewStatus(fwk.Skip)
	}
	c.rate(nodes, locality.RequestOf(pod), pl.profile)
	s.meanMissing = c.meanMissing
	if logger := klog.FromContext(ctx).V(decisions.Pods); logger.Enabled() {
		logger.Info("Measured what nodes lack", "plugin", Name, "pod", klog.KObj(pod),
			"images", c.measured.Images, "meanMissingBytes", int64(s.meanMissing), "meanLoadPercent", c.balance.MeanPercent, "pointsForPercent", c.balance.LoadPenalty)
		decisions.LogPlugin(ctx, Name, pod, nodes, c.score)
	}
	return nil
}

// stateOf returns what an earlier step left, nil if there was none.
func (pl *LayerLocality) stateOf(state fwk.CycleState) *podState {
	if s := pl.last.Load(); s != nil && s.of == state { // nearly always, and faster than Read
		return s
	}
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	return data.(*podState)
}

// Score looks up what PreScore computed for a node.
func (pl *LayerLocality) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	s := pl.stateOf(state)
	if s == nil || s.cycle == nil {
		return 0, nil
	}
	return s.cycle.score(node), nil
}

// ScoreExtensions returns nil: scores mean the same for every pod, and stretching
// them to 100 would make small images count as much as large ones.
func (pl *LayerLocality) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Reserve notes what the node now has to pull.
func (pl *LayerLocality) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	missing := pl.profile.Reserve(pod, nodeName)
	s := pl.stateOf(state)
	// The cycle of a pod group reserves on trial, gives that back, and reserves once more with the same state.
	switch trial := onTrial(state); {
	case trial && s != nil && s.cycle != nil:
		p := pl.placement(s, pod, nodeName, missing)
		s.trial = &p
	case !trial:
		pl.remember(s, pod, nodeName, missing)
	}
	if s != nil {
		pl.giveBack(s) // scoring is over
	}
	if logger := klog.FromContext(ctx).V(decisions.Pods); logger.Enabled() {
		logger.Info("Node has to pull layers", "plugin", Name, "pod", klog.KObj(pod), "node", nodeName, "bytes", missing)
	}
	return nil
}

// remember counts a placement, and keeps what was known when it was decided. s is nil if the
// plugin was not asked about nodes.
func (pl *LayerLocality) remember(s *podState, pod *v1.Pod, node string, missing int64) {
	var p placements.Placement
	if s != nil && s.trial != nil && s.trial.Chosen.Node == node {
		p = *s.trial
		p.Chosen.MissingBytes = missing // without what pods of the group bring that are not placed after all
	} else {
		p = pl.placement(s, pod, node, missing)
	}
	if pl.gate != nil {
		p.HeldMilliseconds = pl.gate.placed(pod.UID).Milliseconds()
	}
	if s != nil && s.scored {
		pl.metrics.placed(pl.profile.Name, s.known, &p.Chosen, s.meanMissing)
	}
	pl.placements.Add(p)
}

// placement returns what was known when a pod was placed.
func (pl *LayerLocality) placement(s *podState, pod *v1.Pod, node string, missing int64) placements.Placement {
	p := placements.Placement{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Profile: pl.profile.Name, Time: time.Now(),
		Chosen: placements.Weights{Node: node, TotalBytes: missing, MissingBytes: missing},
	}
	if s != nil {
		p.Known, p.FeasibleNodes = placements.Known(s.known), s.feasible
		if s.scored {
			p.Mean = &placements.Mean{MissingBytes: s.meanMissing}
		} else {
			p.FeasibleNodes = 1 // no other fitted, or kube-scheduler did not look for one
		}
		if c := s.cycle; c != nil {
			if slot, ok := c.measured.Slot(node); ok {
				pl.compare(&p, s, slot)
			}
		}
	}
	return p
}

// compare adds what the chosen node had, and what the others did.
func (pl *LayerLocality) compare(p *placements.Placement, s *podState, slot index.Slot) {
	c, missing := s.cycle, p.Chosen.MissingBytes
	if !s.scored { // there may be scores of the pod before
		c.scores, c.bestScore = c.scores[:0], 0
	}
	p.Chosen = c.weights(slot, p.Chosen.Node)
	p.Chosen.MissingBytes = missing
	if !s.scored {
		return
	}
	p.Mean.Score = c.meanScore
	switch {
	case c.bestScore == 0:
	case p.Chosen.Score == int64(c.bestScore):
		best := p.Chosen
		p.Best = &best
	default:
		best := c.weights(c.best, c.measured.Slots().Name(c.best))
		p.Best = &best
	}
}

// least returns the least that is known about any image.
func least(images []index.Known) (known index.Known) {
	for _, k := range images {
		if known == "" || known.MoreThan(k) {
			known = k
		}
	}
	return known
}

// EndCycle ends a scheduling cycle that may have come without Reserve. kube-scheduler does
// not call it: there, the memory of such a cycle is left to the garbage collector.
// layer-extender does, because not each of its answers has a Reserve: the next cycle would
// have to look up all nodes anew.
func (pl *LayerLocality) EndCycle(state fwk.CycleState) {
	if s := pl.stateOf(state); s != nil {
		pl.giveBack(s)
	}
}

// giveBack makes the memory of a cycle available to the next pod.
func (pl *LayerLocality) giveBack(s *podState) {
	if s.cycle != nil {
		pl.cycles.Put(s.cycle)
	}
	s.cycle = nil
}

// Unreserve undoes Reserve, unless the pod was bound after all: a bind may succeed
// although its answer got lost.
func (pl *LayerLocality) Unreserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) {
	if bound, err := pl.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && bound.UID == pod.UID && bound.Spec.NodeName == nodeName {
		return
	}
	pl.profile.Release(pod.UID)
	if !onTrial(state) {
		pl.placements.Undo(pod.UID)
	}
}

// SignPod makes opportunistic batching possible: pods with the same images and the
// same requests get the same scores. It refuses pods with RequireAnnotation: which nodes they
// may go to changes with time.
func (pl *LayerLocality) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if _, ok := pod.Annotations[RequireAnnotation]; ok {
		return nil, fwk.NewStatus(fwk.Unschedulable, RequireAnnotation)
	}
	return []fwk.SignFragment{
		{Key: Name + ".Images", Value: pl.profile.Signature(pod)},
		{Key: Name + ".Request", Value: locality.RequestOf(pod)},
	}, nil
}
