package prefetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/terminal"
)

const (
	// NamespaceLabel with the value "disabled" turns prefetches of a namespace off.
	NamespaceLabel = "layerlocality.io/prefetch"
	disabled       = "disabled"

	maxAttempts = 3
	// firstPause is between attempts, four times as long each time.
	firstPause = 15 * time.Second
	// awaitManifest is how long an image is waited for whose layers a source may still get.
	awaitManifest = 10 * time.Second
	// linger is how long a pod stays at most after its node has pulled, until the node reports it.
	linger = 2 * time.Minute
	// unusedAfter is when bytes that no pod has used count as wasted.
	unusedAfter = 24 * time.Hour

	// How often an object is looked at again: while nodes pull or wait, and what waits for something else.
	soon  = 3 * time.Second
	poll  = 30 * time.Second
	later = 10 * time.Minute
	// A pod that is not gone so long after its deletion is on a node that does not answer.
	leaves = time.Minute
)

// Reconciler works on ImagePrefetches, one at a time.
type Reconciler struct {
	client  client.Client
	cluster *Cluster
	events  events.EventRecorder
	clock   clock.PassiveClock
	options Options
	kinds   []schema.GroupVersionKind // of workloads
	metrics *metrics

	// begun are pods that the cache may not show yet, hour the pulls that began within an hour.
	begun map[types.NamespacedName]pull
	hour  map[pullKey]pull
	// sums are the bytes of the hour's pulls.
	sums map[sum]int64
	// counts are what metrics rise by once the status has been written: who reads an older one would count it again.
	counts map[prometheus.Counter]float64
}

// pullKey identifies a pull on a node.
type pullKey struct {
	object types.UID
	node   string
	began  int64
}

// Reconcile does what is due about one object.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if !r.cluster.HasSynced() {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	return r.reconcile(ctx, request.NamespacedName)
}

func (r *Reconciler) reconcile(ctx context.Context, name types.NamespacedName) (ctrl.Result, error) {
	object := &v1alpha1.ImagePrefetch{}
	if err := r.client.Get(ctx, name, object); err != nil || object.DeletionTimestamp != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := object.Status.DeepCopy()
	clear(r.counts)
	again, err := r.work(ctx, object)
	if err == nil && again < 0 {
		return ctrl.Result{}, client.IgnoreNotFound(r.count(r.client.Delete(ctx, object)))
	}
	if !equality.Semantic.DeepEqual(before, &object.Status) {
		err = errors.Join(err, client.IgnoreNotFound(r.count(r.client.Status().Update(ctx, object))))
	}
	if apierrors.IsConflict(err) { // the cache is behind
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	return ctrl.Result{RequeueAfter: again}, err
}

// count has the metrics rise unless there is an error, and returns that.
func (r *Reconciler) count(err error) error {
	for counter, by := range r.counts {
		if err == nil {
			counter.Add(by)
		}
	}
	return err
}

// work does what is due, changes the status, and returns when to look again: 0 for never, less for an object that is to be
// deleted.
func (r *Reconciler) work(ctx context.Context, object *v1alpha1.ImagePrefetch) (again time.Duration, err error) {
	now, status := r.clock.Now(), &object.Status
	t, w, err := r.target(ctx, object)
	var invalid invalidError
	if err != nil && !errors.As(err, &invalid) {
		return 0, err
	}
	if err != nil {
		t = &target{} // whose pods are none
	}
	r.begin(object, t, now)
	pods, err := r.podsOf(ctx, object, t)
	if err != nil {
		return 0, err
	}
	hasPods := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil })
	if invalid.error != nil {
		if status.CompletionTime != nil { // what came before is of use or not
			if err := r.judge(object, t, w, now); err != nil {
				return 0, err
			}
		}
		if _, err := r.finish(ctx, object, pods, v1alpha1.ReasonInvalid, invalid.Error()); err != nil {
			return 0, err
		}
		return r.afterEnd(object, hasPods, now), nil
	}
	active, err := r.observe(ctx, object, t, pods)
	if err != nil {
		return 0, err
	}
	if err := r.judge(object, t, w, now); err != nil {
		return 0, err
	}
	if status.CompletionTime != nil {
		return r.afterEnd(object, hasPods, now), nil
	}
	left := time.Duration(cmp.Or(object.Spec.DeadlineSeconds, 3600)) * time.Second
	if status.StartTime != nil {
		left -= now.Sub(status.StartTime.Time)
	}
	if left <= 0 {
		return r.finish(ctx, object, pods, v1alpha1.ReasonDeadline, fmt.Sprintf("%d nodes are not ready", status.NodesWanted-status.NodesReady))
	}
	off, err := r.turnedOff(ctx, object.Namespace)
	switch {
	case err != nil:
		return 0, err
	case off:
		return r.finish(ctx, object, pods, v1alpha1.ReasonTurnedOff, "the namespace has the label "+NamespaceLabel+"="+disabled)
	case object.Spec.Workload != nil && w == nil:
		r.condition(object, metav1.ConditionFalse, v1alpha1.ReasonNoWorkload, fmt.Sprintf("there is no %s %s", object.Spec.Workload.Kind, object.Spec.Workload.Name))
		return min(poll, left), nil
	}
	again, err = r.advance(ctx, object, t, w, active, now)
	return min(again, left), err
}

