package layerlocality

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme" // kube-scheduler decodes the arguments
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
	"github.com/layer-locality/layer-locality/scheduler/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// Factory makes the plugin, once for each profile that enables it. All of them
// share one index: what one profile places, arrives for the others too.
type Factory struct {
	imageSources []func(context.Context, fwk.Handle) (ImageSource, error)
	layerSources []func(context.Context, fwk.Handle) (LayerSource, error)
	clock        clock.PassiveClock

	mu       sync.Mutex
	shared   *shared
	profiles map[string]*LayerLocality
}

// NewFactory returns a Factory for one scheduler.
func NewFactory(options ...Option) *Factory {
	f := &Factory{clock: clock.RealClock{}, profiles: map[string]*LayerLocality{}}
	for _, option := range options {
		option(f)
	}
	return f
}

// New makes the plugin of a profile; it is the factory kube-scheduler wants.
func (f *Factory) New(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, ok := obj.(*config.LayerLocalityArgs)
	if !ok {
		return nil, fmt.Errorf("arguments of %s: want LayerLocalityArgs, got %T", Name, obj)
	}
	if err := validation.LayerLocalityArgs(args); err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", Name, err)
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	table := newTable(args)
	if f.shared == nil {
		s, err := f.newShared(ctx, args, table, handle)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
		f.shared = s
	} else if handle.SharedInformerFactory().Core().V1().Nodes().Informer() != f.shared.nodeInformer {
		return nil, fmt.Errorf("%s: one Factory serves one scheduler: make another with NewFactory", Name)
	}
	pl := &LayerLocality{shared: f.shared, profile: handle.ProfileName(), args: args, scorer: newScorer(args), table: table}
	pl.cycles.New = func() any { return &cycle{} }
	if wait := args.WaitForManifest.Duration; wait > 0 {
		pl.gate = &gate{
			ctx: ctx, wait: wait, unknown: pl.unknownImage, pods: pl.pods, activate: handle.Activate,
			metrics: pl.metrics, entries: map[types.UID]*entry{},
		}
	}
	f.profiles[handle.ProfileName()] = pl
	return pl, nil
}

func (f *Factory) exactProfile(name string) *LayerLocality {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.profiles[name]
}

// profile returns the plugin of a profile, of any if the name is empty; nil if
// there is none.
func (f *Factory) profile(name string) *LayerLocality {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name != "" || len(f.profiles) == 0 {
		return f.profiles[name]
	}
	var first string
	for candidate := range f.profiles {
		if first == "" || candidate < first {
			first = candidate
		}
	}
	return f.profiles[first]
}

// shared is what the plugins of all profiles use together.
type shared struct {
	index        *index.Index
	sources      []ImageSource
	metrics      *pluginMetrics
	clock        clock.PassiveClock
	nodeInformer cache.SharedIndexInformer
	nodes        corelisters.NodeLister
	pods         corelisters.PodLister
	// args and table are those of the first profile, for pods that other
	// schedulers place.
	args  *config.LayerLocalityArgs
	table *imageref.Table
	// profile returns the plugin of a profile, nil if it is not ours.
	profile func(name string) *LayerLocality

	syncers []Syncer
	synced  atomic.Bool
}

// nodeStatusSource is what NodeStatus is called in the index.
const nodeStatusSource = "NodeStatus"

func (f *Factory) newShared(ctx context.Context, args *config.LayerLocalityArgs, table *imageref.Table, handle fwk.Handle) (*shared, error) {
	core := handle.SharedInformerFactory().Core().V1()
	s := &shared{
		index: index.New(), clock: f.clock, args: args, table: table, profile: f.exactProfile,
		nodeInformer: core.Nodes().Informer(), nodes: core.Nodes().Lister(), pods: core.Pods().Lister(),
	}
	s.metrics = registerMetrics(s.index)
	if err := s.nodeInformer.SetTransform(nodestatus.Transform(s.nodeInformer.GetStore())); err != nil {
		return nil, fmt.Errorf("transform of the node informer: %w", err)
	}
	nodes, err := s.nodeInformer.AddEventHandler(s.nodeHandler())
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	pods, err := core.Pods().Informer().AddEventHandler(s.podHandler(ctx, nodes))
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	s.syncers = []Syncer{nodes, pods}
	for _, newSource := range f.imageSources {
		source, err := newSource(ctx, handle)
		if err != nil {
			return nil, fmt.Errorf("source of images: %w", err)
		}
		s.sources = append(s.sources, source)
	}
	for _, newSource := range f.layerSources {
		source, err := newSource(ctx, handle)
		if err != nil {
			return nil, fmt.Errorf("source of layers: %w", err)
		}
		syncer, err := source.Start(ctx, s.index)
		if err != nil {
			return nil, fmt.Errorf("source of layers %s: %w", source.Name(), err)
		}
		s.syncers = append(s.syncers, syncer)
	}
	if !nodestatus.Layers {
		klog.FromContext(ctx).Info("This build of kube-scheduler does not see image layers in NodeStatus: images are known by name only", "plugin", Name)
	}
	return s, nil
}

