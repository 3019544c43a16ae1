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
	"sync/atomic"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// SourceLabel of an ImagePrefetch is which source made it. Users' objects have none.
const SourceLabel = "layerlocality.io/prefetch-source"

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
	if source := object.Labels[SourceLabel]; slices.Contains(AutomaticSources, source) {
		return source
	}
	return sourceObject
}

// automaticTTL is how long automatic objects stay: until it is known whether what they brought was of use.
const automaticTTL = unusedAfter

// newNode is how long a node is new.
const newNode = 10 * time.Minute

// cause is what a source has to look at.
type cause struct {
	source, kind, namespace, name string
}

// sources make ImagePrefetches from what they see in the cluster.
type sources struct {
	*Reconciler
	enabled []string
	queue   workqueue.TypedRateLimitingInterface[cause]

	// leads: what is seen before is for the process that leads then.
	leads atomic.Bool

	mu sync.Mutex
	// tags has the digest of each tag, and when that was confirmed.
	tags map[string]confirmed
}

type confirmed struct {
	digest string
	at     time.Time
}

func newSources(r *Reconciler, enabled []string) *sources {
	return &sources{
		Reconciler: r, enabled: enabled, tags: map[string]confirmed{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cause]()),
	}
}

// watch adds the handlers of the sources that are enabled.
func (s *sources) watch(ctx context.Context, informers crcache.Informers) error {
	handle := func(object client.Object, f, gone func(object any)) error {
		informer, err := informers.GetInformer(ctx, object)
		if err == nil {
			_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: f, UpdateFunc: func(_, object any) { f(object) }, DeleteFunc: gone})
		}
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		return nil
	}
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		err := handle(emptyOf(kind), func(object any) {
			if o, ok := object.(client.Object); ok && slices.Contains(s.enabled, SourceTemplate) {
				s.add(cause{SourceTemplate, kind, o.GetNamespace(), o.GetName()})
			}
		}, nil)
		if err != nil {
			return err
		}
	}
	if slices.Contains(s.enabled, SourceTag) {
		err := handle(&v1alpha1.ImageManifest{}, func(object any) {
			if m, ok := object.(*v1alpha1.ImageManifest); ok {
				s.confirm(m)
			}
		}, s.forget)
		if err != nil {
			return err
		}
	}
	if slices.Contains(s.enabled, SourceNode) {
		_, err := s.cluster.informers.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: s.seeNode, UpdateFunc: func(_, object any) { s.seeNode(object) },
		})
		if err != nil {
			return fmt.Errorf("watching nodes: %w", err)
		}
	}
	return nil
}

// confirm notes where tags point, and has those looked at that pointed elsewhere before.
func (s *sources) confirm(m *v1alpha1.ImageManifest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range m.Status.References {
		if strings.Contains(ref.Name, "@") || ref.Digest == "" || ref.LastConfirmed == nil {
			continue
		}
		last, known := s.tags[ref.Name]
		if known && !ref.LastConfirmed.After(last.at) {
			continue // an object that is about to lose the tag
		}
		s.tags[ref.Name] = confirmed{ref.Digest, ref.LastConfirmed.Time}
		if known && last.digest != ref.Digest {
			s.add(cause{source: SourceTag, name: ref.Name})
		}
	}
}

// forget drops the tags that a deleted object had last.
func (s *sources) forget(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	m, ok := object.(*v1alpha1.ImageManifest)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range m.Status.References {
		if s.tags[ref.Name].digest == ref.Digest {
			delete(s.tags, ref.Name)
		}
	}
}

// add has something looked at, if this process leads.
func (s *sources) add(c cause) {
	if s.leads.Load() {
		s.queue.Add(c)
	}
}

// seeNode has a new node looked at once it is ready.
func (s *sources) seeNode(object any) {
	if node, ok := object.(*corev1.Node); ok && s.isNew(node) {
		s.add(cause{source: SourceNode, name: node.Name})
	}
}

func (s *sources) isNew(node *corev1.Node) bool {
	return nodestatus.Ready(node) && s.clock.Since(node.CreationTimestamp.Time) < newNode
}

// Start works until the context is done.
func (s *sources) Start(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), s.cluster.HasSynced) {
		return nil
	}
	go func() {
		<-ctx.Done()
		s.queue.ShutDown()
	}()
	s.leads.Store(true)
	if err := s.addAll(ctx); err != nil {
		return err
	}
	for {
		next, ended := s.queue.Get()
		if ended {
			return nil
		}
		if err := s.handle(ctx, next); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Cannot make an ImagePrefetch", "source", next.source, "namespace", next.namespace, "name", next.name)
			s.queue.AddRateLimited(next)
		} else {
			s.queue.Forget(next)
		}
		s.queue.Done(next)
	}
}

// addAll has all workloads and new nodes looked at: they changed while another process led, or none.
func (s *sources) addAll(ctx context.Context) error {
	if slices.Contains(s.enabled, SourceTemplate) {
		all, err := s.workloads(ctx)
		if err != nil {
			return err
		}
		for _, w := range all {
			s.add(cause{SourceTemplate, w.kind, w.object.GetNamespace(), w.object.GetName()})
		}
	}
	if slices.Contains(s.enabled, SourceNode) {
		nodes, err := s.cluster.nodes.List(everything)
		if err != nil {
			return err
		}
		for _, node := range nodes {
			s.seeNode(node)
		}
	}
	return nil
}