// begin begins anew with another spec, or with other images in the template of a workload. What an object that has ended
// brought stays what it was.
func (r *Reconciler) begin(object *v1alpha1.ImagePrefetch, t *target, now time.Time) {
	status, images := &object.Status, names(t.images)
	switch {
	case status.ObservedGeneration != object.Generation:
		*status = v1alpha1.ImagePrefetchStatus{ObservedGeneration: object.Generation, Images: images}
	case status.CompletionTime == nil && len(images) > 0 && !slices.Equal(status.Images, images):
		*status = v1alpha1.ImagePrefetchStatus{ObservedGeneration: object.Generation, Images: images, StartTime: status.StartTime}
	case status.CompletionTime != nil:
		t.images = nil
		for _, name := range status.Images {
			t.images = imageref.Append(t.images, name, "")
		}
	}
	if object.Spec.Paused {
		status.StartTime = nil
	} else if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: now}
	}
}

// podsOf returns the pods of an object, and ends those for another spec or other images.
func (r *Reconciler) podsOf(ctx context.Context, object *v1alpha1.ImagePrefetch, t *target) (own []*corev1.Pod, err error) {
	var all corev1.PodList
	if err := r.client.List(ctx, &all, client.InNamespace(object.Namespace), client.HasLabels{v1alpha1.PrefetchPodLabel}); err != nil {
		return nil, err
	}
	for i := range all.Items {
		pod := &all.Items[i]
		switch {
		case !metav1.IsControlledBy(pod, object) || nodeOf(pod) == "":
		case pod.Annotations[contentAnnotation] != contentOf(object, t):
			if err := r.end(ctx, pod); err != nil {
				return nil, err
			}
		default:
			own = append(own, pod)
		}
	}
	return own, nil
}

// observe takes over what became of the pods of an object, and ends those of which the status has that. It returns the nodes that pull.
func (r *Reconciler) observe(ctx context.Context, object *v1alpha1.ImagePrefetch, t *target, pods []*corev1.Pod) (active map[string]bool, err error) {
	active = map[string]bool{}
	now := r.clock.Now()
	for _, pod := range pods {
		node, bytes := nodeOf(pod), bytesOf(pod, r.options.Budget.NodeBytes)
		delete(r.begun, client.ObjectKeyFromObject(pod))
		entry := entryOf(object, node)
		recorded := entry != nil && !entry.Time.Time.Before(pod.CreationTimestamp.Time)
		is, reason, message := outcomeOf(pod, now)
		r.account(object, node, bytes, pod.CreationTimestamp.Time)
		switch {
		case is == pulling && pod.DeletionTimestamp == nil:
			active[node] = true
			continue
		case is == pulled && !recorded:
			if total := r.cluster.measure(t.images).total(node); total > 0 {
				bytes = min(bytes, total) // more was assumed of an image of which nothing was known
			}
			if r.record(object, v1alpha1.PrefetchedNode{Name: node, Bytes: bytes, Seconds: int32(pullTime(pod).Seconds()), Time: pod.CreationTimestamp}) {
				object.Status.BytesMoved += bytes
				r.counts[r.metrics.nodes.WithLabelValues(sourceOf(object))]++
				r.counts[r.metrics.bytes.WithLabelValues(sourceOf(object))] += float64(bytes)
				r.event(object, corev1.EventTypeNormal, "Prefetched", fmt.Sprintf("node %s has pulled %d bytes", node, bytes))
				continue // the pod ends once that is written
			}
		case is == pulled && !r.cluster.lists(node, t.images) && now.Sub(pod.CreationTimestamp.Time) < linger+pullTime(pod):
			continue
		case is == failed && !recorded:
			if r.fail(object, node, reason, message, pod.CreationTimestamp, 1) {
				continue // the same
			}
		}
		if err := r.end(ctx, pod); err != nil {
			return nil, err
		}
	}
	return active, nil
}

