package locality

import (
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/layer-locality/layer-locality/imageref"
)

// standing is how far the images of a placed pod have come on its node.
type standing struct {
	// there are the images of which a container was created, or is about to be: the node has them.
	there []imageref.PodImage
	// coming are the images that the node pulls or is going to.
	coming []imageref.PodImage
	// stage is what the kubelet does about the latter.
	stage stage
}

// stage is what a kubelet does about the images that a pod still lacks.
type stage int

const (
	// taking: it has not written a status of the pod.
	taking stage = iota
	// preparing: it mounts volumes and makes the sandbox, and pulls afterwards.
	preparing
	// initializing: an init container has to finish before it pulls.
	initializing
	// pulling: it pulls.
	pulling
)

func (s standing) equal(other standing) bool {
	return s.stage == other.stage && slices.Equal(s.there, other.there) && slices.Equal(s.coming, other.coming)
}

// The reasons for which a container waits, as the kubelet writes them, from
// k8s.io/kubernetes/pkg/kubelet/{images,kuberuntime,container} and k8s.io/cri-api/pkg/errors.
// All others mean that its image is not there yet, unless the status has an image ID.
var (
	// notPulled: the image could not be pulled; the kubelet tries again later, if at all.
	notPulled = []string{
		"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "InvalidImageName", "ErrImageNeverPull",
		"RegistryUnavailable", "SignatureValidationFailed",
	}
	// afterPull: the image is there, and something else is in the way.
	afterPull = []string{
		"CreateContainerConfigError", "PreCreateHookError", "CreateContainerError", "PreStartHookError", "PostStartHookError",
		"RunContainerError", "RestartingAllContainers",
	}
)

// limited is the kubelet's message for a pull that it only postpones, because
// it starts no more than registryBurst at once.
const limited = "pull QPS exceeded"

// presence is whether the node of a pod has the image of one of its containers.
type presence int

const (
	absent presence = iota
	present
	// failed: it was not to be had.
	failed
)

// presenceOf returns whether the image of a container is there. s is nil if the kubelet has
// written no status of the container, which runs is about: the pod is not pending any more. changed, if not nil, is the
// status at the moment at which the image was changed in place.
func presenceOf(s *v1.ContainerStatus, runs bool, changed *v1.ContainerStatus) presence {
	if s == nil {
		if runs && changed == nil {
			return present
		}
		return absent
	}
	w := s.State.Waiting
	fails := w != nil && slices.Contains(notPulled, w.Reason) && !strings.Contains(w.Message, limited)
	switch {
	case changed != nil && fails && changed.State.Waiting != nil && *changed.State.Waiting == *w:
		return absent // that is the image before
	case changed != nil && fails:
		return failed
	case w != nil && slices.Contains(afterPull, w.Reason):
		return present
	case changed != nil:
		return absent
	case s.ImageID != "" || s.State.Running != nil || s.State.Terminated != nil:
		return present // the kubelet leaves the ID out for containers that are not found any more
	case fails:
		return failed
	}
	return absent
}

// standingOf returns how far the images of a pod have come. changed are those of its containers
// whose image was changed in place and is not there yet.
func standingOf(pod *v1.Pod, changed map[string]*v1.ContainerStatus) (s standing) {
	spec, status := &pod.Spec, &pod.Status
	runs := status.Phase != v1.PodPending && status.Phase != ""
	began, refused, waits := runs, false, false
	add := func(image string, policy v1.PullPolicy, is presence) {
		switch is {
		case present:
			began = true
			s.there = imageref.Append(s.there, image, policy)
		case absent:
			s.coming = imageref.Append(s.coming, image, policy)
		case failed:
			refused = true
		}
	}
	for i := range spec.InitContainers {
		c, of := &spec.InitContainers[i], statusOf(status.InitContainerStatuses, spec.InitContainers[i].Name)
		is := presenceOf(of, runs, changed[c.Name])
		add(c.Image, c.ImagePullPolicy, is)
		if is == present && of != nil && !runs {
			// The kubelet goes on once a sidecar has started, or another one has succeeded.
			done := of.State.Terminated != nil && of.State.Terminated.ExitCode == 0
			if isSidecar(c) {
				done = of.Started != nil && *of.Started
			}
			waits = waits || !done
		}
	}
	initRefused := refused
	for i := range spec.Containers {
		c := &spec.Containers[i]
		add(c.Image, c.ImagePullPolicy, presenceOf(statusOf(status.ContainerStatuses, c.Name), runs, changed[c.Name]))
	}
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i]
		add(c.Image, c.ImagePullPolicy, presenceOf(statusOf(status.EphemeralContainerStatuses, c.Name), false, nil))
	}
	for i := range spec.Volumes { // pulled before the first container is created
		volume := spec.Volumes[i].Image
		switch {
		case volume == nil:
		case began:
			add(volume.Reference, volume.PullPolicy, present)
		case !refused:
			add(volume.Reference, volume.PullPolicy, absent)
		}
	}
	s.coming = slices.DeleteFunc(s.coming, func(c imageref.PodImage) bool {
		// The kubelet does not come to the others while an image of an init container fails.
		return initRefused || slices.ContainsFunc(s.there, func(t imageref.PodImage) bool { return t.Name == c.Name })
	})
	_, ready := podutil.GetPodCondition(status, v1.PodReadyToStartContainers)
	switch {
	case len(s.coming) == 0:
	case waits:
		s.stage = initializing
	case ready != nil && ready.Status == v1.ConditionFalse:
		s.stage = preparing
	case len(status.InitContainerStatuses)+len(status.ContainerStatuses) > 0:
		s.stage = pulling
	}
	return s
}

func isSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

func statusOf(statuses []v1.ContainerStatus, name string) *v1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// since returns when a condition of a pod last changed, or now if that is not known.
func since(pod *v1.Pod, of v1.PodConditionType, now time.Time) time.Time {
	if _, c := podutil.GetPodCondition(&pod.Status, of); c != nil && !c.LastTransitionTime.IsZero() && c.LastTransitionTime.Time.Before(now) {
		return c.LastTransitionTime.Time
	}
	return now
}

// startedAt returns when the last container of a pod started, or the zero time
// if no status shows it.
func startedAt(pod *v1.Pod, now time.Time) (last time.Time) {
	for s := range statuses(pod) {
		if r := s.State.Running; r != nil && r.StartedAt.After(last) {
			last = r.StartedAt.Time
		}
	}
	if last.After(now) {
		return now
	}
	return last
}

// changedImages has the containers of placed pods whose image was changed in place: their status is that of the image
// before until they are created again.
type changedImages struct {
	mu sync.Mutex
	// statuses are those of such containers at the time of the change, by pod and container.
	statuses map[types.UID]map[string]*v1.ContainerStatus
}

// update notes what changed from one version of a pod to the next. It reports whether the pod has or had
// containers of which the new image is not there yet.
func (c *changedImages) update(old, pod *v1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	note := func(before, after []v1.Container, statuses []v1.ContainerStatus, counts func(*v1.Container) bool) {
		for i := range after {
			if i >= len(before) || before[i].Name != after[i].Name || before[i].Image == after[i].Image || !counts(&after[i]) {
				continue
			}
			status := statusOf(statuses, after[i].Name)
			if status == nil {
				continue // not begun: it pulls the new one
			}
			if c.statuses == nil {
				c.statuses = map[types.UID]map[string]*v1.ContainerStatus{}
			}
			if c.statuses[pod.UID] == nil {
				c.statuses[pod.UID] = map[string]*v1.ContainerStatus{}
			}
			c.statuses[pod.UID][after[i].Name] = status.DeepCopy()
		}
	}
	if pod.Spec.NodeName != "" && old.Spec.NodeName != "" {
		pending := pod.Status.Phase == v1.PodPending // init containers do not run again
		note(old.Spec.InitContainers, pod.Spec.InitContainers, pod.Status.InitContainerStatuses, func(c *v1.Container) bool { return pending || isSidecar(c) })
		note(old.Spec.Containers, pod.Spec.Containers, pod.Status.ContainerStatuses, func(*v1.Container) bool { return true })
	}
	return c.statuses[pod.UID] != nil
}

// of returns the containers of a pod of which the new image is not there yet; nil if there are none.
func (c *changedImages) of(pod *v1.Pod) map[string]*v1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := map[string]*v1.ContainerStatus{} // the answer is read without the lock
	for name, before := range c.statuses[pod.UID] {
		s := statusOf(pod.Status.ContainerStatuses, name)
		if s == nil {
			s = statusOf(pod.Status.InitContainerStatuses, name)
		}
		if s == nil || s.ContainerID == before.ContainerID {
			open[name] = before
		}
	}
	if len(open) == 0 {
		delete(c.statuses, pod.UID)
		return nil
	}
	c.statuses[pod.UID] = open
	return open
}

func (c *changedImages) forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.statuses, pod)
}
