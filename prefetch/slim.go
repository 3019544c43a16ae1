package prefetch

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	case *appsv1.Deployment:
		slimTemplate(o, &o.Spec.Template)
	case *appsv1.StatefulSet:
		o.Spec.VolumeClaimTemplates = nil
		slimTemplate(o, &o.Spec.Template)
	case *appsv1.DaemonSet:
		slimTemplate(o, &o.Spec.Template)
	case *corev1.Pod:
		slimPod(o)
	}
	return object, nil
}

// slimTemplate leaves the images that pods pull, and as whom.
func slimTemplate(owner interface{ SetAnnotations(map[string]string) }, template *corev1.PodTemplateSpec) {
	owner.SetAnnotations(nil)
	spec := template.Spec
	var containers []corev1.Container
	for _, image := range pulledImages(&spec) {
		if len(image.Name) <= maxName && len(containers) < maxImages {
			containers = append(containers, corev1.Container{Image: strings.Clone(image.Name), ImagePullPolicy: image.PullPolicy})
		}
	}
	*template = corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: containers, ServiceAccountName: spec.ServiceAccountName,
		ImagePullSecrets: slimSecrets(spec.ImagePullSecrets),
		Tolerations:      slices.Clone(spec.Tolerations[:min(len(spec.Tolerations), maxTolerations)]),
	}}
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
	if pod.Labels[PodLabel] == "" {
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