// pullTime returns how long the pull of a pod took: from when the kubelet began with the pod.
func pullTime(pod *corev1.Pod) time.Duration {
	for i := range pod.Status.ContainerStatuses {
		if running := pod.Status.ContainerStatuses[i].State.Running; running != nil {
			return max(0, running.StartedAt.Sub(cmp.Or(pod.Status.StartTime, &pod.CreationTimestamp).Time))
		}
	}
	return 0
}

// end deletes a pod.
func (r *Reconciler) end(ctx context.Context, pod *corev1.Pod) error {
	delete(r.begun, client.ObjectKeyFromObject(pod))
	if pod.DeletionTimestamp != nil {
		return nil
	}
	return client.IgnoreNotFound(r.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}))
}

// entryOf returns what the status has of a node; nil if it has nothing.
func entryOf(object *v1alpha1.ImagePrefetch, node string) *v1alpha1.PrefetchedNode {
	nodes := object.Status.Nodes
	if i := slices.IndexFunc(nodes, func(n v1alpha1.PrefetchedNode) bool { return n.Name == node }); i >= 0 {
		return &nodes[i]
	}
	return nil
}

// record puts a node into the status; false if there are too many.
func (r *Reconciler) record(object *v1alpha1.ImagePrefetch, n v1alpha1.PrefetchedNode) bool {
	if entry := entryOf(object, n.Name); entry != nil {
		*entry = n
		return true
	}
	if len(object.Status.Nodes) >= v1alpha1.MaxPrefetchedNodes {
		return false
	}
	object.Status.Nodes = append(object.Status.Nodes, n)
	return true
}

// fail notes a failed attempt, or that so many are as good as failed; false if the status has too many nodes.
func (r *Reconciler) fail(object *v1alpha1.ImagePrefetch, node, reason, message string, began metav1.Time, attempts int32) bool {
	entry := v1alpha1.PrefetchedNode{Name: node, Attempts: attempts, Reason: atMost(64, reason), Message: atMost(512, message), Time: began}
	if last := entryOf(object, node); last != nil {
		entry.Attempts = min(maxAttempts, last.Attempts+attempts)
	}
	recorded := r.record(object, entry)
	r.counts[r.metrics.failures.WithLabelValues(sourceOf(object))]++
	if entry.Attempts == maxAttempts {
		r.event(object, corev1.EventTypeWarning, "PrefetchFailed", fmt.Sprintf("node %s: %s: %s", node, entry.Reason, entry.Message))
	}
	return recorded
}

// atMost returns so many bytes of a text at most, in one line, without what a terminal could take for a command: registries
// and kubelets write it, and kubectl shows it.
func atMost(bytes int, text string) string {
	text = terminal.Line(text, bytes)
	for i := min(len(text), bytes); ; i-- {
		if i == len(text) || utf8.RuneStart(text[i]) {
			return text[:i]
		}
	}
}

// account adds a pull to those of the hour, once, with no more bytes than its namespace may have: a tenant may make pods in the name
// of its object that state any.
func (r *Reconciler) account(object *v1alpha1.ImagePrefetch, node string, bytes int64, began time.Time) {
	key := pullKey{object.UID, node, began.Unix()}
	if _, known := r.hour[key]; known || r.clock.Since(began) >= time.Hour {
		return
	}
	left := r.options.Budget.NamespaceBytesPerHour - r.sums[sum{namespace: object.Namespace}]
	if bytes = min(bytes, left); bytes > 0 {
		r.hour[key] = pull{node, object.Namespace, sourceOf(object), bytes, began}
		r.hour[key].addTo(r.sums, bytes)
	}
}

