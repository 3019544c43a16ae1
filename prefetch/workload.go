package prefetch

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/imageref/podtemplate"
)

// workload is an object with a pod template.
type workload struct {
	*unstructured.Unstructured
	template corev1.PodSpec
	selector *metav1.LabelSelector
}

// kindsOf returns the kinds of workloads: those of Kubernetes, and further ones of the form GROUP/VERSION/KIND.
func kindsOf(further []string) ([]schema.GroupVersionKind, error) {
	var kinds []schema.GroupVersionKind
	for _, text := range append([]string{"apps/v1/Deployment", "apps/v1/StatefulSet", "apps/v1/DaemonSet"}, further...) {
		parts := strings.Split(text, "/")
		if len(parts) != 3 || slices.Contains(parts, "") {
			return nil, fmt.Errorf("--workloads: %q: want GROUP/VERSION/KIND, such as argoproj.io/v1alpha1/Rollout", text)
		}
		kinds = append(kinds, schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]})
	}
	return kinds, nil
}

// emptyOf returns an empty object of a kind.
func emptyOf(kind schema.GroupVersionKind) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	return o
}

// workloadOf returns the workload that an object is: it has one pod template and a selector.
func workloadOf(o *unstructured.Unstructured) *workload {
	w := &workload{Unstructured: o}
	if found := podtemplate.In(o.Object); len(found) > 0 {
		w.template = found[0].Template.Spec
		for _, containers := range [][]corev1.Container{w.template.InitContainers, w.template.Containers} {
			for i := range containers {
				c := &containers[i]
				c.ImagePullPolicy = cmp.Or(c.ImagePullPolicy, defaultPolicy(c.Image))
			}
		}
	}
	selector, _, _ := unstructured.NestedMap(o.Object, "spec", "selector")
	of := &metav1.LabelSelector{}
	if selector != nil && runtime.DefaultUnstructuredConverter.FromUnstructured(selector, of) == nil {
		w.selector = of
	}
	return w
}

// defaultPolicy returns the pull policy that the apiserver gives a container without one: SetDefaults_Container in
// k8s.io/kubernetes/pkg/apis/core/v1. It does not look into templates of other kinds than its own.
func defaultPolicy(image string) corev1.PullPolicy {
	if full, err := imageref.Full(image); err == nil && strings.HasSuffix(full.String(), ":latest") {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// getWorkload returns the workload of a name; nil if there is none.
func getWorkload(ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, namespace, name string) (*workload, error) {
	o := emptyOf(kind)
	if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", kind.Kind, namespace, name, err)
	}
	return workloadOf(o), nil
}

// pods returns the pods of the workload that have a node.
func (w *workload) pods(c *Cluster) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil || w.selector == nil {
		return nil, err
	}
	return c.podsOf(w.GetNamespace(), selector)
}

// target returns what an ImagePrefetch brings to nodes. The second result is the workload, if it names one; nil if
// that is not there.
func (r *Reconciler) target(ctx context.Context, object *v1alpha1.ImagePrefetch) (*target, *workload, error) {
	t := &target{}
	var w *workload
	if ref := object.Spec.Workload; ref != nil {
		kind := schema.FromAPIVersionAndKind(cmp.Or(ref.APIVersion, appsv1.SchemeGroupVersion.String()), ref.Kind)
		if !slices.Contains(r.kinds, kind) {
			return nil, nil, invalidError{fmt.Errorf("workload: --workloads of layer-prefetcher does not name %s, kind %s", kind.GroupVersion(), kind.Kind)}
		}
		var err error
		if w, err = getWorkload(ctx, r.client, kind, object.Namespace, ref.Name); err != nil {
			return nil, nil, err
		}
	}
	if w != nil {
		t.images, t.tolerations, t.serviceAccount = imageref.PulledByPod(&w.template), w.template.Tolerations, w.template.ServiceAccountName
		t.secrets = slices.Clone(w.template.ImagePullSecrets)
	}
	if len(object.Spec.Images) > 0 {
		t.images = nil
		for _, name := range object.Spec.Images {
			t.images = imageref.Append(t.images, name, "")
		}
	}
	t.images = t.images[:min(len(t.images), maxImages)]
	for _, name := range object.Spec.ImagePullSecrets {
		t.secrets = append(t.secrets, corev1.LocalObjectReference{Name: name})
	}
	for _, image := range t.images {
		if _, err := imageref.Parse(image.Name); err != nil {
			return nil, w, invalidError{err}
		}
	}
	return t, w, nil
}

// maxImages bounds the images that one pod pulls.
const maxImages = 16

// invalidError is about what the author of an ImagePrefetch wrote.
type invalidError struct{ error }

// nodesOf returns the names of the nodes of pods.
func nodesOf(pods []*corev1.Pod) (names []string) {
	for _, pod := range pods {
		names = append(names, pod.Spec.NodeName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// candidates returns the names of the nodes that an ImagePrefetch is about.
func (r *Reconciler) candidates(object *v1alpha1.ImagePrefetch, w *workload) (names []string, err error) {
	if object.Spec.NodeSelector == nil {
		if w == nil {
			return nil, nil
		}
		pods, err := w.pods(r.cluster)
		return nodesOf(pods), err
	}
	selector, err := metav1.LabelSelectorAsSelector(object.Spec.NodeSelector)
	if err != nil {
		return nil, invalidError{fmt.Errorf("nodeSelector: %w", err)}
	}
	nodes, err := r.cluster.nodes.List(selector)
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	return names, err
}

// usedBytes returns how many of the bytes that a node pulled are of images that pods there have used since; total is what images
// have in all, 0 if that is not known. After is how long after the pull began the first of these pods was made.
func usedBytes(
	n *v1alpha1.PrefetchedNode, images []imageref.PodImage, pods []*corev1.Pod, total func([]imageref.PodImage) int64,
) (bytes int64, after time.Duration) {
	var there, used []imageref.PodImage
	after = math.MaxInt64
	for _, pod := range pods {
		if pod.Spec.NodeName == n.Name && pod.Labels[v1alpha1.PrefetchPodLabel] == "" && !pod.CreationTimestamp.Before(&n.Time) {
			of := imageref.OfPod(&pod.Spec)
			if slices.ContainsFunc(images, func(image imageref.PodImage) bool { return uses(of, image.Name) }) {
				there, after = append(there, of...), min(after, pod.CreationTimestamp.Sub(n.Time.Time))
			}
		}
	}
	for _, image := range images {
		if uses(there, image.Name) {
			used = append(used, image)
		}
	}
	if len(used) == 0 || len(used) == len(images) {
		return n.Bytes * int64(min(len(used), 1)), after
	}
	return min(n.Bytes, cmp.Or(total(used), n.Bytes)), after
}

// uses reports whether an image is among these, or one of the repository of a digest: what a tag that has moved points to.
func uses(there []imageref.PodImage, fetched string) bool {
	full, err := imageref.Full(fetched)
	return err == nil && slices.ContainsFunc(there, func(image imageref.PodImage) bool {
		used, err := imageref.Full(image.Name)
		return err == nil && (full.String() == used.String() || isDigest(fetched) && full.Name() == used.Name())
	})
}

var everything = labels.Everything()
