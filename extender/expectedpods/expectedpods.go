// Package expectedpods has the pods for which an agent has answered and whose binding does not
// show yet. An extender sees neither Reserve nor the binding itself: the next pod may come
// before the last one shows.
package expectedpods

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"
)

const (
	// Timeout is how long an answer counts if no binding shows.
	Timeout = 5 * time.Second
	// Most is how many answers count at once. Further ones do not: more than a scheduler
	// gives in that time, if the apiserver answers at all.
	Most = 1024
	// MaxPod is how many bytes a pod may have of which an answer counts, as Slim leaves it:
	// Most of them are 16 MiB. Who asks may make up a pod of megabytes.
	MaxPod = 16 << 10
)

// Slim returns a copy of a pod with what is needed to expect it on a node: its identity, its
// scheduler, its images and its requests. ok is false if that is more than MaxPod.
func Slim(pod *v1.Pod) (slim *v1.Pod, ok bool) {
	slim = &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
		Spec: v1.PodSpec{
			SchedulerName: pod.Spec.SchedulerName, NodeName: pod.Spec.NodeName,
			InitContainers: containers(pod.Spec.InitContainers), Containers: containers(pod.Spec.Containers),
			Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
		},
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Image != nil {
			slim.Spec.Volumes = append(slim.Spec.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{Image: volume.Image}})
		}
	}
	if slim.Size() > MaxPod {
		return nil, false
	}
	return slim.DeepCopy(), true // nothing of the request stays in memory with it
}

func containers(all []v1.Container) (slim []v1.Container) {
	for i := range all {
		c := &all[i]
		slim = append(slim, v1.Container{
			Name: c.Name, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, Resources: c.Resources,
			RestartPolicy: c.RestartPolicy, // an init container that goes on requests otherwise
		})
	}
	return slim
}

// Pod is a pod that is expected on a node.
type Pod struct {
	Pod  *v1.Pod // as Slim leaves it
	Node string
	// Info is the pod as one of the node's.
	Info *framework.PodInfo

	until time.Time
}

// Table has the expected pods of an agent. It is not safe for concurrent use.
type Table struct {
	clock clock.PassiveClock
	pods  map[types.UID]*Pod
}

// New returns an empty Table.
func New(c clock.PassiveClock) *Table {
	return &Table{clock: c, pods: map[types.UID]*Pod{}}
}

// Len returns how many pods are expected.
func (t *Table) Len() int { return len(t.pods) }

// Full reports whether there is no room for another pod.
func (t *Table) Full() bool { return len(t.pods) >= Most }

// Add notes that a pod, as Slim leaves it, is expected on a node, instead of what was noted of
// it before.
func (t *Table) Add(pod *v1.Pod, node string) {
	placed := *pod
	placed.Spec.NodeName = node
	info, _ := framework.NewPodInfo(&placed) // an error is of terms of affinity: Slim leaves none
	t.pods[pod.UID] = &Pod{Pod: pod, Node: node, Info: info, until: t.clock.Now().Add(Timeout)}
}

// Take removes and returns what is noted of a pod; nil if that is nothing.
func (t *Table) Take(pod types.UID) *Pod {
	a := t.pods[pod]
	delete(t.pods, pod)
	return a
}

// Each calls a function with each pod, in no order.
func (t *Table) Each(do func(*Pod)) {
	for _, a := range t.pods {
		do(a)
	}
}

// Settle removes the pods that need no expectation any more: those that have a node, and
// those whose time is over. It calls placed with the former and their node, and over with
// the latter. node returns the node of a pod, empty if it has none.
func (t *Table) Settle(node func(*v1.Pod) string, placed func(a *Pod, node string), over func(*Pod)) {
	now := t.clock.Now()
	for uid, a := range t.pods {
		if on := node(a.Pod); on != "" {
			delete(t.pods, uid)
			placed(a, on)
		} else if !now.Before(a.until) {
			delete(t.pods, uid)
			over(a)
		}
	}
}
