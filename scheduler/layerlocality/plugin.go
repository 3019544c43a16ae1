// Package layerlocality is a kube-scheduler plugin that sends pods to the nodes
// that have the least left to pull.
package layerlocality

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "LayerLocality"

// LayerLocality scores nodes by the bytes of a pod's images they lack.
type LayerLocality struct {
	*shared
	profile string
	args    *config.LayerLocalityArgs
	scorer  scorer
	table   *imageref.Table
}

var (
	_ fwk.PreScorePlugin = &LayerLocality{}
	_ fwk.ScorePlugin    = &LayerLocality{}
	_ fwk.ReservePlugin  = &LayerLocality{}
	_ fwk.SignPlugin     = &LayerLocality{}
)

// Name returns the name of the plugin.
func (pl *LayerLocality) Name() string { return Name }

const stateKey fwk.StateKey = Name

// podScores are the scores of all nodes for one pod.
type podScores struct {
	slots  index.Slots
	scores []uint8
	// meanMissing is what the feasible nodes would have to pull on average.
	meanMissing float64
}

// Clone returns the same scores: they do not change.
func (s *podScores) Clone() fwk.StateData { return s }

var weights = sync.Pool{New: func() any { return &index.Weights{} }}

// PreScore computes the scores of all feasible nodes in one pass. It asks to be
// skipped when nothing is known that would prefer one node to another; missing
// data is never an error.
func (pl *LayerLocality) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	pl.waitForSync(ctx)
	images := wanted(pod, pl.table, pl.sources)
	if len(images) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	w := weights.Get().(*index.Weights)
	defer weights.Put(w)
	pl.index.Weigh(images, pl.args.MaxWaitingPods, time.Now(), w)
	pl.metrics.observe(w.Images)

	result := &podScores{slots: w.Slots()}
	state.Write(stateKey, result)
	empty := w.Empty()
	if empty {
		result.meanMissing = float64(w.Total())
		return fwk.NewStatus(fwk.Skip)
	}

	result.scores = make([]uint8, w.Len())
	mean := meanCPU(nodes)
	for _, n := range nodes {
		s, ok := result.slots[n.Node().Name]
		if !ok {
			continue
		}
		weight := w.At(s)
		result.meanMissing += float64(weight.Missing())
		result.scores[s] = uint8(pl.scorer.points(weight, cpuPercent(n)-mean).score())
	}
	result.meanMissing /= float64(len(nodes))
	if logger := klog.FromContext(ctx).V(5); logger.Enabled() {
		logger.Info("Rated nodes by the layers they lack", "plugin", Name, "pod", klog.KObj(pod),
			"images", w.Images, "feasibleNodes", len(nodes), "meanMissingBytes", int64(result.meanMissing), "meanCPUPercent", mean)
	}
	return nil
}

// cpuPercent is how much of a node's CPU is requested, counted as in
// kube-scheduler's own scoring: a container without a request has 100m.
func cpuPercent(n fwk.NodeInfo) float64 {
	allocatable := n.GetAllocatable().GetMilliCPU()
	if allocatable <= 0 {
		return 0
	}
	return 100 * float64(n.GetNonZeroRequested().GetMilliCPU()) / float64(allocatable)
}

func meanCPU(nodes []fwk.NodeInfo) float64 {
	if len(nodes) == 0 {
		return 0
	}
	var sum float64
	for _, n := range nodes {
		sum += cpuPercent(n)
	}
	return sum / float64(len(nodes))
}

// Score looks up what PreScore computed.
func (pl *LayerLocality) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	data, err := state.Read(stateKey)
	if err != nil {
		return 0, nil
	}
	s := data.(*podScores)
	if slot, ok := s.slots[node.Node().Name]; ok && int(slot) < len(s.scores) {
		return int64(s.scores[slot]), nil
	}
	return 0, nil
}

// ScoreExtensions is nil: the scores mean the same for every pod, and stretching
// them to 100 would make small images count as much as large ones.
func (pl *LayerLocality) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Reserve notes what the node now has to pull.
func (pl *LayerLocality) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	images := wanted(pod, pl.table, pl.sources)
	missing := pl.index.Reserve(pod.UID, nodeName, images, pl.args.UnknownImageBytes, time.Now().Add(pl.args.ArrivalTimeout.Duration))
	if data, err := state.Read(stateKey); err == nil {
		s := data.(*podScores)
		pl.metrics.placed(missing, s.meanMissing)
	}
	klog.FromContext(ctx).V(5).Info("Node has to pull layers", "plugin", Name, "pod", klog.KObj(pod), "node", nodeName, "bytes", missing)
	return nil
}

// Unreserve takes Reserve back: the pod does not come.
func (pl *LayerLocality) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	pl.index.Release(pod.UID)
}

// SignPod makes opportunistic batching possible: pods with the same images get
// the same scores.
func (pl *LayerLocality) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: Name + ".Images", Value: signature(pod, pl.table)}}, nil
}