// dropOld drops the pulls that began more than an hour ago.
func (r *Reconciler) dropOld(now time.Time) {
	maps.DeleteFunc(r.hour, func(_ pullKey, p pull) bool {
		old := now.Sub(p.began) > time.Hour
		if old {
			p.addTo(r.sums, -p.bytes)
		}
		return old
	})
}

// judge finds out which nodes' bytes pods have used, and which were wasted.
func (r *Reconciler) judge(object *v1alpha1.ImagePrefetch, t *target, w *workload, now time.Time) error {
	var pods []*corev1.Pod
	measured := map[string]func(node string) int64{} // by the names of images
	object.Status.BytesSaved = 0
	source := sourceOf(object)
	for i := range object.Status.Nodes {
		n := &object.Status.Nodes[i]
		if n.Bytes == 0 {
			continue
		}
		r.account(object, n.Name, n.Bytes, n.Time.Time)
		before, old := *n, now.Sub(n.Time.Time) >= unusedAfter
		var after time.Duration
		if n.UsedBytes < n.Bytes && !old {
			var err error
			var used int64
			switch {
			case pods != nil:
			case w != nil:
				pods, err = w.pods(r.cluster)
			case object.Spec.Workload == nil:
				pods, err = r.cluster.podsOf(object.Namespace, everything)
			}
			if err != nil {
				return err
			}
			used, after = usedBytes(n, t.images, pods, func(images []imageref.PodImage) int64 {
				key := strings.Join(names(images), " ")
				if measured[key] == nil {
					measured[key] = r.cluster.measure(images).total
				}
				return measured[key](n.Name)
			})
			n.UsedBytes = max(n.UsedBytes, used)
		}
		n.Wasted = n.Wasted || n.UsedBytes < n.Bytes && (old || r.expired(object, now))
		object.Status.BytesSaved += n.UsedBytes
		newly := float64(n.UsedBytes - before.UsedBytes)
		r.counts[r.metrics.used.WithLabelValues(source)] += newly
		if now.Sub(n.Time.Time) < time.Hour {
			r.counts[r.metrics.usedInHour.WithLabelValues(source)] += newly
		}
		r.counts[r.metrics.seconds.WithLabelValues(source)] += min(float64(n.Seconds), after.Seconds()) * newly / float64(n.Bytes)
		if n.Wasted && !before.Wasted { // once, also after a restart
			r.counts[r.metrics.wasted.WithLabelValues(source)] += float64(n.Bytes - n.UsedBytes)
		}
	}
	return nil
}

// leastShare is what a source keeps of its namespace's budget although all was wasted: it could not recover otherwise.
const leastShare = 0.1

