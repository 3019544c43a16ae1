package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// Registry answers what images consist of. *registry.Client is one.
type Registry interface {
	References(image string) ([]string, error)
	// Denied tells why a reference may not be asked for, by the names of its
	// registry and mirrors; nil if it may.
	Denied(reference string) error
	Resolve(ctx context.Context, reference string, platforms []string, keychains []authn.Keychain) (*registry.Resolution, error)
	Digest(ctx context.Context, reference string, keychains []authn.Keychain) (string, error)
}

// Options are what Add needs to know.
type Options struct {
	Registry Registry
	// Policy is told the registries in use if InUse is set.
	Policy *policy.Policy
	InUse  bool
	// Keychain holds credentials for all workloads; nil for none.
	Keychain authn.Keychain
	// PullSecrets lets the controller read the pull secrets of workloads.
	PullSecrets bool
	// TagTTL is after how long a tag is confirmed.
	TagTTL time.Duration
	// KeepUnused is how long references stay known that nothing uses.
	KeepUnused time.Duration
	// Workers for each registry.
	Workers int
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Resolver keeps the ImageManifests.
type Resolver struct {
	options     Options
	clock       clock.PassiveClock
	log         logr.Logger
	cache       client.Reader
	events      events.EventRecorder
	usage       *usage
	store       *store
	lanes       *lanes
	credentials *credentials
	metrics     *metrics
	synced      []cache.InformerSynced
	leading     atomic.Bool

	mu sync.Mutex
	// nodes has what each node is and where its images come from.
	nodes map[string]*nodeFacts
	// platforms and registries of all nodes, sorted.
	platforms, registries []string
	// nodesKnown: the nodes have been looked at as a whole.
	nodesKnown bool
	// waiting has what is remembered between two attempts at an image. What has to
	// survive a restart is in the objects.
	waiting map[string]*attempt
	// notWritten counts failures of the API server in a row, and learned has what
	// could therefore not be written yet, by key of the image.
	notWritten int
	learned    map[string]*learned
}

// learned is an answer that is to be written.
type learned struct {
	reference string
	found     *registry.Resolution
	platforms []string
}

// maxLearned bounds the answers that wait for the API server; more are asked for
// again.
const maxLearned = 1000

type nodeFacts struct {
	platform   string
	registries []string
}

// attempt is how asking for an image went.
type attempt struct {
	failures int
	retry    time.Time
	// reason and message of the last failure, empty if there was none.
	reason, message string
	// forgiven counts how often the circumstances changed: what was refused before
	// says nothing of what comes after.
	forgiven int
}

// Add adds the resolver to a manager whose cache has CacheOptions.
func Add(ctx context.Context, mgr manager.Manager, options Options) (*Resolver, error) {
	r := &Resolver{
		options: options, clock: clock.RealClock{}, log: mgr.GetLogger().WithName("resolver"),
		cache: mgr.GetCache(), events: mgr.GetEventRecorder("layer-resolver"),
		nodes: map[string]*nodeFacts{}, waiting: map[string]*attempt{}, learned: map[string]*learned{},
	}
	var secrets client.Reader
	if options.PullSecrets {
		secrets = mgr.GetAPIReader()
	}
	r.credentials = newCredentials(options.Keychain, secrets)
	r.usage = newUsage(options.Registry.References, r.clock)
	r.usage.keep = options.KeepUnused
	r.store = newStore(mgr.GetClient(), r.clock)
	r.store.lost = r.lost
	r.lanes = newLanes(options.Workers, r.work)
	r.lanes.denied = r.denied
	r.metrics = newMetrics(r, options.Registerer)

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

// NeedLeaderElection says that only the leader asks and writes.
func (r *Resolver) NeedLeaderElection() bool { return true }

// HasSynced tells whether the first look at the cluster is complete.
func (r *Resolver) HasSynced() bool {
	return !slices.ContainsFunc(r.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// Start works until the context is done.
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
	r.lanes.resume = r.store.limited()
	r.nodesChanged() // before anything is asked
	r.leading.Store(true)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.lanes.run(ctx)
	}()
	<-r.lanes.started
	images := r.usage.all()
	resolved, unresolved := r.store.count()
	r.log.Info("Leading", "images", len(images), "resolved", resolved, "unresolved", unresolved, "platforms", r.clusterPlatforms())
	for _, image := range images {
		r.ask(image)
	}
	r.collect(ctx)
	<-ended
	return nil
}

func (r *Resolver) workloadHandler(k *kind) cache.ResourceEventHandler {
	set := func(object any) {
		c, ok := k.claimOf(object)
		if !ok {
			if o, isObject := object.(metav1.Object); isObject {
				r.forget(r.usage.unset(k.identity(o)))
			}
			return
		}
		news := r.usage.set(c)
		r.forget(news.gone)
		if r.leading.Load() { // before, all is looked at when that begins
			r.welcome(c, news)
		}
	}
	unset := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if o, ok := object.(metav1.Object); ok {
			r.forget(r.usage.unset(k.identity(o)))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: set,
		UpdateFunc: func(before, object any) {
			set(object)
			if replaced(before, object) {
				unset(before)
			}
		},
		DeleteFunc: unset,
	}
}

// replaced tells whether an object was deleted and another made under its name:
// an informer that did not see it happen takes that for an update.
func replaced(before, after any) bool {
	a, ok := before.(metav1.Object)
	b, also := after.(metav1.Object)
	return ok && also && a.GetUID() != b.GetUID()
}

// welcome asks for what is new with a workload, and tells it what is known to
// fail. Pods that another object made are not told: it is.
func (r *Resolver) welcome(c claim, news change) {
	for _, image := range news.fresh {
		// Its pull secrets may open what was closed.
		if r.credentials.reader != nil && slices.Contains(r.usage.pulls(image.key, maxPulls), c.pull) {
			r.forgive(image.key, v1alpha1.ReasonUnauthorized, v1alpha1.ReasonNotFound)
		}
		r.lanes.add(image, 0, resolving)
	}
	if c.controlled {
		return
	}
	for _, image := range append(news.fresh, news.joined...) {
		if failure := r.lastFailure(image); failure.reason != "" {
			r.tell(image, failure, c.workload)
		}
	}
	for _, b := range news.bad {
		r.event(c.workload, nil, "%.200q is no image name (%s): %.300s", b.image, v1alpha1.ReasonInvalidReference, b.err)
	}
}

// forget drops what is remembered of images that nothing uses any more.
func (r *Resolver) forget(keys []string) {
	if len(keys) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		delete(r.waiting, key)
		delete(r.learned, key)
	}
}

// lost has images asked for again whose object has gone.
func (r *Resolver) lost(references []string) {
	for _, image := range r.usage.meaning(references) {
		r.forget([]string{image.key})
		r.lanes.add(image, 0, resolving)
	}
}

// denied tells whether none of an image's references may be asked for.
func (r *Resolver) denied(image image) bool {
	return !slices.ContainsFunc(image.references, func(reference string) bool { return r.options.Registry.Denied(reference) == nil })
}

func (r *Resolver) nodeHandler() cache.ResourceEventHandler {
	set := func(object any) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return
		}
		facts := &nodeFacts{platform: platformOf(node), registries: registriesOf(node)}
		r.mu.Lock()
		old := r.nodes[node.Name]
		r.nodes[node.Name] = facts
		r.mu.Unlock()
		if old == nil || old.platform != facts.platform || !slices.Equal(old.registries, facts.registries) {
			r.nodesChanged()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, object any) { set(object) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if node, ok := object.(*corev1.Node); ok {
				r.mu.Lock()
				delete(r.nodes, node.Name)
				r.mu.Unlock()
				r.nodesChanged()
			}
		},
	}
}

