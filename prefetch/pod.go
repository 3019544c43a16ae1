package prefetch

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

// contentAnnotation of a pod that pulls is for which spec and images it is (contentOf).
const contentAnnotation = "layerlocality.io/prefetch-content"

// target is what an ImagePrefetch brings to nodes, and as whom.
type target struct {
	images         []imageref.PodImage
	secrets        []corev1.LocalObjectReference
	serviceAccount string
	tolerations    []corev1.Toleration
}

// volumes returns image volumes.
func volumes(images []imageref.PodImage) []corev1.Volume {
	all := make([]corev1.Volume, len(images))
	for i, image := range images {
		all[i] = corev1.Volume{Name: "image-" + strconv.Itoa(i), VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: image.Name, PullPolicy: image.PullPolicy},
		}}
	}
	return all
}

// mounts returns where a container mounts volumes: a kubelet reports a pull that failed only to a container that mounts the
// volume (toKubeContainerImageVolumes in k8s.io/kubernetes/pkg/kubelet/kuberuntime), and creates any other.
func mounts(volumes []corev1.Volume) []corev1.VolumeMount {
	all := make([]corev1.VolumeMount, len(volumes))
	for i := range volumes {
		all[i] = corev1.VolumeMount{Name: volumes[i].Name, MountPath: "/images/" + volumes[i].Name, ReadOnly: true}
	}
	return all
}

// A pod may take leastDeadline to pull, and a second for each slowest bytes, but no more than maxDeadline: a registry that
// is slow on purpose does not hold a node's place for long.
const (
	leastDeadline = 10 * time.Minute
	maxDeadline   = 2 * time.Hour
	slowest       = 1 << 20
)

// deadline returns how long a pod may take for so many bytes, in seconds.
func deadline(bytes int64) int64 {
	return min(int64(leastDeadline/time.Second)+bytes/slowest, int64(maxDeadline/time.Second))
}

// contentOf returns what a pod is about: the spec of its ImagePrefetch, and the images.
func contentOf(object *v1alpha1.ImagePrefetch, t *target) string {
	sum := sha256.Sum256([]byte(strings.Join(names(t.images), " ")))
	return strconv.FormatInt(object.Generation, 10) + "-" + hex.EncodeToString(sum[:5])
}

// nodeOf returns the node on which a pod is to pull, "" if it is none that newPod made: tenants may make pods with its
// label, and change labels and annotations of others, but not their spec.
func nodeOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if pod.Labels[v1alpha1.PrefetchPodLabel] == "" || owner == nil || owner.Kind != "ImagePrefetch" || owner.APIVersion != v1alpha1.GroupVersion.String() ||
		len(pod.Spec.InitContainers) > 0 || len(pod.Spec.Containers) != 1 || pod.Spec.ActiveDeadlineSeconds == nil {
		return ""
	}
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) != 1 || len(terms[0].MatchFields[0].Values) != 1 {
		return ""
	}
	return terms[0].MatchFields[0].Values[0]
}

// newPod returns the pod that has a node pull. It is placed as a DaemonSet places its pods: the
// scheduler sees to taints and room. Pod security "restricted" allows it. Its container runs, and does
// nothing, until the node has reported the images: schedulers do not follow pods that have ended.
func newPod(object *v1alpha1.ImagePrefetch, t *target, node string, bytes int64, attempt int32, options *Options) *corev1.Pod {
	content := contentOf(object, t)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %s %d", object.UID, node, content, attempt))
	var user *int64
	if options.PodUser >= 0 {
		user = ptr.To(options.PodUser)
	}
	quantity := resource.MustParse
	images := volumes(t.images)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: object.Namespace, Name: nameOf(object.Name, sum[:]),
			Labels: map[string]string{v1alpha1.PrefetchPodLabel: sourceOf(object), "app.kubernetes.io/part-of": "layer-locality"},
			Annotations: map[string]string{
				v1alpha1.PrefetchNodeAnnotation: node, v1alpha1.PrefetchBytesAnnotation: strconv.FormatInt(bytes, 10), contentAnnotation: content,
				"cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
				"sidecar.istio.io/inject":                        "false", "linkerd.io/inject": "disabled",
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(object, v1alpha1.GroupVersion.WithKind("ImagePrefetch"))},
		},
		Spec: corev1.PodSpec{
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				}}},
			}}},
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: ptr.To(deadline(bytes)),
			TerminationGracePeriodSeconds: ptr.To[int64](1), PriorityClassName: options.PriorityClass,
			ServiceAccountName: t.serviceAccount, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			ImagePullSecrets: t.secrets, Tolerations: t.tolerations, Volumes: images,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: user, RunAsGroup: user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "none", Image: options.PodImage, ImagePullPolicy: corev1.PullIfNotPresent, VolumeMounts: mounts(images),
				// With a limit of 10m, the runtime takes 11 s to create a container that does nothing.
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("1m"), corev1.ResourceMemory: quantity("1Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: quantity("250m"), corev1.ResourceMemory: quantity("32Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// bytesOf returns how many bytes a pod has its node pull, most at most: whoever may edit pods may write anything there.
func bytesOf(pod *corev1.Pod, most int64) int64 {
	bytes, err := strconv.ParseInt(pod.Annotations[v1alpha1.PrefetchBytesAnnotation], 10, 64)
	if err != nil || bytes < 0 {
		return 0
	}
	return min(bytes, most)
}

// outcome is how far a pod has come.
type outcome int

const (
	pulling outcome = iota
	// pulled: the node has the images.
	pulled
	failed
)

// unschedulable is after how long a pod that fits on no node has failed.
const unschedulable = 30 * time.Second

// notPulled are the reasons for which a container waits whose images, or image volumes, could not be pulled
// (k8s.io/kubernetes/pkg/kubelet/images).
var notPulled = []string{
	"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "SignatureValidationFailed",
	"CreateContainerConfigError", // the user that it is to run as
}

// notCreated are the reasons for which a container waits whose images were pulled: a runtime cannot mount every image.
var notCreated = []string{"CreateContainerError", "RunContainerError"}

// outcomeOf returns how far a pod has come, and why it failed. The kubelet creates a container once it has what that mounts.
func outcomeOf(pod *corev1.Pod, now time.Time) (is outcome, reason, message string) {
	for i := range pod.Status.ContainerStatuses {
		state := &pod.Status.ContainerStatuses[i].State
		if state.Running != nil || state.Terminated != nil && state.Terminated.Reason != "ContainerStatusUnknown" {
			return pulled, "", ""
		}
		w := state.Waiting
		if w != nil && slices.Contains(notCreated, w.Reason) {
			return pulled, "", ""
		}
		if w == nil || !slices.Contains(notPulled, w.Reason) || strings.Contains(w.Message, "pull QPS exceeded") {
			continue
		}
		return failed, w.Reason, w.Message
	}
	if pod.Status.Phase == corev1.PodFailed {
		return failed, cmp.Or(pod.Status.Reason, "PodFailed"), pod.Status.Message
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && now.Sub(pod.CreationTimestamp.Time) >= unschedulable {
			return failed, cmp.Or(c.Reason, corev1.PodReasonUnschedulable), c.Message
		}
	}
	return pulling, "", ""
}