// share returns how much of NamespaceBytesPerHour the source of an object may have there: objects of users all of it, automatic
// sources as much as pods used of what they pulled.
func (r *Reconciler) share(ctx context.Context, object *v1alpha1.ImagePrefetch) (float64, error) {
	source := sourceOf(object)
	if source == sourceObject {
		return 1, nil
	}
	var all v1alpha1.ImagePrefetchList
	if err := r.client.List(ctx, &all, client.InNamespace(object.Namespace), client.MatchingLabels{v1alpha1.PrefetchSourceLabel: source}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	var used, wasted int64
	for i := range all.Items {
		used += all.Items[i].Status.BytesSaved
		for _, n := range all.Items[i].Status.Nodes {
			if n.Wasted {
				wasted += n.Bytes - n.UsedBytes
			}
		}
	}
	if wasted == 0 {
		return 1, nil
	}
	return max(leastShare, float64(used)/float64(used+wasted)), nil
}

// expired reports whether an object that has ended is to be deleted.
func (r *Reconciler) expired(object *v1alpha1.ImagePrefetch, now time.Time) bool {
	ended, ttl := object.Status.CompletionTime, object.Spec.TTLSecondsAfterFinished
	return ended != nil && ttl != nil && now.Sub(ended.Time) >= time.Duration(*ttl)*time.Second
}

// afterEnd returns when to look again at an object that has ended.
func (r *Reconciler) afterEnd(object *v1alpha1.ImagePrefetch, hasPods bool, now time.Time) time.Duration {
	unjudged := slices.ContainsFunc(object.Status.Nodes, func(n v1alpha1.PrefetchedNode) bool {
		return n.UsedBytes < n.Bytes && now.Sub(n.Time.Time) < unusedAfter
	})
	switch {
	case r.expired(object, now):
		return -1
	case hasPods:
		return soon
	case unjudged:
		return later
	case object.Spec.TTLSecondsAfterFinished != nil:
		return time.Duration(*object.Spec.TTLSecondsAfterFinished)*time.Second - now.Sub(object.Status.CompletionTime.Time) + time.Second
	}
	return 0
}

// finish ends an object and the pods that pull for it.
func (r *Reconciler) finish(ctx context.Context, object *v1alpha1.ImagePrefetch, pods []*corev1.Pod, reason, message string) (time.Duration, error) {
	for _, pod := range pods {
		if is, _, _ := outcomeOf(pod, r.clock.Now()); is != pulled {
			if err := r.end(ctx, pod); err != nil {
				return 0, err
			}
		}
	}
	if object.Status.CompletionTime == nil {
		now := metav1.NewTime(r.clock.Now())
		object.Status.CompletionTime = &now
		r.condition(object, metav1.ConditionTrue, reason, message)
		if reason != v1alpha1.ReasonComplete {
			r.event(object, corev1.EventTypeWarning, "PrefetchEnded", reason+": "+message)
		}
	}
	return soon, nil
}

func (r *Reconciler) condition(object *v1alpha1.ImagePrefetch, is metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionComplete, Status: is, Reason: reason, Message: atMost(1024, message), ObservedGeneration: object.Generation,
	})
}

// turnedOff reports whether a namespace wants no prefetches.
func (r *Reconciler) turnedOff(ctx context.Context, namespace string) (bool, error) {
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return false, fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	return ns.Labels[NamespaceLabel] == disabled || ns.DeletionTimestamp != nil, nil
}

// event is about the workload that an automatic object is for, or else about the object.
func (r *Reconciler) event(object *v1alpha1.ImagePrefetch, kind, reason, note string) {
	about := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImagePrefetch", Namespace: object.Namespace, Name: object.Name, UID: object.UID}
	for _, owner := range object.OwnerReferences {
		if ref := object.Spec.Workload; ref != nil && owner.Kind == ref.Kind && owner.Name == ref.Name {
			about = &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: object.Namespace, Name: owner.Name, UID: owner.UID}
		}
	}
	r.events.Eventf(about, object, kind, reason, "Prefetch", "%s", atMost(1000, note))
}

// chosen is a node that gets the images.
type chosen struct {
	name string
	has  onNode
	// begun: it pulls for this object, or did.
	begun bool
}

// choose returns the nodes that an object is about: those of the candidates that suit, up to MaxNodes, those that have begun first, and then
// those that lack least. Beyond are so many that its status has no room for.
func (r *Reconciler) choose(object *v1alpha1.ImagePrefetch, t *target, w *workload, k *known, active map[string]bool) (all []chosen, beyond int, err error) {
	names, err := r.candidates(object, w)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		node, err := r.cluster.nodes.Get(name)
		has, ok := k.on(name)
		begun := active[name] || entryOf(object, name) != nil
		if err != nil || !ok || !begun && !suits(node, t.tolerations) {
			continue
		}
		all = append(all, chosen{name, has, begun})
	}
	slices.SortFunc(all, func(a, b chosen) int {
		switch {
		case a.begun && !b.begun:
			return -1
		case b.begun && !a.begun:
			return 1
		}
		return cmp.Or(cmp.Compare(a.has.missing, b.has.missing), strings.Compare(a.name, b.name))
	})
	most := len(all)
	if object.Spec.MaxNodes != nil {
		if most, err = intstr.GetScaledValueFromIntOrPercent(object.Spec.MaxNodes, len(all), true); err != nil {
			return nil, 0, invalidError{fmt.Errorf("maxNodes: %w", err)}
		}
	}
	all = all[:max(0, min(most, len(all)))]
	room := v1alpha1.MaxPrefetchedNodes
	fits := all[:0]
	for _, n := range all {
		switch {
		case !n.begun && n.has.has(): // it needs no entry
		case room == 0:
			beyond++
			continue
		default:
			room--
		}
		fits = append(fits, n)
	}
	return fits, beyond, nil
}