func (s *shared) nodeHandler() cache.ResourceEventHandler {
	set := func(node *v1.Node) {
		s.index.SetNode(node.Name, nodestatus.Platform(node))
		s.index.SetImages(nodeStatusSource, node.Name, nodestatus.Images(node))
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*v1.Node); ok {
				set(node)
				if s.synced.Load() { // before, the pods come after all nodes
					s.followAll(node.Name)
				}
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			old, ok1 := oldObj.(*v1.Node)
			node, ok2 := newObj.(*v1.Node)
			if ok1 && ok2 && old.UID == node.UID && nodestatus.SameImages(old, node) &&
				nodestatus.Platform(old) == nodestatus.Platform(node) {
				return // a heartbeat
			}
			if ok1 && ok2 && old.UID != node.UID { // deleted and re-created between two looks
				s.index.DeleteNode(old.Name)
			}
			if ok2 {
				set(node)
			}
			if ok1 && ok2 && old.UID != node.UID {
				s.followAll(node.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if node, ok := obj.(*v1.Node); ok {
				s.index.DeleteNode(node.Name)
			}
		},
	}
}

// podHandler follows pods that were placed, by this scheduler, by the one before
// it or by another: until they run, their nodes pull. The pods wait for the
// nodes to be known, or their layers could not be told.
func (s *shared) podHandler(ctx context.Context, nodes cache.ResourceEventHandlerRegistration) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if !nodes.HasSynced() {
				cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced)
			}
			if pod, ok := obj.(*v1.Pod); ok {
				s.follow(pod, false)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			old, ok1 := oldObj.(*v1.Pod)
			pod, ok2 := newObj.(*v1.Pod)
			if ok1 && ok2 && old.UID != pod.UID {
				s.index.Release(old.UID)
			} else if ok1 && ok2 && old.Spec.NodeName == pod.Spec.NodeName && progressOf(old) == progressOf(pod) {
				return
			}
			if ok2 {
				s.follow(pod, true)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				s.index.Release(pod.UID)
			}
		},
	}
}

// follow notes what a placed pod brings to its node. changed: it was not so far
// before.
func (s *shared) follow(pod *v1.Pod, changed bool) {
	if pod.Spec.NodeName == "" {
		return
	}
	// The arguments of the profile the pod belongs to, if it is one of ours.
	args, table := s.args, s.table
	if pl := s.profile(pod.Spec.SchedulerName); pl != nil {
		args, table = pl.args, pl.table
	}
	now := s.clock.Now()
	reserve := func(deadline time.Time) {
		if now.Before(deadline) {
			s.index.Reserve(pod.UID, pod.Spec.NodeName, wanted(pod, table, s.sources), args.UnknownImageBytes, now, deadline)
		}
	}
	switch progressOf(pod) {
	case pulling:
		reserve(placedAt(pod, now).Add(args.ArrivalTimeout.Duration))
	case started:
		// Also of a pod whose reservation ended before, because a pull failed or
		// took long, and of one that started while no scheduler was looking.
		from := startedAt(pod, now)
		if changed {
			from = now
		}
		deadline := from.Add(args.ReportTimeout.Duration)
		reserve(deadline)
		s.index.Started(pod.UID, deadline)
	case idle:
		s.index.Release(pod.UID)
	}
}

// followAll looks again at the pods of a node that was not known when they came.
func (s *shared) followAll(node string) {
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return // the lister reads from memory
	}
	for _, pod := range pods {
		if pod.Spec.NodeName == node {
			s.follow(pod, false)
		}
	}
}

// syncTimeout bounds how long the first pod waits for the index to be filled.
const syncTimeout = 10 * time.Second

// waitForSync returns when the first reports are in the index: the scheduler
// waits for its own handlers only.
func (s *shared) waitForSync(ctx context.Context) {
	if s.synced.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	for _, syncer := range s.syncers {
		if !syncer.HasSynced() && !cache.WaitForCacheSync(ctx.Done(), syncer.HasSynced) {
			klog.FromContext(ctx).Info("Scheduling before all sources have reported", "plugin", Name, "waited", syncTimeout)
		}
	}
	s.synced.Store(true)
}