// NeedLeaderElection returns true: one makes objects.
func (*sources) NeedLeaderElection() bool { return true }

func (s *sources) handle(ctx context.Context, e cause) error {
	switch e.source {
	case SourceTemplate:
		return s.template(ctx, e)
	case SourceTag:
		return s.tag(ctx, e)
	case SourceNode:
		return s.node(ctx, e)
	}
	return nil
}

// template makes an object for a workload some of whose pods have other images than its template.
func (s *sources) template(ctx context.Context, e cause) error {
	w, err := getWorkload(ctx, s.client, e.namespace, e.kind, e.name)
	if err != nil || w == nil || w.object.GetDeletionTimestamp() != nil {
		return err
	}
	pods, err := w.pods(s.cluster)
	if err != nil {
		return err
	}
	wanted := names(pulledImages(w.template))
	if len(wanted) == 0 || !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return !containsAll(names(pulledImages(&pod.Spec)), wanted) }) {
		return nil
	}
	return s.create(ctx, SourceTemplate, w, strings.Join(wanted, " "), v1alpha1.ImagePrefetchSpec{MaxNodes: ptr.To(intstr.FromInt(w.maxNodes()))})
}

func containsAll(all, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(all, name) })
}

// workloads returns all workloads.
func (s *sources) workloads(ctx context.Context) (all []*workload, err error) {
	for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}} {
		if err := s.client.List(ctx, list); err != nil {
			return nil, err
		}
		err := meta.EachListItem(list, func(object runtime.Object) error {
			if o, ok := object.(client.Object); ok {
				all = append(all, workloadOf(o))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// tag makes objects for the workloads whose pods pull a tag again when they start. The image is named by its digest: what
// the tag means on a node, to pods that do not pull again, stays as it is.
func (s *sources) tag(ctx context.Context, e cause) error {
	s.mu.Lock()
	digest := s.tags[e.name].digest
	s.mu.Unlock()
	all, err := s.workloads(ctx)
	if err != nil {
		return err
	}
	var failed []error // one workload's stops no others
	for _, w := range all {
		var images []string
		for _, image := range pulledImages(w.template) {
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
		failed = append(failed, s.create(ctx, SourceTag, w, strings.Join(images, " "), v1alpha1.ImagePrefetchSpec{Images: images, MaxNodes: ptr.To(intstr.FromInt(w.maxNodes()))}))
	}
	return errors.Join(failed...)
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
func (s *sources) node(ctx context.Context, e cause) error {
	node, err := s.cluster.nodes.Get(e.name)
	if err != nil || !s.isNew(node) {
		return client.IgnoreNotFound(err)
	}
	hostname := node.Labels[corev1.LabelHostname]
	nodes, err := s.cluster.nodes.List(everything)
	if err != nil || hostname == "" {
		return err
	}
	all, err := s.workloads(ctx)
	if err != nil {
		return err
	}
	var failed []error // one workload's stops no others
	for _, w := range all {
		if w.kind == "DaemonSet" {
			continue
		}
		pods, err := w.pods(s.cluster)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		runs := map[string]bool{}
		for _, pod := range pods {
			runs[pod.Spec.NodeName] = true
		}
		if runs[node.Name] || len(runs) < 2 || 2*len(runs) < len(nodes)-1 {
			continue
		}
		failed = append(failed, s.create(ctx, SourceNode, w, string(node.UID), v1alpha1.ImagePrefetchSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: hostname}},
		}))
	}
	return errors.Join(failed...)
}

// create makes an object, unless there is one for the same cause. What an earlier cause of the source began for the same workload ends
// with its object.
func (s *sources) create(ctx context.Context, source string, w *workload, cause string, spec v1alpha1.ImagePrefetchSpec) error {
	off, err := s.turnedOff(ctx, w.object.GetNamespace())
	if err != nil || off {
		return client.IgnoreNotFound(err)
	}
	gvk, err := apiutil.GVKForObject(w.object, s.client.Scheme())
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(string(w.object.GetUID()) + " " + cause))
	spec.Workload = &v1alpha1.WorkloadReference{Kind: w.kind, Name: w.object.GetName()}
	spec.DeadlineSeconds, spec.TTLSecondsAfterFinished = 3600, ptr.To(int64(automaticTTL/time.Second))
	name := source + "-" + strings.ToLower(w.kind) + "-" + w.object.GetName()
	object := &v1alpha1.ImagePrefetch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.object.GetNamespace(), Name: nameOf(name, sum[:]),
			Labels:          map[string]string{SourceLabel: source, "app.kubernetes.io/part-of": "layer-locality"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: w.object.GetName(), UID: w.object.GetUID()}},
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
	if err := s.client.List(ctx, &all, client.InNamespace(object.Namespace), client.MatchingLabels{SourceLabel: object.Labels[SourceLabel]}); err != nil {
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