// nodesChanged draws the conclusions: what was denied or not built for any node
// may be possible now, and what was resolved may lack a platform.
func (r *Resolver) nodesChanged() {
	if !r.HasSynced() {
		return // and again when all nodes are there
	}
	platforms, registries := map[string]bool{}, map[string]bool{}
	r.mu.Lock()
	for _, node := range r.nodes {
		if node.platform != "" {
			platforms[node.platform] = true
		}
		for _, host := range node.registries {
			registries[host] = true
		}
	}
	oldPlatforms, oldRegistries := r.platforms, r.registries
	r.platforms, r.registries = slices.Sorted(maps.Keys(platforms)), slices.Sorted(maps.Keys(registries))
	r.platforms = r.platforms[:min(len(r.platforms), v1alpha1.MaxPlatforms)]
	morePlatforms := anyNew(r.platforms, oldPlatforms)
	moreRegistries := r.options.InUse && anyNew(r.registries, oldRegistries)
	first := !r.nodesKnown
	r.nodesKnown = true
	if r.options.InUse {
		r.options.Policy.SetInUse(r.registries)
	}
	r.mu.Unlock()

	if first || !morePlatforms && !moreRegistries {
		return // the first time, nothing has changed: the cluster had nodes before
	}
	for _, image := range r.usage.all() {
		var reasons []string
		if moreRegistries && slices.ContainsFunc(image.references, func(r string) bool { return registries[imageOf(r).registry()] }) {
			reasons = append(reasons, v1alpha1.ReasonDenied)
		}
		if morePlatforms {
			reasons = append(reasons, v1alpha1.ReasonPlatformNotFound)
		}
		if r.forgive(image.key, reasons...) || morePlatforms {
			r.ask(image)
		}
	}
}

