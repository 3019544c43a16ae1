package sim

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/layer-locality/layer-locality/extender/handler"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/lab/eval/prototype"
	"github.com/layer-locality/layer-locality/lab/eval/sim/kubescheduler"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// plugins returns LayerLocality, and plugins for policies that this Kubernetes has no
// plugin for.
func (r *run) plugins() frameworkruntime.Registry {
	options := []layerlocality.Option{layerlocality.WithClock(r.q)}
	if r.policy.Manifests != Never {
		options = append(options, layerlocality.WithManifestSource(func(context.Context, fwk.Handle) (locality.ManifestSource, error) {
			if r.policy.Nodes == Joined || r.policy.Nodes == Agents {
				r.stock = &nodeManifests{manifests: newManifests(r), resolved: map[imageref.Canonical]index.Manifest{}}
				return r.stock, nil
			}
			return newManifests(r), nil
		}))
	}
	if r.policy.Nodes == Agents {
		options = append(options, layerlocality.WithNodeSource(func(context.Context, fwk.Handle) (locality.NodeSource, error) {
			r.agents = nodelayers.NewFed()
			return r.agents, nil
		}))
	}
	score := func(name string, score func(*v1.Pod, fwk.NodeInfo) int64) frameworkruntime.PluginFactory {
		return func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return &scorer{name, score}, nil
		}
	}
	return frameworkruntime.Registry{
		layerlocality.Name:         r.rounding(layerlocality.NewFactory(options...).New),
		kubescheduler.PlacementFit: kubescheduler.NewPlacementFit,
		imageName:                  score(imageName, scoreByName),
		lrScheduler:                score(lrScheduler, r.scoreLRScheduler),
		prototypeName:              newPrototype,
	}
}

// rounding has LayerLocality score in the steps of the policy.
func (r *run) rounding(factory frameworkruntime.PluginFactory) frameworkruntime.PluginFactory {
	if r.policy.Steps == 0 {
		return factory
	}
	return func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		pl, err := factory(ctx, args, handle)
		if err != nil {
			return nil, err
		}
		return &rounded{pl.(*layerlocality.LayerLocality), r.policy.Steps}, nil
	}
}

// rounded is LayerLocality with scores from 0 to a number of steps.
type rounded struct {
	*layerlocality.LayerLocality
	steps int64
}

// Score returns the rounded score of a node.
func (p *rounded) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	score, status := p.LayerLocality.Score(ctx, state, pod, node)
	return handler.Round(score, p.steps), status
}

// newPrototype makes the plugin of 2022, which reads what nodes report.
func newPrototype(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	pl := prototype.New(nodestatus.Images)
	set := func(object any) {
		if node, ok := object.(*v1.Node); ok {
			pl.Set(node)
		}
	}
	_, err := handle.SharedInformerFactory().Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, node any) { set(node) },
		DeleteFunc: func(object any) {
			if node, ok := object.(*v1.Node); ok {
				pl.Delete(node.Name)
			}
		},
	})
	return &scorer{prototype.Name, func(pod *v1.Pod, node fwk.NodeInfo) int64 {
		score, _ := pl.Score(context.Background(), nil, pod, node)
		return max(0, score) // it converts NaN, which gives 0 on some processors
	}}, err
}

// scorer is a score plugin made from one function.
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

// ScoreExtensions returns nil: scores are not normalized.
func (s *scorer) ScoreExtensions() fwk.ScoreExtensions { return nil }

// scoreByName gives 100 points to a node that reports the pod's image by name, whatever
// its size: ImageLocality without its thresholds.
func scoreByName(pod *v1.Pod, node fwk.NodeInfo) int64 {
	if _, ok := node.GetImageStates()[pod.Spec.Containers[0].Image]; ok {
		return fwk.MaxScore
	}
	return 0
}

// scoreLRScheduler is the score of LRScheduler (Tang et al., MSN 2024, arXiv
// 2506.03694) as in its authors' code (github.com/pwtttttt/Layer-Scheduler,
// layer/score.go at 5f46823): the share of the image's bytes that is on the node, in
// points of 50. The weight is 2 if more than 10 MiB are there and the node is used
// little (CPU below 0.6) and evenly (|CPU - memory| / 2 below 0.16), otherwise 0.5. Its
// configuration gives it weight 2 beside all default plugins. It has all images of
// the registry, and counts only running pods. For each pod and node, its code asks the
// runtimes which images are complete: see Policy.Live.
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
	cpuLeft, memoryLeft := m.MilliCPU, m.Memory
	request := func(p *v1.Pod) {
		requests := p.Spec.Containers[0].Resources.Requests
		cpuLeft -= requests.Cpu().MilliValue()
		memoryLeft -= requests.Memory().Value()
	}
	request(pod)
	for _, other := range node.GetPods() {
		if p := other.GetPod(); p.Status.Phase == v1.PodRunning {
			request(p)
		}
	}
	// In the order of its operations, because it truncates.
	cpuShare, memoryShare := 1-float64(cpuLeft)/float64(m.MilliCPU), 1-float64(memoryLeft)/float64(m.Memory)
	weight := 0.5
	if present/(1<<20) > 10 && math.Abs(cpuShare-memoryShare)/2 < 0.16 && cpuShare < 0.6 {
		weight = 2
	}
	return int64(weight * math.Trunc(float64(present)/float64(total)*100/2))
}

// manifests has what the resolver found out.
type manifests struct {
	r  *run
	of map[imageref.Canonical]answer
}

// answer is what a name stands for.
type answer struct {
	name   string
	layers []index.Manifest
}

func newManifests(r *run) *manifests {
	s := &manifests{r, make(map[imageref.Canonical]answer, len(r.images))}
	for name, i := range r.images {
		canonical, err := imageref.Parse(name)
		if err != nil {
			continue // the plugin does not have it either
		}
		s.of[canonical] = answer{name, []index.Manifest{manifestOf(i)}}
	}
	return s
}

// manifestOf returns what the manifest of an image states.
func manifestOf(i *image) index.Manifest {
	m := index.Manifest{Layers: make([]index.Layer, len(i.layers)), Order: make([]uint16, len(i.layers))}
	for k, b := range i.layers {
		m.Layers[k], m.Order[k] = index.Layer{Digest: b.digest, Size: b.size}, uint16(k) //nolint:gosec // layers of an image
	}
	return m
}

// Manifests implements locality.ManifestSource.
func (s *manifests) Manifests(name imageref.Canonical) []index.Manifest {
	a, ok := s.of[name]
	if !ok {
		return nil
	}
	if !s.r.hasManifest(a.name) {
		return nil
	}
	return a.layers
}
