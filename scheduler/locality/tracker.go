package locality

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// Tracker follows which layers nodes have and which layers placed pods bring to
// them. The pods may have been placed by this scheduler, the one before it, or
// another one.
type Tracker struct {
	index *index.Index
	clock clock.PassiveClock
	nodes cache.SharedIndexInformer // nil in a snapshot
	pods  cache.SharedIndexInformer
	// nodeStore and podIndex are those of the informers.
	nodeStore cache.Store
	podIndex  cache.Indexer
	sources   []ManifestSource
	// followed are those of the sources that resolve the images of nodes.
	followed []FollowedSource
	layers   []NodeSource

	// Locks are taken in this order: that of a NodeSource, follows, reports, unlisted.mu, and then one of
	// mu, nodeReports.mu, changed.mu, that of the index and that of a ManifestSource. No other is taken while one
	// of the latter is held.

	// follows is held while what a pod brings is decided and written.
	follows sync.Mutex

	// mu guards the profiles.
	mu       sync.RWMutex
	profiles map[string]*Profile
	// first is the profile whose arguments apply to pods of other schedulers.
	first *Profile

	// reports is held while the report of a node is read, resolved and written.
	reports     sync.Mutex
	nodeReports nodeReports
	unlisted    unlisted
	changed     changedImages

	syncers []Syncer
	synced  atomic.Bool
}

// Config is what a Tracker needs of its host.
type Config struct {
	// Informers of all Nodes, and of all Pods that are not finished. They must not
	// have been started, because the Tracker sets a transform that saves memory.
	Nodes coreinformers.NodeInformer
	Pods  coreinformers.PodInformer
	// Images are sources of the layers of images. The first source that has an
	// image answers; what nodes report comes last.
	Images []ManifestSource
	// Layers are sources of where layers are, besides NodeStatus. They are not started
	// without the argument nodeLayers.
	Layers []NodeSource
	// Clock is used for the timeouts of arrivals and reports; nil means the real
	// one.
	Clock clock.PassiveClock
}

// NewTracker returns a Tracker. It follows nothing before Start.
func NewTracker(config Config) *Tracker {
	t := newTracker(config)
	t.nodes, t.pods = config.Nodes.Informer(), config.Pods.Informer()
	t.nodeStore, t.podIndex = t.nodes.GetStore(), t.pods.GetIndexer()
	return t
}

// newTracker returns a Tracker without informers.
func newTracker(config Config) *Tracker {
	t := &Tracker{
		index: index.New(), clock: config.Clock,
		sources: config.Images, layers: config.Layers, profiles: map[string]*Profile{},
		nodeReports: nodeReports{byName: map[string]*keptReport{}, indexed: map[string]types.UID{}}, unlisted: unlisted{nodes: map[string]*unlistedImages{}},
	}
	if t.clock == nil {
		t.clock = clock.RealClock{}
	}
	for _, source := range config.Images {
		if followed, ok := source.(FollowedSource); ok {
			t.followed = append(t.followed, followed)
		}
	}
	return t
}

// NewProfile adds a profile. The arguments must be valid and must not change
// afterwards. Those of the first profile also apply to the pods of other schedulers.
func (t *Tracker) NewProfile(name string, args *config.LayerLocalityArgs) *Profile {
	p := newProfile(t, name, args)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.profiles[name] = p
	if t.first == nil {
		t.first = p
	}
	return p
}

// profileOf returns the profile that a pod belongs to, or the first one.
func (t *Tracker) profileOf(pod *v1.Pod) *Profile {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if p := t.profiles[pod.Spec.SchedulerName]; p != nil {
		return p
	}
	return t.first
}

// Stats returns the size of the index.
func (t *Tracker) Stats() index.Stats { return t.index.Stats() }

// Follows reports whether the Tracker uses this informer of Nodes. Since 1.37, factories wrap one informer anew for each
// who asks.
func (t *Tracker) Follows(nodes cache.SharedIndexInformer) bool {
	return t.nodes.GetIndexer() == nodes.GetIndexer()
}

// nodeStatusSource is the name of NodeStatus as a source in the index.
const nodeStatusSource = "NodeStatus"

// Start begins to follow nodes, pods and sources, until the context is done. Add a
// profile before, and start the informers afterwards.
func (t *Tracker) Start(ctx context.Context) error {
	if t.first == nil {
		return errors.New("no profile: the images of pods cannot be read")
	}
	if err := t.nodes.SetTransform(nodestatus.Transform(t.nodes.GetStore())); err != nil {
		return fmt.Errorf("transform of the node informer: %w", err)
	}
	if err := t.pods.AddIndexers(cache.Indexers{byNode: nodeOf}); err != nil {
		return fmt.Errorf("index of the pod informer: %w", err)
	}
	nodes, err := t.nodes.AddEventHandler(t.nodeHandler(klog.FromContext(ctx)))
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	pods, err := t.pods.AddEventHandler(t.podHandler(ctx, nodes))
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	t.syncers = []Syncer{nodes, pods}
	if !t.first.Args.NodeLayers {
		t.layers = nil
	}
	for _, source := range t.layers {
		syncer, err := source.Start(ctx, nodeSink{t.index, t})
		if err != nil {
			return fmt.Errorf("source of layers %s: %w", source.Name(), err)
		}
		t.syncers = append(t.syncers, syncer)
	}
	for _, source := range t.followed {
		source.Start(ctx, t.resolveAgain)
		t.syncers = append(t.syncers, source)
	}
	return nil
}