// anyNew tells whether something is in now that was not in before.
func anyNew(now, before []string) bool {
	return slices.ContainsFunc(now, func(s string) bool { return !slices.Contains(before, s) })
}

func (r *Resolver) manifestHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			manifest, ok := object.(*v1alpha1.ImageManifest)
			if ok {
				r.store.deleted(manifest.Name, manifest.UID)
			}
		},
	}
}

// forgive lets an image be asked for at once that was refused for one of these
// reasons, and told again if it is refused again.
func (r *Resolver) forgive(key string, reasons ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attemptAt(key)
	a.forgiven++
	if !slices.Contains(reasons, a.reason) {
		return false
	}
	a.retry, a.reason, a.message = time.Time{}, "", ""
	return true
}

// attemptAt returns how asking for an image went so far, in this process or in
// the one before it. The caller holds the mutex.
func (r *Resolver) attemptAt(key string) *attempt {
	a := r.waiting[key]
	if a == nil {
		a = &attempt{}
		for _, reference := range imageOf(key).references {
			if *a = r.store.failure(reference); a.reason != "" {
				break
			}
		}
		r.waiting[key] = a
	}
	return a
}

func (r *Resolver) clusterPlatforms() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.platforms
}

// ask has an image looked at now, before those of which something is known if
// nothing is known of it.
func (r *Resolver) ask(image image) {
	priority := resolving
	if _, _, known, _ := r.due(image); known != nil {
		priority = confirming
	}
	r.lanes.add(image, 0, priority)
}

// task is what has to be done about an image.
type task int

const (
	nothing task = iota
	// adopt: the content is known under another name.
	adopt
	confirm
	resolve
)

// due tells what has to be done about an image now, about which of its
// references, or after how long something will have to be; never if after is
// negative.
func (r *Resolver) due(image image) (what task, reference string, known *answer, after time.Duration) {
	now := r.clock.Now()
	r.mu.Lock()
	retry := r.attemptAt(image.key).retry
	r.mu.Unlock()
	wait := retry.Sub(now)
	for _, reference := range image.references {
		known := r.store.lookup(reference)
		if known == nil {
			continue
		}
		if !known.covers(r.clusterPlatforms()) {
			if wait > 0 {
				return nothing, reference, known, wait
			}
			return resolve, reference, known, 0
		}
		if digestOf(reference) != "" {
			if len(r.store.holders(reference)) == 0 {
				return adopt, reference, known, 0
			}
			return nothing, reference, known, -1
		}
		// Not longer, if somebody's clock is ahead.
		wait = max(wait, min(known.confirmed.Add(r.options.TagTTL).Sub(now), r.options.TagTTL))
		if wait > 0 {
			return nothing, reference, known, wait
		}
		return confirm, reference, known, 0
	}
	if wait > 0 {
		return nothing, "", nil, wait
	}
	return resolve, "", nil, 0
}

