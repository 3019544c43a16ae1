package prefetch

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

// workload is an object with a pod template.
type workload struct {
	object   client.Object
	kind     string
	template *corev1.PodSpec
	selector *metav1.LabelSelector
	replicas int32
}

// workloadOf returns the workload that an object is; nil if it is none.
func workloadOf(object client.Object) *workload {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &workload{o, "Deployment", &o.Spec.Template.Spec, o.Spec.Selector, ptr.Deref(o.Spec.Replicas, 1)}
	case *appsv1.StatefulSet:
		return &workload{o, "StatefulSet", &o.Spec.Template.Spec, o.Spec.Selector, ptr.Deref(o.Spec.Replicas, 1)}
	case *appsv1.DaemonSet:
		return &workload{o, "DaemonSet", &o.Spec.Template.Spec, o.Spec.Selector, o.Status.DesiredNumberScheduled}
	}
	return nil
}

// emptyOf returns an empty object of a kind.
func emptyOf(kind string) client.Object {
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{}
	case "StatefulSet":
		return &appsv1.StatefulSet{}
	case "DaemonSet":
		return &appsv1.DaemonSet{}
	}
	return nil
}

// getWorkload returns the workload of a name; nil if there is none.
func getWorkload(ctx context.Context, reader client.Reader, namespace, kind, name string) (*workload, error) {
	object := emptyOf(kind)
	if object == nil {
		return nil, nil
	}
	if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", kind, namespace, name, err)
	}
	return workloadOf(object), nil
}

// pulledImages returns the images of a pod that its node may pull.
func pulledImages(spec *corev1.PodSpec) []imageref.PodImage {
	return slices.DeleteFunc(imageref.OfPod(spec), func(image imageref.PodImage) bool { return image.PullPolicy == corev1.PullNever })
}

// maxNodes returns on how many nodes a rollout is worth to be prepared: the last pod finds its image where an earlier one is.
func (w *workload) maxNodes() int { return max(1, int(w.replicas)-1) }

// pods returns the pods of the workload that have a node.
func (w *workload) pods(c *Cluster) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil || w.selector == nil {
		return nil, err
	}
	return c.podsOf(w.object.GetNamespace(), selector)
}

// target returns what an ImagePrefetch brings to nodes. The second result is the workload, if it names one; nil if
// that is not there.
func (r *Reconciler) target(ctx context.Context, object *v1alpha1.ImagePrefetch) (*target, *workload, error) {
	t := &target{}
	var w *workload
	if ref := object.Spec.Workload; ref != nil {
		var err error
		if w, err = getWorkload(ctx, r.client, object.Namespace, ref.Kind, ref.Name); err != nil {
			return t, nil, err
		}
	}
	if w != nil {
		t.images, t.tolerations, t.serviceAccount = pulledImages(w.template), w.template.Tolerations, w.template.ServiceAccountName
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

// candidates returns the names of the nodes that an ImagePrefetch is about.
func (r *Reconciler) candidates(object *v1alpha1.ImagePrefetch, w *workload) (names []string, err error) {
	if object.Spec.NodeSelector == nil {
		if w == nil {
			return nil, nil
		}
		pods, err := w.pods(r.cluster)
		for _, pod := range pods {
			names = append(names, pod.Spec.NodeName)
		}
		slices.Sort(names)
		return slices.Compact(names), err
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

// uses reports whether a pod uses an image of these, or one of the repository of a digest: what a tag that has moved points to.
func uses(pod *corev1.Pod, images []imageref.PodImage) bool {
	for _, image := range imageref.OfPod(&pod.Spec) {
		used, err := imageref.Full(image.Name)
		if err != nil {
			continue
		}
		for _, fetched := range images {
			full, err := imageref.Full(fetched.Name)
			if err == nil && (full.String() == used.String() || isDigest(fetched.Name) && full.Name() == used.Name()) {
				return true
			}
		}
	}
	return false
}

var everything = labels.Everything()
