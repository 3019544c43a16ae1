package prefetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// The sources.
const (
	sourceObject = "object"
	// SourceTemplate: a template with other images than the pods of its workload.
	SourceTemplate = "template"
	// SourceTag: a tag that layer-resolver found to point elsewhere, of workloads with pull policy Always.
	SourceTag = "tag"
	// SourceNode: a new node, which gets what half of the other nodes run.
	SourceNode = "node"
)

var allSources = []string{sourceObject, SourceTemplate, SourceTag, SourceNode}

// AutomaticSources are those that make ImagePrefetches by themselves.
var AutomaticSources = []string{SourceTemplate, SourceTag, SourceNode}

// sourceOf returns the source of an object.
func sourceOf(object *v1alpha1.ImagePrefetch) string {
	if source := object.Labels[v1alpha1.PrefetchSourceLabel]; slices.Contains(AutomaticSources, source) {
		return source
	}
	return sourceObject
}

// automaticTTL is how long automatic objects stay: until it is known whether what they brought was of use, and then for as
// long as their source has more or less for it.
const automaticTTL = 2 * unusedAfter

// newNode is how long a node is new.
const newNode = 10 * time.Minute

// cause is what a source has to look at.
type cause struct {
	source          string
	kind            schema.GroupVersionKind // of the workload
	namespace, name string
}

// sources make ImagePrefetches from what they see in the cluster.
type sources struct {
	*Reconciler
	enabled []string

	mu sync.Mutex
	// tags has the digest of each tag, and when that was confirmed.
	tags map[string]confirmed

	// held are the templates of which no pod was there yet, and since when.
	held map[cause]heldRollout
}

type heldRollout struct {
	images string
	since  time.Time
}

type confirmed struct {
	digest string
	at     time.Time
}

func newSources(r *Reconciler, enabled []string) *sources {
	return &sources{Reconciler: r, enabled: enabled, tags: map[string]confirmed{}, held: map[cause]heldRollout{}}
}

// addTo adds a controller of what the enabled sources see, if there are any. All that is there when it begins counts as
// changed.
func (s *sources) addTo(ctx context.Context, mgr manager.Manager) error {
	if len(s.enabled) == 0 {
		return nil
	}
	b := builder.TypedControllerManagedBy[cause](mgr).Named("prefetchsources").
		WithOptions(controller.TypedOptions[cause]{NewQueue: inTurns(func(c cause) string { return c.namespace })})
	follow := func(informer crcache.Informer, see func(object any) []cause, gone func(before, now any)) {
		b.WatchesRawSource(source.TypedFunc[cause](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[cause]) error {
			add := func(object any) {
				for _, c := range see(object) {
					queue.Add(c)
				}
			}
			if gone == nil {
				gone = func(any, any) {}
			}
			_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: add, DeleteFunc: func(object any) { gone(object, nil) },
				UpdateFunc: func(before, object any) {
					gone(before, object)
					add(object)
				},
			})
			return err
		}))
	}
	for _, kind := range s.kinds { // all sources need them
		informer, err := mgr.GetCache().GetInformer(ctx, emptyOf(kind))
		if err != nil {
			return fmt.Errorf("watching %s of %s: %w", kind.Kind, kind.GroupVersion(), err)
		}
		if slices.Contains(s.enabled, SourceTemplate) {
			follow(informer, func(object any) []cause {
				m, err := meta.Accessor(object)
				if err != nil {
					return nil
				}
				return []cause{{SourceTemplate, kind, m.GetNamespace(), m.GetName()}}
			}, nil)
		}
	}
	if slices.Contains(s.enabled, SourceTag) {
		informer, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.ImageManifest{})
		if err != nil {
			return fmt.Errorf("watching ImageManifests: %w", err)
		}
		follow(informer, s.confirm, s.forget)
	}
	if slices.Contains(s.enabled, SourceNode) {
		follow(s.cluster.informers.Core().V1().Nodes().Informer(), s.seeNode, nil)
	}
	return b.Complete(reconcile.TypedFunc[cause](s.handle))
}

// confirm notes where tags point, and returns those that pointed elsewhere before.
func (s *sources) confirm(object any) (moved []cause) {
	m, ok := object.(*v1alpha1.ImageManifest)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range m.Status.References {
		if isDigest(ref.Name) || ref.Digest == "" || ref.LastConfirmed == nil {
			continue
		}
		last, known := s.tags[ref.Name]
		if known && !ref.LastConfirmed.After(last.at) {
			continue // an object that is about to lose the tag
		}
		s.tags[ref.Name] = confirmed{ref.Digest, ref.LastConfirmed.Time}
		if known && last.digest != ref.Digest {
			moved = append(moved, cause{source: SourceTag, name: ref.Name})
		}
	}
	return moved
}

