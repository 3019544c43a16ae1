package layerlocality

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// newTable returns the names that the arguments describe.
func newTable(args *config.LayerLocalityArgs) *imageref.Table {
	short := make(map[string]string, len(args.ShortNames))
	for _, s := range args.ShortNames {
		short[s.Name] = s.Repository
	}
	table := imageref.NewTable(short, args.UnqualifiedRegistries)
	for _, m := range args.Mirrors {
		table.AddMirror(m.Prefix, m.Locations...)
	}
	return table
}

// forEachImage calls f for every image of a pod: of init containers,
// containers and image volumes.
func forEachImage(pod *v1.Pod, f func(image string, policy v1.PullPolicy)) {
	for i := range pod.Spec.InitContainers {
		f(pod.Spec.InitContainers[i].Image, pod.Spec.InitContainers[i].ImagePullPolicy)
	}
	for i := range pod.Spec.Containers {
		f(pod.Spec.Containers[i].Image, pod.Spec.Containers[i].ImagePullPolicy)
	}
	for i := range pod.Spec.Volumes {
		if volume := pod.Spec.Volumes[i].Image; volume != nil && volume.Reference != "" {
			f(volume.Reference, volume.PullPolicy)
		}
	}
}

// maxImages bounds the images of a pod that count.
const maxImages = 256

// wanted returns the images of a pod, each once.
func wanted(pod *v1.Pod, table *imageref.Table, sources []ImageSource) []index.Wanted {
	var images []index.Wanted
	forEachImage(pod, func(image string, policy v1.PullPolicy) {
		if len(images) == maxImages {
			return
		}
		names := table.Candidates(image)
		if len(names) == 0 {
			return
		}
		fresh := policy == v1.PullAlways
		for i := range images {
			if slices.Equal(images[i].Names, names) {
				images[i].Fresh = images[i].Fresh || fresh
				return
			}
		}
		images = append(images, index.Wanted{Names: names, Fresh: fresh, Manifests: manifestsOf(names, sources)})
	})
	return images
}

func manifestsOf(names []imageref.Canonical, sources []ImageSource) []index.Manifest {
	for _, source := range sources {
		for _, name := range names {
			if manifests := source.Manifests(name); manifests != nil {
				return manifests
			}
		}
	}
	return nil
}

// signature returns what decides about the images of a pod: two pods with the
// same one get the same scores.
func signature(pod *v1.Pod, table *imageref.Table) []string {
	var names []string
	forEachImage(pod, func(image string, policy v1.PullPolicy) {
		candidates := []string{string(policy)}
		for _, c := range table.Candidates(image) {
			candidates = append(candidates, string(c))
		}
		if len(candidates) > 1 {
			names = append(names, strings.Join(candidates, " "))
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// progress is how far a pod that was placed is on its node.
type progress int

const (
	pulling progress = iota
	// started: the images of all its containers are there.
	started
	// idle: the kubelet does not pull for it at the moment.
	idle
)

// The reasons for which the kubelet waits before it pulls again, from
// k8s.io/kubernetes/pkg/kubelet/images and k8s.io/cri-api/pkg/errors.
var failedReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "InvalidImageName", "ErrImageNeverPull",
	"RegistryUnavailable", "SignatureValidationFailed",
}

// limited is what the kubelet says of a pull that it only puts off, because it
// starts no more than registryBurst at once.
const limited = "pull QPS exceeded"

func failed(s v1.ContainerStatus) bool {
	w := s.State.Waiting
	return w != nil && slices.Contains(failedReasons, w.Reason) && !strings.Contains(w.Message, limited)
}

func progressOf(pod *v1.Pod) progress {
	status := &pod.Status
	if slices.ContainsFunc(status.InitContainerStatuses, failed) || slices.ContainsFunc(status.ContainerStatuses, failed) {
		return idle
	}
	if status.Phase == v1.PodPending || status.Phase == "" {
		if initializing(pod) {
			return idle
		}
		return pulling
	}
	for i := range status.ContainerStatuses {
		if s := &status.ContainerStatuses[i]; s.ImageID == "" && s.State.Waiting != nil {
			return pulling
		}
	}
	return started
}

// initializing tells whether an init container runs that the others wait for:
// their images are pulled after it.
func initializing(pod *v1.Pod) bool {
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		if s.State.Running == nil {
			continue
		}
		for j := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[j]
			if c.Name == s.Name && (c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways) {
				return true
			}
		}
	}
	return false
}

// placedAt returns when a pod was bound to its node, as far as it says so.
func placedAt(pod *v1.Pod, now time.Time) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.PodScheduled && !c.LastTransitionTime.IsZero() && c.LastTransitionTime.Time.Before(now) {
			return c.LastTransitionTime.Time
		}
	}
	return now
}

// startedAt returns when the last container of a pod started, the zero time if
// no one says.
func startedAt(pod *v1.Pod, now time.Time) (last time.Time) {
	for i := range pod.Status.ContainerStatuses {
		if r := pod.Status.ContainerStatuses[i].State.Running; r != nil && r.StartedAt.After(last) {
			last = r.StartedAt.Time
		}
	}
	if last.After(now) {
		return now
	}
	return last
}
