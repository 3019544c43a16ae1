package controller

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// Registry looks up the layers of images. *registry.Client implements it.
// Errors are *registry.Error; any other error counts as ReasonUnavailable.
type Registry interface {
	// References returns the references that an image in a pod may mean, in the
	// order in which a container runtime tries them.
	References(image string) ([]string, error)
	// Denied returns why a reference may not be asked for, by the names of its
	// registry and mirrors, or nil if it may.
	Denied(reference string) error
	// Resolve returns the manifests of a reference for the platforms. Keychains
	// are tried until the registry answers.
	Resolve(ctx context.Context, reference string, platforms []string, keychains []authn.Keychain) (*registry.Resolution, error)
	// Digest returns the digest that the registry has for a reference, without asking
	// for the manifest.
	Digest(ctx context.Context, reference string, keychains []authn.Keychain) (string, error)
}

// Options are what Add needs to know.
type Options struct {
	Registry Registry
	// Policy gets the registries in use if InUse is set.
	Policy *policy.Policy
	InUse  bool
	// Keychain holds credentials for all workloads; nil for none.
	Keychain authn.Keychain
	// PullSecrets lets the controller read the pull secrets of workloads.
	PullSecrets bool
	// TagTTL is how old the answer for a tag may be before it is confirmed.
	TagTTL time.Duration
	// KeepUnused is how long an unused reference stays known.
	KeepUnused time.Duration
	// Workers for each registry.
	Workers int
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Resolver keeps the ImageManifests.
type Resolver struct {
	options Options
	dependencies
	credentials *credentials
	notifier    *notifier
	usage       *usage
	nodes       *nodes
	store       *store
	attempts    *attempts
	backlog     *backlog
	queues      *queues
	metrics     *metrics
	// synced report, for each watch, whether all objects that existed at the start
	// have been seen.
	synced []cache.InformerSynced
	// leading is set once Start knows what the objects say.
	leading atomic.Bool
}

// dependencies are what the resolver takes from the manager.
type dependencies struct {
	clock clock.PassiveClock
	log   logr.Logger
	// client writes ImageManifests.
	client client.Client
	// cache reads them.
	cache client.Reader
	// secrets reads secrets and service accounts; nil if pull secrets are not used.
	secrets client.Reader
	events  events.EventRecorder
}

func newResolver(options Options, d dependencies) *Resolver {
	var inUse *policy.Policy
	if options.InUse {
		inUse = options.Policy
	}
	r := &Resolver{
		options: options, dependencies: d,
		credentials: newCredentials(options.Keychain, d.secrets),
		notifier:    &notifier{d.events},
		usage:       newUsage(options.Registry.References, d.clock, options.KeepUnused),
		nodes:       newNodes(inUse),
		store:       newStore(d.client, d.clock),
		backlog:     newBacklog(),
	}
	r.attempts = newAttempts(d.clock, r.store.failure)
	r.queues = newQueues(options.Workers, r.denied, r.work)
	r.metrics = newMetrics(r.usage, r.store, options.Registerer)
	return r
}

// Add adds the resolver to a manager whose cache has CacheOptions.
func Add(ctx context.Context, mgr manager.Manager, options Options) (*Resolver, error) {
	d := dependencies{
		clock: clock.RealClock{}, log: mgr.GetLogger().WithName("resolver"),
		client: mgr.GetClient(), cache: mgr.GetCache(), events: mgr.GetEventRecorder("layer-resolver"),
	}
	if options.PullSecrets {
		d.secrets = mgr.GetAPIReader()
	}
	r := newResolver(options, d)

	watch := func(object client.Object, handler cache.ResourceEventHandler) error {
		informer, err := mgr.GetCache().GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		r.synced = append(r.synced, registration.HasSynced)
		return nil
	}
	for i := range kinds {
		if err := watch(kinds[i].object, r.workloadHandler(&kinds[i])); err != nil {
			return nil, err
		}
	}
	if err := watch(&corev1.Node{}, r.nodeHandler()); err != nil {
		return nil, err
	}
	if err := watch(&v1alpha1.ImageManifest{}, r.manifestHandler()); err != nil {
		return nil, err
	}
	return r, mgr.Add(r)
}

// NeedLeaderElection returns true: only the leader asks and writes.
func (r *Resolver) NeedLeaderElection() bool { return true }

// HasSynced reports whether all objects that were in the cluster at the start
// have been seen.
func (r *Resolver) HasSynced() bool {
	return !slices.ContainsFunc(r.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// Start asks and writes until the context is done. The manager calls it when this
// process leads.
func (r *Resolver) Start(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), r.HasSynced) {
		return ctx.Err()
	}
	err := r.store.load(func() ([]v1alpha1.ImageManifest, error) {
		var objects v1alpha1.ImageManifestList
		err := r.cache.List(ctx, &objects)
		return objects.Items, err
	})
	if err != nil {
		return fmt.Errorf("reading ImageManifests: %w", err)
	}
	r.nodesChanged() // before anything is asked
	r.leading.Store(true)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.queues.run(ctx, r.store.limited())
	}()
	<-r.queues.started
	images := r.usage.all()
	resolved, unresolved := r.store.count()
	r.log.Info("Leading", "images", len(images), "resolved", resolved, "unresolved", unresolved, "platforms", r.nodes.clusterPlatforms())
	for _, image := range images {
		r.ask(image)
	}
	r.collect(ctx)
	<-ended
	return nil
}

// forget drops what is remembered about images between two attempts.
func (r *Resolver) forget(keys ...string) {
	r.attempts.forget(keys...)
	r.backlog.forget(keys...)
}

// askAgain asks at once for references that the store lost.
func (r *Resolver) askAgain(lost []string) {
	for _, image := range r.usage.meaning(lost) {
		r.forget(image.key)
		r.queues.add(image, 0, resolving)
	}
}

// saved asks again for what the store lost while it wrote, and returns the error
// of the write.
func (r *Resolver) saved(lost []string, err error) error {
	r.askAgain(lost)
	return err
}

// denied reports whether none of an image's references may be asked for.
func (r *Resolver) denied(image image) bool {
	return !slices.ContainsFunc(image.references, func(reference string) bool { return r.options.Registry.Denied(reference) == nil })
}
