package layerlocality

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme" // kube-scheduler decodes the arguments
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// Factory makes the plugin, once for each profile that enables it. All of them
// share one Tracker, so that the pods of every profile count for the others.
type Factory struct {
	manifestSources []func(context.Context, fwk.Handle) (locality.ManifestSource, error)
	nodeSources     []func(context.Context, fwk.Handle) (locality.NodeSource, error)
	clock           clock.PassiveClock // nil: the real one

	withoutHolding bool

	mu sync.Mutex
	// tracker is nil before the first profile.
	tracker    *locality.Tracker
	profiles   map[string]*LayerLocality
	placements *placements.Memory
}

// NewFactory returns a Factory for one scheduler.
func NewFactory(options ...Option) *Factory {
	f := &Factory{profiles: map[string]*LayerLocality{}, placements: placements.New(time.Now())}
	for _, option := range options {
		option(f)
	}
	return f
}

// New makes the plugin of a profile; it is the factory function that
// kube-scheduler needs.
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
	profile, err := f.newProfileLocked(ctx, handle, args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	core := handle.SharedInformerFactory().Core().V1()
	pl := &LayerLocality{
		profile: profile, tracker: f.tracker, metrics: registerMetrics(f.tracker.Stats),
		placements: f.placements, nodes: core.Nodes().Lister(), pods: core.Pods().Lister(), snapshot: handle.SnapshotSharedLister(),
	}
	pl.metrics.start(profile.Name)
	pl.cycles.New = func() any { return &cycle{} }
	if !f.withoutHolding {
		pl.requirements = &requirements{
			ctx: ctx, profile: profile, pods: pl.pods, activate: handle.Activate, events: handle.EventRecorder(),
			waiting: map[types.UID]waitingPod{},
		}
	}
	if wait := args.WaitForManifest.Duration; wait > 0 && !f.withoutHolding {
		pl.gate = &gate{
			ctx: ctx, unknown: profile.UnknownImages, awaits: profile.Awaits, answered: profile.Answered, pods: pl.pods, activate: handle.Activate,
			metrics: pl.metrics, budget: newWaitBudget(wait, clock.RealClock{}), entries: map[types.UID]*entry{},
			answers: make(chan struct{}, 1),
		}
		profile.OnAnswer(pl.gate.wake)
	}
	f.profiles[profile.Name] = pl
	return pl, nil
}

// newProfileLocked adds a profile to the Tracker; the first profile starts the
// Tracker.
func (f *Factory) newProfileLocked(ctx context.Context, handle fwk.Handle, args *config.LayerLocalityArgs) (*locality.Profile, error) {
	core := handle.SharedInformerFactory().Core().V1()
	if f.tracker != nil {
		if !f.tracker.Follows(core.Nodes().Informer()) {
			return nil, errors.New("one Factory serves one scheduler: make another with NewFactory")
		}
		return f.tracker.NewProfile(handle.ProfileName(), args), nil
	}
	config := locality.Config{Nodes: core.Nodes(), Pods: core.Pods(), Clock: f.clock}
	for _, newSource := range f.manifestSources {
		source, err := newSource(ctx, handle)
		if err != nil {
			return nil, fmt.Errorf("source of images: %w", err)
		}
		config.Images = append(config.Images, source)
	}
	for _, newSource := range f.nodeSources {
		source, err := newSource(ctx, handle)
		if err != nil {
			return nil, fmt.Errorf("source of layers: %w", err)
		}
		config.Layers = append(config.Layers, source)
	}
	tracker := locality.NewTracker(config)
	profile := tracker.NewProfile(handle.ProfileName(), args)
	if err := tracker.Start(ctx); err != nil {
		return nil, err
	}
	f.tracker = tracker
	registerProvenance(tracker.ImagesOfAll, tracker.Silent)
	if !nodestatus.Layers {
		klog.FromContext(ctx).Info("This build of kube-scheduler does not see image layers in NodeStatus: what nodes have is known from ImageManifests, otherwise by name only", "plugin", Name)
	}
	return profile, nil
}

// profile returns the plugin of a profile; if the name is empty, that of the
// first profile by name; nil if there is none.
func (f *Factory) profile(name string) *LayerLocality {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == "" && len(f.profiles) > 0 {
		name = slices.Min(slices.Collect(maps.Keys(f.profiles)))
	}
	return f.profiles[name]
}