// forget drops the tags that an object had last and does not have now; nil if it is deleted.
func (s *sources) forget(before, now any) {
	if unknown, ok := before.(cache.DeletedFinalStateUnknown); ok {
		before = unknown.Obj
	}
	left := map[string]bool{}
	if m, ok := now.(*v1alpha1.ImageManifest); ok {
		for _, ref := range m.Status.References {
			left[ref.Name] = true
		}
	}
	m, ok := before.(*v1alpha1.ImageManifest)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range m.Status.References {
		if s.tags[ref.Name].digest == ref.Digest && !left[ref.Name] {
			delete(s.tags, ref.Name)
		}
	}
}

// seeNode has a new node looked at once it is ready.
func (s *sources) seeNode(object any) []cause {
	if node, ok := object.(*corev1.Node); ok && s.isNew(node) {
		return []cause{{source: SourceNode, name: node.Name}}
	}
	return nil
}

func (s *sources) isNew(node *corev1.Node) bool {
	return nodestatus.Ready(node) && s.clock.Since(node.CreationTimestamp.Time) < newNode
}

func (s *sources) handle(ctx context.Context, c cause) (ctrl.Result, error) {
	if !s.cluster.HasSynced() {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	look := map[string]func(context.Context, cause) (time.Duration, error){SourceTemplate: s.template, SourceTag: s.tag, SourceNode: s.node}[c.source]
	again, err := look(ctx, c)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("source %s, %s %s/%s: %w", c.source, c.kind.Kind, c.namespace, c.name, err)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// holding is after how long a rollout without a pod is held, by its author or by a lack of room.
const holding = 10 * time.Second

// template makes an object for a workload some of whose pods have other images than its template, or returns when to look again. For all
// of its nodes but one: the first pod pulls by itself. If they are one, that pod is all, unless the rollout is held.
func (s *sources) template(ctx context.Context, e cause) (again time.Duration, err error) {
	last := s.held[e]
	delete(s.held, e)
	w, err := getWorkload(ctx, s.client, e.kind, e.namespace, e.name)
	if err != nil || w == nil || w.GetDeletionTimestamp() != nil {
		return 0, err
	}
	pods, err := w.pods(s.cluster)
	if err != nil {
		return 0, err
	}
	wanted := names(imageref.PulledByPod(&w.template))
	old := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return containsAll(names(imageref.PulledByPod(&pod.Spec)), wanted) })
	nodes, images, now := len(nodesOf(old)), strings.Join(wanted, " "), s.clock.Now()
	switch {
	case len(wanted) == 0 || nodes == 0 || nodes == 1 && len(old) < len(pods):
		return 0, nil
	case nodes == 1 && last.images != images:
		last = heldRollout{images, now}
		fallthrough
	case nodes == 1 && now.Sub(last.since) < holding:
		s.held[e] = last
		return holding - now.Sub(last.since), nil
	}
	return 0, s.create(ctx, SourceTemplate, w, images, v1alpha1.ImagePrefetchSpec{MaxNodes: allButOne(len(nodesOf(pods)))})
}

// allButOne returns how many of the nodes of a workload get an image: the last pod finds it where an earlier one is.
func allButOne(nodes int) *intstr.IntOrString {
	return ptr.To(intstr.FromInt32(int32(min(max(1, nodes-1), v1alpha1.MaxPrefetchedNodes)))) //nolint:gosec // it is bounded
}

func containsAll(all, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(all, name) })
}

// workloads returns all workloads.
func (s *sources) workloads(ctx context.Context) (all []*workload, err error) {
	for _, kind := range s.kinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := s.client.List(ctx, list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			all = append(all, workloadOf(&list.Items[i]))
		}
	}
	return all, nil
}

// tag makes objects for the workloads whose pods pull a tag again when they start. The image is named by its digest: what
// the tag means on a node, to pods that do not pull again, stays as it is.
func (s *sources) tag(ctx context.Context, e cause) (time.Duration, error) {
	s.mu.Lock()
	digest := s.tags[e.name].digest
	s.mu.Unlock()
	all, err := s.workloads(ctx)
	if err != nil {
		return 0, err
	}
	var failed []error // one workload's stops no others
	for _, w := range all {
		var images []string
		for _, image := range imageref.PulledByPod(&w.template) {
			full, err := imageref.Full(image.Name)
			if err != nil || image.PullPolicy != corev1.PullAlways || full.String() != e.name {
				continue
			}
			if name := byDigest(image.Name, digest); name != "" {
				images = append(images, name)
			}
		}
		if len(images) == 0 {
			continue
		}
		slices.Sort(images)
		images = slices.Compact(images)
		pods, err := w.pods(s.cluster)
		if err == nil && len(pods) > 0 {
			err = s.create(ctx, SourceTag, w, strings.Join(images, " "), v1alpha1.ImagePrefetchSpec{Images: images, MaxNodes: allButOne(len(nodesOf(pods)))})
		}
		failed = append(failed, err)
	}
	return 0, errors.Join(failed...)
}