// work does what is due about an image, and has it looked at again when
// something will be.
func (r *Resolver) work(ctx context.Context, lane *lane, key string) {
	image := imageOf(key)
	if !r.usage.inUse(key) {
		return
	}
	defer func() {
		if !r.usage.inUse(key) { // any more
			r.forget([]string{key})
		}
	}()
	log := r.log.WithValues("image", key)
	var err error
	switch what, reference, known, after := r.due(image); what {
	case nothing:
		if after >= 0 {
			r.lanes.add(image, after, confirming)
		}
		return
	case adopt:
		err = r.store.adopt(ctx, reference)
	case confirm:
		err = r.confirm(ctx, log, lane, image, reference, known)
	case resolve:
		err = r.resolve(ctx, log, lane, image, reference)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil { // of the API server
		log.Error(err, "Writing what is known about an image")
		r.metrics.writeErrors.Inc()
		// Not more to write for a while, from this registry.
		pause := r.writeFailed()
		lane.leaveAlone(pause)
		r.lanes.add(image, pause, resolving)
		return
	}
	r.written()
	_, _, _, after := r.due(image)
	if after >= 0 {
		r.lanes.add(image, after, confirming)
	}
}

// writeFailed returns how long to leave the API server alone.
func (r *Resolver) writeFailed() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notWritten++
	return backoff(r.notWritten, time.Second, maxError)
}

func (r *Resolver) written() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notWritten = 0
}

// confirm asks whether a tag still points where it did.
func (r *Resolver) confirm(ctx context.Context, log logr.Logger, lane *lane, image image, reference string, known *answer) error {
	before := r.lastFailure(image)
	keychains, problems := r.credentials.keychains(ctx, r.usage.pulls(image.key, maxPulls))
	digest, err := r.options.Registry.Digest(ctx, reference, keychains)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		failure := r.failed(lane, image, before, []refusal{{reference, err}}, problems)
		r.metrics.lookups.WithLabelValues("confirm", failure.reason).Inc()
		log.V(1).Info("Tag not confirmed", "reference", reference, "reason", failure.reason, "message", failure.message, "retry", failure.retry)
		return r.store.notConfirmed(ctx, reference, failure)
	}
	lane.succeeded()
	r.metrics.lookups.WithLabelValues("confirm", v1alpha1.ReasonResolved).Inc()
	if digest == known.digest {
		err := r.store.confirmed(ctx, reference, digest)
		if err == nil {
			r.succeeded(image)
		}
		return err
	}
	log.Info("Tag moved", "reference", reference, "from", known.digest, "to", digest)
	return r.resolve(ctx, log, lane, image, reference)
}

// resolve asks what an image consists of: under the reference that is known, or
// under all it may mean, until one is found, as a container runtime does.
func (r *Resolver) resolve(ctx context.Context, log logr.Logger, lane *lane, image image, reference string) error {
	references := image.references
	if reference != "" {
		references = []string{reference}
	}
	platforms := r.clusterPlatforms()
	if l := r.unwritten(image); l != nil && slices.Equal(l.platforms, platforms) {
		return r.write(ctx, image, l)
	}
	before := r.lastFailure(image)
	keychains, problems := r.credentials.keychains(ctx, r.usage.pulls(image.key, maxPulls))
	var errs []refusal
	for _, candidate := range references {
		found, err := r.options.Registry.Resolve(ctx, candidate, platforms, keychains)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			errs = append(errs, refusal{candidate, err})
			continue
		}
		lane.succeeded()
		r.metrics.lookups.WithLabelValues("resolve", v1alpha1.ReasonResolved).Inc()
		log.V(1).Info("Resolved", "reference", candidate, "digest", found.Digest, "manifests", len(found.Manifests))
		return r.write(ctx, image, &learned{reference: candidate, found: found, platforms: platforms})
	}

	failure := r.failed(lane, image, before, errs, problems)
	r.metrics.lookups.WithLabelValues("resolve", failure.reason).Inc()
	if reference != "" { // other content, or other platforms: what is known stays
		log.V(1).Info("Not resolved again", "reference", reference, "reason", failure.reason, "message", failure.message, "retry", failure.retry)
		return r.store.notConfirmed(ctx, reference, failure)
	}
	if before.reason != failure.reason {
		log.Info("Not resolved", "reason", failure.reason, "message", failure.message, "retry", failure.retry)
		r.tell(image, failure, r.usage.workloads(image.key, maxEvents)...)
	}
	return r.store.notResolved(ctx, image.references[0], failure)
}

// unwritten returns what was learned of an image and could not be written.
func (r *Resolver) unwritten(image image) *learned {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.learned[image.key]
}

// write writes what was learned of an image, and remembers it if that fails: the
// registry has answered once.
func (r *Resolver) write(ctx context.Context, image image, l *learned) error {
	err := r.store.resolved(ctx, l.reference, l.found, l.platforms)
	if first := image.references[0]; err == nil && first != l.reference { // which has failed before
		err = r.store.removeUnresolved(ctx, first)
	}
	if err == nil {
		r.succeeded(image)
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.learned) < maxLearned {
		r.learned[image.key] = l
	}
	return err
}

