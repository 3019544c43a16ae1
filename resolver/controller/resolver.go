package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/pullsecrets"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

// Registry looks up images. *registry.Client implements it.
type Registry interface {
	lookup.Registry
	// References returns the references that an image in a pod may mean, in the
	// order in which a container runtime tries them.
	References(image string) ([]string, error)
}

// Options are those of Add.
type Options struct {
	Registry Registry
	// Policy gets the networks of pods and services, and the registries in use if InUse is
	// set.
	Policy *policy.Policy
	InUse  bool
	// Keychains hold credentials for all workloads, in the order to try them.
	Keychains []authn.Keychain
	// Mirrors gets the mirrors of registries that the cluster states (OpenShift); nil if
	// they do not matter.
	Mirrors MirrorSetter
	// Templates are pod templates in other kinds than Kubernetes' own.
	Templates []workloads.Template
	// PullSecrets lets the controller read the pull secrets of workloads.
	PullSecrets bool
	// ImagesOnNodes makes the controller ask for images that nodes hold and no workload
	// names, after all others.
	ImagesOnNodes bool
	// PublishPrivate writes what only pull secrets open into ImageManifests, too.
	PublishPrivate bool
	// TagTTL is how old the answer for a tag may be before it is confirmed.
	TagTTL time.Duration
	// KeepUnused is how long an unused reference stays known.
	KeepUnused time.Duration
	// Workers for each registry.
	Workers int
	// MaxImages and MaxImagesPerNamespace bound the images that are known; 0: the defaults.
	MaxImages, MaxImagesPerNamespace int
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Resolver keeps the ImageManifests.
type Resolver struct {
	options Options
	dependencies
	asker      *lookup.Asker
	notifier   *notifier
	usage      *usage.Usage
	nodes      *nodes
	nodeImages *usage.NodeImages
	store      *store.Store
	attempts   *attempts
	backlog    *backlog
	queues     *queue.Queues
	quotas     quotas
	metrics    *metrics
	mirrors    *mirrorSets
	// drifts are objects that are not as the store left them; nil until Start.
	drifts workqueue.TypedRateLimitingInterface[drift]
	// synced report, for each watch, whether all objects that existed at the start
	// have been seen.
	synced []cache.InformerSynced
	// leading is set once Start has read the objects.
	leading atomic.Bool
}

// quotas bound the references that have objects: those in use whose content is known, those that were
// never resolved, and those whose content is known and that nothing uses.
type quotas struct{ resolved, unresolved, unused *usage.Quota }

// drift is an object in a version that the store has not written.
type drift struct{ name, version string }

// dependencies are what the resolver takes from the manager.
type dependencies struct {
	clock clock.PassiveClock
	log   logr.Logger
	// client writes ImageManifests.
	client client.Client
	// live reads them, without a cache; nil: client does.
	live client.Reader
	// secrets reads secrets and service accounts; nil if pull secrets are not used.
	secrets client.Reader
	events  events.EventRecorder
}

// Defaults of Options.
const (
	DefaultMaxImages             = 50_000
	DefaultMaxImagesPerNamespace = 10_000
)

func newResolver(options Options, d dependencies) *Resolver {
	images := usage.Limits{
		All:  cmp.Or(options.MaxImages, DefaultMaxImages),
		Each: cmp.Or(options.MaxImagesPerNamespace, DefaultMaxImagesPerNamespace),
	}
	if d.live == nil {
		d.live = d.client
	}
	r := &Resolver{
		options: options, dependencies: d,
		usage:      usage.New(options.Registry.References, d.clock, options.KeepUnused, images),
		nodes:      newNodes(options.Policy, options.InUse),
		nodeImages: usage.NewNodeImages(),
		backlog:    newBacklog(),
		quotas:     quotas{usage.NewQuota(images), usage.NewQuota(usage.MaxUnresolved), usage.NewQuota(usage.MaxUnused)},
	}
	r.store = store.New(d.client, d.live, d.clock, r.askAgain)
	r.asker = &lookup.Asker{
		Registry: options.Registry, Credentials: pullsecrets.New(options.Keychains, d.secrets), Usage: r.usage, Clock: d.clock, Log: d.log,
		PublishPrivate: options.PublishPrivate, OpenedFor: options.TagTTL, Changed: r.secretsChanged,
	}
	r.attempts = newAttempts(d.clock, r.store.Failure)
	r.queues = queue.New(options.Workers, r.asker.Denied, countRequests(r.work))
	r.metrics = newMetrics(r.usage, r.store, func() int { return r.queues.Len() }, options.Registerer)
	r.notifier = newNotifier(d.events, r.metrics.suppressed.Inc)
	return r
}

// Add adds the resolver to a manager whose cache has workloads.CacheOptions.
func Add(ctx context.Context, mgr manager.Manager, options Options) (*Resolver, error) {
	d := dependencies{
		clock: clock.RealClock{}, log: mgr.GetLogger().WithName("resolver"),
		client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("layer-resolver"),
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
	if err := r.watchServices(mgr, watch); err != nil {
		return nil, err
	}
	if err := r.watchMirrors(ctx, mgr, watch); err != nil {
		return nil, err
	}
	for _, k := range workloads.Kinds(options.Templates) {
		if err := watch(k.Object, r.workloadHandler(&k)); err != nil {
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

// watchServices learns the networks of services where the API server has objects for them
// (Kubernetes 1.33 and later).
func (r *Resolver) watchServices(mgr manager.Manager, watch func(client.Object, cache.ResourceEventHandler) error) error {
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	_, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		r.log.Info("The API server has no ServiceCIDRs: name the networks of services with --deny-network")
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for ServiceCIDRs: %w", err)
	}
	return watch(&networkingv1.ServiceCIDR{}, r.serviceHandler())
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
	if err := r.store.Load(ctx); err != nil {
		return fmt.Errorf("reading ImageManifests: %w", err)
	}
	r.attempts.reset() // what it noted before it knew the objects
	r.rememberUnused()
	r.nodesChanged() // before anything is asked
	r.drifts = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[drift]())
	r.leading.Store(true)

	var running sync.WaitGroup
	running.Go(func() { r.queues.Run(ctx, r.store.Limited()) })
	running.Go(func() { r.repair(ctx) })
	<-r.queues.Started()
	r.nodeImages.Reset() // of what was handed over before there were queues
	images := r.usage.All()
	resolved, unresolved := r.store.Count()
	r.log.Info("Leading", "images", len(images), "resolved", resolved, "unresolved", unresolved, "platforms", r.nodes.clusterPlatforms())
	for _, image := range images {
		r.ask(image)
	}
	r.collect(ctx)
	r.drifts.ShutDown()
	running.Wait()
	return nil
}

// rememberUnused takes over since when references are unused, as the process before noted.
// Of those that it did not note, that begins now.
func (r *Resolver) rememberUnused() {
	for _, known := range r.store.All() {
		r.usage.Remember(known.Reference, known.Unused, nil)
	}
}

// repair puts objects right that somebody else has changed, until drifts is shut down.
func (r *Resolver) repair(ctx context.Context) {
	for {
		next, ended := r.drifts.Get()
		if ended {
			return
		}
		var err error
		if ctx.Err() == nil && r.store.Drifted(next.name, next.version) {
			err = r.repairOne(ctx, next)
		}
		if err == nil || ctx.Err() != nil {
			r.drifts.Forget(next)
		} else {
			r.log.Error(err, "Cannot repair an ImageManifest", "name", next.name)
			r.drifts.AddRateLimited(next)
		}
		r.drifts.Done(next)
	}
}

func (r *Resolver) repairOne(ctx context.Context, changed drift) error {
	repaired, err := r.store.Repair(ctx, changed.name, changed.version)
	if repaired && err == nil {
		r.metrics.repaired.Inc()
		r.log.Info("Somebody else changed an ImageManifest", "name", changed.name)
	}
	return err
}