// manifests returns the layers of an image from sources; nil if no source has
// them.
func (t *Tracker) manifests(names []imageref.Canonical) []index.Manifest {
	for _, source := range t.sources {
		for _, name := range names {
			if manifests := source.Manifests(name); manifests != nil {
				return manifests
			}
		}
	}
	return nil
}

// awaits reports whether nothing is known about an image and a source may still
// get its layers.
func (t *Tracker) awaits(names []imageref.Canonical) bool {
	return !t.index.Reported(names) && t.manifests(names) == nil &&
		t.anyAwaited(func(s AwaitedSource) bool { return s.Awaits(names) })
}

// anyAwaited reports whether something is true of a source that is worth waiting for.
func (t *Tracker) anyAwaited(f func(AwaitedSource) bool) bool {
	return slices.ContainsFunc(t.sources, func(source ManifestSource) bool {
		awaited, ok := source.(AwaitedSource)
		return ok && f(awaited)
	})
}

func (t *Tracker) nodeHandler(logger klog.Logger) cache.ResourceEventHandler {
	set := func(old, node *v1.Node) {
		t.index.SetNode(node.Name, nodestatus.Platform(node))
		t.nodeReports.enter(node)
		warnOfLabel(logger, old, node)
		t.report(node)
		t.updateUnlisted(old, node)
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, isInInitialList bool) {
			if node, ok := obj.(*v1.Node); ok {
				set(nil, node)
				if !isInInitialList { // the pods of those that are come after all of them
					t.followAll(node.Name)
				}
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			old, ok1 := oldObj.(*v1.Node)
			node, ok2 := newObj.(*v1.Node)
			if ok1 && ok2 && old.UID == node.UID && nodestatus.SameImages(old, node) && sameProperties(old, node) {
				t.forgetUnlisted(node.Name) // a heartbeat
				return
			}
			again := ok1 && ok2 && old.UID != node.UID // deleted and made again between two updates
			if again {
				t.deleteNode(old)
				old = nil
			}
			if ok2 {
				set(old, node)
			}
			if again {
				t.followAll(node.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := lastKnown(obj).(*v1.Node); ok {
				t.deleteNode(node)
			}
		},
	}
}

// lastKnown returns a deleted object as it was last seen: its end may have been missed.
func lastKnown(obj any) any {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return obj
}

// sameProperties reports whether all that is followed of a Node, besides its images, is the
// same in two versions of it.
func sameProperties(a, b *v1.Node) bool {
	return nodestatus.Platform(a) == nodestatus.Platform(b) && pressed(a) == pressed(b) &&
		a.Labels[nodestatus.JoinsDownloadsLabel] == b.Labels[nodestatus.JoinsDownloadsLabel] &&
		a.Status.NodeInfo.ContainerRuntimeVersion == b.Status.NodeInfo.ContainerRuntimeVersion
}

// warnOfLabel logs a label about joining downloads that cannot be read when it is new. old is
// nil for a new Node.
func warnOfLabel(logger klog.Logger, old, node *v1.Node) {
	_, err := nodestatus.JoinsDownloads(node, nil)
	if err != nil && (old == nil || old.Labels[nodestatus.JoinsDownloadsLabel] != node.Labels[nodestatus.JoinsDownloadsLabel]) {
		logger.Error(err, "The label does not state whether the node joins downloads: its runtime or the profile decides", "node", klog.KObj(node))
	}
}

func (t *Tracker) deleteNode(node *v1.Node) {
	t.forgetNode(node)
	t.unlisted.mu.Lock()
	defer t.unlisted.mu.Unlock()
	delete(t.unlisted.nodes, node.Name)
}

// node returns a Node of the informer; nil if there is none of that name.
func (t *Tracker) node(name string) *v1.Node {
	object, _, err := t.nodeStore.GetByKey(name)
	if err != nil {
		return nil
	}
	node, _ := object.(*v1.Node)
	return node
}

// byNode is the index of the pod informer by the node that a pod was placed on.
const byNode = "layerlocality.io/node"

func nodeOf(object any) ([]string, error) {
	if pod, ok := object.(*v1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}, nil
	}
	return nil, nil
}

// podsOn returns the pods that were placed on a node and are not finished.
func (t *Tracker) podsOn(node string) (pods []*v1.Pod) {
	objects, err := t.podIndex.ByIndex(byNode, node)
	if err != nil {
		return nil // the informer was started before the index was added
	}
	for _, object := range objects {
		if pod, ok := object.(*v1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// podHandler follows placed pods, whichever scheduler placed them: until they run,
// their nodes pull. Pods are handled only once the nodes are known, because what a
// pod brings depends on its node.
func (t *Tracker) podHandler(ctx context.Context, nodes cache.ResourceEventHandlerRegistration) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if !nodes.HasSynced() {
				cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced)
			}
			if pod, ok := obj.(*v1.Pod); ok {
				t.follow(pod, false)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			old, ok1 := oldObj.(*v1.Pod)
			pod, ok2 := newObj.(*v1.Pod)
			if ok1 && ok2 && old.UID != pod.UID {
				t.release(old.UID)
			} else if ok1 && ok2 && !t.changed.update(old, pod) &&
				old.Spec.NodeName == pod.Spec.NodeName && standingOf(old, nil).equal(standingOf(pod, nil)) {
				return
			}
			if ok2 {
				t.follow(pod, true)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, ok := lastKnown(obj).(*v1.Pod); ok {
				t.release(pod.UID)
				t.inUse(pod)
			}
		},
	}
}

// prepares is how long a node counts as about to pull for a pod of which the kubelet reports that its sandbox is
// not ready. One that takes longer waits for a volume, a secret or a network.
const prepares = 10 * time.Second

// follow notes what a placed pod brings to its node. changed means that the pod has
// made progress.
func (t *Tracker) follow(pod *v1.Pod, changed bool) {
	if pod.Spec.NodeName == "" {
		return
	}
	t.follows.Lock()
	defer t.follows.Unlock()
	t.followLocked(pod, changed)
}

func (t *Tracker) followLocked(pod *v1.Pod, changed bool) {
	profile := t.profileOf(pod)
	now := t.clock.Now()
	is := standingOf(pod, t.changed.of(pod))
	// A change is of now, also on a node with another clock.
	from := func(stated time.Time) time.Time {
		if changed {
			return now
		}
		return stated
	}
	placed := index.Placed{
		Pod: pod.UID, Node: pod.Spec.NodeName,
		// There is also what a pod brought before this scheduler ran, or after a pull that failed or took long.
		There: profile.wanted(is.there), ThereUntil: from(startedAt(pod, now)).Add(profile.Args.ReportTimeout.Duration),
		Coming: profile.wanted(is.coming),
	}
	arrival := profile.Args.ArrivalTimeout.Duration
	switch is.stage {
	case taking:
		placed.ComingUntil = from(since(pod, v1.PodScheduled, now)).Add(arrival)
	case preparing:
		if t.preparesAndPulls(pod.Spec.NodeName) {
			placed.PendingUntil = from(since(pod, v1.PodReadyToStartContainers, now)).Add(arrival)
			break
		}
		placed.ComingUntil = from(since(pod, v1.PodScheduled, now)).Add(arrival)
		placed.PendingUntil = from(since(pod, v1.PodReadyToStartContainers, now)).Add(prepares)
	case initializing:
		placed.ComingUntil, placed.PendingUntil = from(startedAt(pod, now)).Add(arrival), now
	case pulling: // as long as it does
	}
	t.index.Follow(&placed, profile.rules, now)
	if len(is.there) > 0 {
		t.inUse(pod)
	}
	t.absent(pod)
}

// preparesAndPulls reports whether the kubelet of a node reports a sandbox as ready only when it has
// started containers: those before 1.36 do (OnPodSandboxReady in k8s.io/kubernetes/pkg/kubelet).
func (t *Tracker) preparesAndPulls(name string) bool {
	node := t.node(name)
	if node == nil {
		return false
	}
	version, err := utilversion.ParseGeneric(node.Status.NodeInfo.KubeletVersion)
	return err == nil && version.LessThan(sandboxReady)
}

var sandboxReady = utilversion.MajorMinor(1, 36)

// release ends what a pod that is gone brings.
func (t *Tracker) release(pod types.UID) {
	t.follows.Lock()
	defer t.follows.Unlock()
	t.index.Release(pod)
	t.changed.forget(pod)
}

// followAll handles the pods of a node again that was not known when they came.
func (t *Tracker) followAll(node string) {
	t.follows.Lock()
	defer t.follows.Unlock()
	for _, pod := range t.podsOn(node) { // as they are now: the end of one is handled afterwards
		t.followLocked(pod, false)
	}
}

// HasSynced reports whether the first reports of nodes, pods and sources are in the index. It
// is for hosts that can put off a question; the others use WaitForSync.
func (t *Tracker) HasSynced() bool {
	return t.synced.Load() || !slices.ContainsFunc(t.syncers, func(s Syncer) bool { return !s.HasSynced() })
}

// syncTimeout bounds WaitForSync.
const syncTimeout = 10 * time.Second

// WaitForSync returns when the first reports are in the index, or after 10 s; from
// then on it returns at once. A host calls it before it asks for the first pod:
// kube-scheduler waits for its own event handlers, but not for those of plugins.
func (t *Tracker) WaitForSync(ctx context.Context) {
	if t.synced.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	for _, syncer := range t.syncers {
		if !syncer.HasSynced() && !cache.WaitForCacheSync(ctx.Done(), syncer.HasSynced) {
			klog.FromContext(ctx).Info("Starting before all sources have reported", "waited", syncTimeout)
		}
	}
	t.synced.Store(true)
}