// advance has further nodes begin, as far as budgets allow.
func (r *Reconciler) advance(ctx context.Context, object *v1alpha1.ImagePrefetch, t *target, w *workload, active map[string]bool, now time.Time) (time.Duration, error) {
	k := r.cluster.measure(t.images)
	nodes, beyond, err := r.choose(object, t, w, k, active)
	var invalid invalidError
	if errors.As(err, &invalid) {
		return r.finish(ctx, object, nil, v1alpha1.ReasonInvalid, err.Error())
	}
	if err != nil {
		return 0, err
	}
	pulls, err := r.active(ctx, now)
	if err != nil {
		return 0, err
	}
	r.dropOld(now)
	share, err := r.share(ctx, object)
	if err != nil {
		return 0, err
	}
	var ready, given int32
	waiting, full := "", false
	for _, n := range nodes {
		entry := entryOf(object, n.name)
		switch {
		case active[n.name]:
		case entry != nil && entry.Reason == "" || n.has.has():
			ready++
		case entry != nil && entry.Attempts >= maxAttempts:
			given++
		case entry != nil && now.Sub(entry.Time.Time) < firstPause<<(2*(entry.Attempts-1)):
			waiting = cmp.Or(waiting, fmt.Sprintf("%s is tried again: %s: %s", n.name, entry.Reason, entry.Message))
		case n.has.missing == 0:
			waiting = cmp.Or(waiting, n.name+" pulls the layers for other pods")
		case object.Spec.Paused:
		case full:
		case k.awaited && now.Sub(object.Status.StartTime.Time) < awaitManifest:
			waiting = cmp.Or(waiting, "the layers of an image are not known yet")
		default:
			refused, err := r.pull(ctx, object, t, n, &pulls, share, now)
			if err != nil {
				return 0, err
			}
			if full = refused != nil && refused.ofAll; full {
				waiting = refused.reason
			} else if refused != nil {
				waiting = cmp.Or(waiting, n.name+": "+refused.reason)
			}
			if e := entryOf(object, n.name); e != nil && e.Attempts >= maxAttempts {
				given++
			}
		}
	}
	status := &object.Status
	status.NodesWanted, status.NodesReady, status.NodesFailed = int32(len(nodes)+beyond), ready, given+int32(beyond) //nolint:gosec // nodes of a cluster
	switch left := int32(len(nodes)) - ready - given; {                                                              //nolint:gosec // nodes of a cluster
	case len(nodes) == 0 && len(t.images) > 0:
		r.condition(object, metav1.ConditionFalse, v1alpha1.ReasonWaiting, "no node suits, or none runs the workload")
		return poll, nil
	case left == 0 && beyond > 0:
		return r.finish(ctx, object, nil, v1alpha1.ReasonFailed, fmt.Sprintf("%d of %d nodes are more than the %d that one object has: make several, with nodeSelector", beyond, status.NodesWanted, v1alpha1.MaxPrefetchedNodes))
	case left == 0 && given > 0:
		return r.finish(ctx, object, nil, v1alpha1.ReasonFailed, fmt.Sprintf("%d of %d nodes failed", given, status.NodesWanted))
	case left == 0:
		return r.finish(ctx, object, nil, v1alpha1.ReasonComplete, "")
	case object.Spec.Paused:
		r.condition(object, metav1.ConditionFalse, v1alpha1.ReasonPaused, "")
	case waiting != "":
		r.condition(object, metav1.ConditionFalse, v1alpha1.ReasonWaiting, waiting)
	default:
		r.condition(object, metav1.ConditionFalse, v1alpha1.ReasonPulling, "")
	}
	return soon, nil
}

