package sim

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/layer-locality/layer-locality/scheduler/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
)

// plugins are LayerLocality, and the policies that exist nowhere as plugins of
// this Kubernetes.
func (r *run) plugins() frameworkruntime.Registry {
	options := []layerlocality.Option{layerlocality.WithClock(r.q)}
	if r.policy.Manifests != Never {
		options = append(options, layerlocality.WithImageSource(func(context.Context, fwk.Handle) (layerlocality.ImageSource, error) {
			return newManifests(r), nil
		}))
	}
	score := func(name string, score func(*v1.Pod, fwk.NodeInfo) int64) frameworkruntime.PluginFactory {
		return func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return &scorer{name, score}, nil
		}
	}
	return frameworkruntime.Registry{
		layerlocality.Name: layerlocality.NewFactory(options...).New,
		imageName:          score(imageName, scoreByName),
		lrScheduler:        score(lrScheduler, r.scoreLRScheduler),
	}
}

// scorer is a score plugin that is one function.
type scorer struct {
	name  string
	score func(*v1.Pod, fwk.NodeInfo) int64
}

var _ fwk.ScorePlugin = &scorer{}

// Name returns the name of the plugin.
func (s *scorer) Name() string { return s.name }

// Score returns the score of a node.
func (s *scorer) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	return s.score(pod, node), nil
}

// ScoreExtensions is nil: scores are what they are.
func (s *scorer) ScoreExtensions() fwk.ScoreExtensions { return nil }

// scoreByName gives 100 points to a node that reports the pod's image under its
// name, whatever its size: ImageLocality without its thresholds.
func scoreByName(pod *v1.Pod, node fwk.NodeInfo) int64 {
	if _, ok := node.GetImageStates()[pod.Spec.Containers[0].Image]; ok {
		return fwk.MaxScore
	}
	return 0
}

// scoreLRScheduler is the score of LRScheduler (Tang et al., MSN 2024, arXiv
// 2506.03694) as its authors' code has it (github.com/pwtttttt/Layer-Scheduler,
// layer/score.go at 5f46823): the share of the image's bytes that is on the node,
// in points of 50, weighed with 2 if more than 10 MiB are there and the node is
// little used (CPU below 0.6) and evenly (|CPU - memory| / 2 below 0.16), with 0.5
// otherwise. Its configuration gives it weight 2 beside all default plugins. It knows
// all images of the registry, and counts only pods that run. Its code asks the runtimes
// which images are complete, for each pod and node: see Policy.Live.
func (r *run) scoreLRScheduler(pod *v1.Pod, node fwk.NodeInfo) int64 {
	wanted, m := r.images[pod.Spec.Containers[0].Image], r.machines[node.Node().Name]
	var present, total int64
	for _, b := range wanted.layers {
		total += b.size
		if r.policy.Live && m.present[b] > 0 || !r.policy.Live && m.stated[b] {
			present += b.size
		}
	}
	if total == 0 {
		return 0
	}
	requests := &pod.Spec.Containers[0].Resources.Requests
	cpu, memory := requests.Cpu().MilliValue(), requests.Memory().Value()
	for _, other := range node.GetPods() {
		if p := other.GetPod(); p.Status.Phase == v1.PodRunning {
			cpu += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			memory += p.Spec.Containers[0].Resources.Requests.Memory().Value()
		}
	}
	cpuShare, memoryShare := float64(cpu)/float64(m.MilliCPU), float64(memory)/float64(m.Memory)
	weight := 0.5
	if present/(1<<20) > 10 && math.Abs(cpuShare-memoryShare)/2 < 0.16 && cpuShare < 0.6 {
		weight = 2
	}
	return int64(weight * math.Trunc(50*float64(present)/float64(total)))
}

// manifests is what the resolver found out.
type manifests struct {
	r *run
	// of has, for each name, the image and its answer.
	of map[imageref.Canonical]answer
}

type answer struct {
	image  *image
	layers []index.Manifest
}

func newManifests(r *run) *manifests {
	s := &manifests{r, make(map[imageref.Canonical]answer, len(r.images))}
	for name, i := range r.images {
		canonical, err := imageref.Parse(name)
		if err != nil {
			continue // the plugin does not know it either
		}
		m := index.Manifest{}
		for _, b := range i.layers {
			m.Layers = append(m.Layers, index.Layer{Digest: b.digest, Size: b.size})
		}
		s.of[canonical] = answer{i, []index.Manifest{m}}
	}
	return s
}

// Manifests implements layerlocality.ImageSource.
func (s *manifests) Manifests(name imageref.Canonical) []index.Manifest {
	a, ok := s.of[name]
	if !ok {
		return nil
	}
	if !s.r.knows(a.image) {
		return nil
	}
	return a.layers
}