func (r *Resolver) succeeded(image image) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, image.key)
	delete(r.learned, image.key)
}

func (r *Resolver) lastFailure(image image) attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.attemptAt(image.key)
}

// How long a refusal is believed, and an error; longer with every one in a row.
const (
	minRefusal, maxRefusal = time.Minute, 10 * time.Minute
	minError, maxError     = 10 * time.Second, 5 * time.Minute
)

// maxMessage bounds messages in conditions and events (bytes).
const maxMessage = 1000

// refusal is what a reference was answered.
type refusal struct {
	reference string
	err       error
}

// failed draws the conclusions of an attempt at references of an image. before is
// what was remembered when it began.
func (r *Resolver) failed(lane *lane, image image, before attempt, refusals []refusal, problems []string) attempt {
	f := attempt{}
	var messages []string
	var wait time.Duration // that the registries ask for
	for _, refusal := range refusals {
		messages = append(messages, refusal.err.Error())
		e := &registry.Error{Reason: v1alpha1.ReasonUnavailable}
		errors.As(refusal.err, &e)
		wait = max(wait, e.RetryAfter)
		// One that may pass goes before a final one: the image may be there.
		if f.reason == "" || temporary(e.Reason) && !temporary(f.reason) {
			f.reason = e.Reason
		}
		switch {
		case imageOf(refusal.reference).registry() != image.registry(): // not of this lane
		case temporary(e.Reason):
			wait = max(wait, lane.failed(e.RetryAfter))
		case e.Reason != v1alpha1.ReasonDenied:
			lane.succeeded() // it answers
		}
	}
	if f.reason == v1alpha1.ReasonUnauthorized {
		messages = append(messages, problems...)
		if r.credentials.reader == nil {
			messages = append(messages, "pull secrets of workloads are not read (--pull-secrets)")
		}
	}
	f.message = strings.Join(messages, "; ")
	if len(f.message) > maxMessage {
		f.message = strings.ToValidUTF8(f.message[:maxMessage], "")
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attemptAt(image.key)
	if temporary(f.reason) {
		wait = max(wait, backoff(a.failures, minError, maxError))
	} else {
		wait = backoff(a.failures, minRefusal, maxRefusal)
	}
	if a.forgiven != before.forgiven && !temporary(f.reason) {
		wait = 0 // there is another secret now, or another platform
	}
	a.failures++
	a.retry, a.reason, a.message = r.clock.Now().Add(wait), f.reason, f.message
	return *a
}

func temporary(reason string) bool {
	return reason == v1alpha1.ReasonRateLimited || reason == v1alpha1.ReasonUnavailable
}

// maxEvents bounds the workloads that are told about one image.
const maxEvents = 5

func (r *Resolver) tell(image image, f attempt, workloads ...corev1.ObjectReference) {
	// Events about the same two objects count as one, so the second is the image.
	about := &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifest", Name: v1alpha1.UnresolvedName(image.references[0]),
	}
	for _, workload := range workloads {
		r.event(workload, about, "Layers of %s are not known to the scheduler (%s): %s", image.references[0], f.reason, f.message)
	}
}

// maxNote is what the API server takes of the text of an event (bytes).
const maxNote = 1024

func (r *Resolver) event(workload corev1.ObjectReference, related *corev1.ObjectReference, format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	var second runtime.Object
	if related != nil {
		second = related
	}
	r.events.Eventf(&workload, second, corev1.EventTypeWarning, "ImageNotResolved", "Resolve", "%s", note)
}

// collect removes what nothing has used for long, until the context is done.
func (r *Resolver) collect(ctx context.Context) {
	ticker := time.NewTicker(min(max(r.options.KeepUnused/10, time.Second), 10*time.Minute))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, reference := range r.store.references() {
			if ctx.Err() != nil || !r.usage.unusedFor(reference, r.options.KeepUnused) {
				continue
			}
			if err := r.store.removeReference(ctx, reference); err != nil && ctx.Err() == nil {
				r.log.Error(err, "Removing an unused reference", "reference", reference)
			}
			r.lost([]string{reference}) // if it came into use meanwhile
		}
	}
}
