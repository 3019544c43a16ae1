package prefetch

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

// What is kept of a pod and of a template: tenants write these, and an object may have 1.5 MiB.
const (
	maxSecrets     = 32
	maxTolerations = 64
	// maxSecretName is the length of the longest name that a Secret can have.
	maxSecretName = 253
	// maxName is more bytes than a valid reference of an image has.
	maxName = 1024
)

// slim removes from objects what nobody here reads, so that the caches keep little of what tenants write.
func slim(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil {
		m.SetManagedFields(nil)
	}
	switch o := object.(type) {
	case *unstructured.Unstructured:
		return slimWorkload(o)
	case *corev1.Pod:
		slimPod(o)
	}
	return object, nil
}

// slimWorkload leaves the images that pods pull, as whom, and which pods these are.
func slimWorkload(o *unstructured.Unstructured) (any, error) {
	w := workloadOf(o)
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: w.template.ServiceAccountName, ImagePullSecrets: slimSecrets(w.template.ImagePullSecrets),
		Tolerations: w.template.Tolerations[:min(len(w.template.Tolerations), maxTolerations)],
	}}
	for _, image := range imageref.PulledByPod(&w.template) {
		if len(image.Name) <= maxName && len(template.Spec.Containers) < maxImages {
			template.Spec.Containers = append(template.Spec.Containers, corev1.Container{Image: image.Name, ImagePullPolicy: image.PullPolicy})
		}
	}
	of, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return nil, err
	}
	slimmed := emptyOf(o.GroupVersionKind())
	slimmed.SetNamespace(o.GetNamespace())
	slimmed.SetName(o.GetName())
	slimmed.SetUID(o.GetUID())
	slimmed.SetResourceVersion(o.GetResourceVersion())
	slimmed.SetDeletionTimestamp(o.GetDeletionTimestamp())
	selector, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "selector")
	slimmed.Object["spec"] = map[string]any{"selector": selector, "template": of}
	return slimmed, nil
}

// slimPod leaves what shows which images a pod needs, and whether newPod made it.
func slimPod(pod *corev1.Pod) {
	for key := range pod.Annotations {
		if !strings.HasPrefix(key, "layerlocality.io/") {
			delete(pod.Annotations, key)
		}
	}
	spec := &pod.Spec
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			*c = corev1.Container{Name: c.Name, Image: shortName(c.Image), ImagePullPolicy: c.ImagePullPolicy, RestartPolicy: c.RestartPolicy}
		}
	}
	spec.Volumes = slices.Clone(slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Image == nil || len(v.Image.Reference) > maxName }))
	spec.ImagePullSecrets = slimSecrets(spec.ImagePullSecrets)
	spec.TopologySpreadConstraints, spec.HostAliases, spec.NodeSelector, spec.ReadinessGates, spec.DNSConfig = nil, nil, nil, nil, nil
	if pod.Labels[v1alpha1.PrefetchPodLabel] == "" {
		spec.Affinity, spec.Tolerations = nil, nil
	}
}

// slimSecrets leaves names that Secrets can have.
func slimSecrets(all []corev1.LocalObjectReference) []corev1.LocalObjectReference {
	usable := slices.DeleteFunc(all, func(ref corev1.LocalObjectReference) bool { return len(ref.Name) > maxSecretName })
	return slices.Clone(usable[:min(len(usable), maxSecrets)])
}

// shortName returns the name of an image; "" for one that is too long for any.
func shortName(image string) string {
	if len(image) > maxName {
		return ""
	}
	return image
}