// byDigest returns the repository of an image, as the image names it, with a digest; empty if one of them is not valid.
func byDigest(image, of string) string {
	parsed, err := reference.Parse(image)
	named, ok := parsed.(reference.Named)
	d := digest.Digest(of)
	if err != nil || !ok || imageref.ValidateDigest(d) != nil {
		return ""
	}
	full, err := reference.WithDigest(reference.TrimNamed(named), d)
	if err != nil {
		return ""
	}
	return full.String()
}

func isDigest(image string) bool { return strings.Contains(image, "@") }

// node makes objects for the workloads that run on at least half of the nodes, and at least two. DaemonSets begin by
// themselves.
func (s *sources) node(ctx context.Context, e cause) (time.Duration, error) {
	node, err := s.cluster.nodes.Get(e.name)
	if err != nil || !s.isNew(node) {
		return 0, client.IgnoreNotFound(err)
	}
	hostname := node.Labels[corev1.LabelHostname]
	nodes, err := s.cluster.nodes.List(everything)
	if err != nil || hostname == "" {
		return 0, err
	}
	all, err := s.workloads(ctx)
	if err != nil {
		return 0, err
	}
	var failed []error // one workload's stops no others
	for _, w := range all {
		if w.GetKind() == "DaemonSet" {
			continue
		}
		pods, err := w.pods(s.cluster)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		runs := nodesOf(pods)
		if slices.Contains(runs, node.Name) || len(runs) < 2 || 2*len(runs) < len(nodes)-1 {
			continue
		}
		failed = append(failed, s.create(ctx, SourceNode, w, string(node.UID), v1alpha1.ImagePrefetchSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: hostname}},
		}))
	}
	return 0, errors.Join(failed...)
}

// create makes an object, unless there is one for the same cause. What an earlier cause of the source began for the same workload ends
// with its object.
func (s *sources) create(ctx context.Context, source string, w *workload, cause string, spec v1alpha1.ImagePrefetchSpec) error {
	off, err := s.turnedOff(ctx, w.GetNamespace())
	if err != nil || off {
		return client.IgnoreNotFound(err)
	}
	sum := sha256.Sum256([]byte(string(w.GetUID()) + " " + cause))
	spec.Workload = &v1alpha1.WorkloadReference{APIVersion: w.GetAPIVersion(), Kind: w.GetKind(), Name: w.GetName()}
	spec.DeadlineSeconds, spec.TTLSecondsAfterFinished = 3600, ptr.To(int64(automaticTTL/time.Second))
	name := source + "-" + strings.ToLower(w.GetKind()) + "-" + w.GetName()
	object := &v1alpha1.ImagePrefetch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.GetNamespace(), Name: nameOf(name, sum[:]),
			Labels:          map[string]string{v1alpha1.PrefetchSourceLabel: source, "app.kubernetes.io/part-of": "layer-locality"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: w.GetAPIVersion(), Kind: w.GetKind(), Name: w.GetName(), UID: w.GetUID()}},
		},
		Spec: spec,
	}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(object), &v1alpha1.ImagePrefetch{}); !apierrors.IsNotFound(err) {
		return err
	}
	if source != SourceNode {
		if err := s.endOthers(ctx, object); err != nil {
			return err
		}
	}
	switch err := s.client.Create(ctx, object); {
	case apierrors.IsAlreadyExists(err):
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		// That is about this workload, and the same the next time. What is forbidden, by a quota for example, may not be.
		log.FromContext(ctx).Info("The API server refuses an ImagePrefetch", "namespace", object.Namespace, "name", object.Name, "cause", err.Error())
	default:
		return err
	}
	return nil
}

// nameOf returns the name of an object that one with a long name may have brought about.
func nameOf(name string, sum []byte) string {
	return strings.TrimRight(name[:min(len(name), 220)], "-.") + "-" + hex.EncodeToString(sum[:5])
}

// endOthers deletes what the same source made for the same workload and what has not ended.
func (s *sources) endOthers(ctx context.Context, object *v1alpha1.ImagePrefetch) error {
	var all v1alpha1.ImagePrefetchList
	if err := s.client.List(ctx, &all, client.InNamespace(object.Namespace), client.MatchingLabels{v1alpha1.PrefetchSourceLabel: object.Labels[v1alpha1.PrefetchSourceLabel]}); err != nil {
		return err
	}
	for i := range all.Items {
		other := &all.Items[i]
		if other.Status.CompletionTime != nil || len(other.OwnerReferences) == 0 || other.OwnerReferences[0].UID != object.OwnerReferences[0].UID {
			continue
		}
		if err := s.client.Delete(ctx, other); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