// active returns the pulls that go on: of a namespace no more than it may have, the oldest ones, and none for longer than a pull may
// take. A tenant may make any number of pods in the name of its object, for all nodes, that no scheduler places.
func (r *Reconciler) active(ctx context.Context, now time.Time) (pulls []pull, err error) {
	var all corev1.PodList
	if err := r.client.List(ctx, &all, client.HasLabels{v1alpha1.PrefetchPodLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	for i := range all.Items {
		pod := &all.Items[i]
		delete(r.begun, client.ObjectKeyFromObject(pod))
		if nodeOf(pod) == "" || pod.DeletionTimestamp != nil && now.Sub(pod.DeletionTimestamp.Time) > leaves || now.Sub(pod.CreationTimestamp.Time) > maxDeadline {
			continue
		}
		if is, _, _ := outcomeOf(pod, now); is == pulling {
			pulls = append(pulls, pull{nodeOf(pod), pod.Namespace, pod.Labels[v1alpha1.PrefetchPodLabel], bytesOf(pod, r.options.Budget.NodeBytes), pod.CreationTimestamp.Time})
		}
	}
	slices.SortStableFunc(pulls, func(a, b pull) int { return a.began.Compare(b.began) })
	ofNamespace := map[string]int{}
	pulls = slices.DeleteFunc(pulls, func(p pull) bool {
		ofNamespace[p.namespace]++
		return ofNamespace[p.namespace] > r.options.Budget.PodsPerNamespace
	})
	for key, p := range r.begun {
		if now.Sub(p.began) > firstPause { // it was deleted before the cache had it
			delete(r.begun, key)
			continue
		}
		pulls = append(pulls, p)
	}
	r.metrics.active.Set(float64(len(pulls)))
	return pulls, nil
}

// pull has a node pull if budgets, its link and its disk allow that; refused is why they do not.
func (r *Reconciler) pull(ctx context.Context, object *v1alpha1.ImagePrefetch, t *target, n chosen, pulls *[]pull, share float64, now time.Time) (refused *refusal, err error) {
	node, err := r.cluster.nodes.Get(n.name)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	next := pull{n.name, object.Namespace, sourceOf(object), n.has.missing, now}
	if why := volumesServed(node); why != "" {
		r.fail(object, n.name, "NoImageVolumes", why, metav1.NewTime(now), maxAttempts)
		return nil, nil
	}
	if !suits(node, t.tolerations) {
		return &refusal{reason: "the node is not ready for pods"}, nil
	}
	others := n.has.pending
	for _, p := range *pulls {
		if p.node == n.name {
			others -= p.bytes
		}
	}
	if others > r.options.Budget.PendingBytes {
		return &refusal{reason: "it pulls more than --max-pending-bytes for other pods"}, nil
	}
	if !diskAllows(node, n.has.missing, r.options.Budget.DiskShare) {
		return &refusal{reason: "images would take more than --max-disk-share of its storage"}, nil
	}
	if no := r.options.Budget.allows(r.sums, *pulls, next, share); no != nil && no.never {
		r.fail(object, n.name, "OverBudget", no.reason, metav1.NewTime(now), maxAttempts)
		return nil, nil
	} else if no != nil {
		return no, nil
	}
	var attempt int32
	if entry := entryOf(object, n.name); entry != nil {
		attempt = entry.Attempts
	}
	pod := newPod(object, t, n.name, n.has.missing, attempt, &r.options)
	key := client.ObjectKeyFromObject(pod)
	if _, known := r.begun[key]; known {
		return nil, nil
	}
	err = r.client.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err): // the cache is behind
		return nil, nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		r.fail(object, n.name, string(apierrors.ReasonForError(err)), err.Error(), metav1.NewTime(now), 1)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("creating a pod for node %s: %w", n.name, err)
	}
	r.begun[key] = next
	*pulls = append(*pulls, next)
	r.account(object, n.name, n.has.missing, pod.CreationTimestamp.Time)
	log.FromContext(ctx).Info("A node pulls ahead", "node", n.name, "bytes", n.has.missing, "images", names(t.images))
	return nil, nil
}

// names returns the names of images.
func names(images []imageref.PodImage) (all []string) {
	for _, image := range images {
		all = append(all, image.Name)
	}
	return all
}
