package sim

import (
	"fmt"
	"hash/fnv"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/lab/eval/sim/kubescheduler"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

const namespace = "default"

// nodeObject returns the Node of a machine that just joined. It does not state whether it joins
// downloads: policies with the argument joinsDownloads and without it are compared.
func nodeObject(m *machine) *v1.Node {
	allocatable := v1.ResourceList{
		v1.ResourceCPU:              *resource.NewMilliQuantity(m.MilliCPU, resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(m.Memory, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(m.Pods, resource.DecimalSI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(m.Disk, resource.BinarySI),
	}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, UID: types.UID(m.Name), Labels: map[string]string{v1.LabelHostname: m.Name}},
		Status:     v1.NodeStatus{Allocatable: allocatable, Capacity: allocatable},
	}
	if m.Rack != "" {
		node.Labels[kubescheduler.RackLabel] = m.Rack
	}
	node.Status.NodeInfo.OperatingSystem, node.Status.NodeInfo.Architecture = "linux", "amd64"
	node.Status.Images = statusImages(m)
	return node
}

// statusImages returns what a kubelet reports about the images it listed last.
func statusImages(m *machine) []v1.ContainerImage {
	images := make([]v1.ContainerImage, len(m.listed))
	m.stated = map[*blob]bool{}
	for k, i := range m.listed {
		images[k] = v1.ContainerImage{Names: i.names, SizeBytes: int64(float64(i.size) * m.model.Expansion)}
		if m.namesOnly {
			images[k].Names = append([]string{i.digestName()}, i.names...)
			continue
		}
		var layers []index.Layer
		for _, b := range i.layers {
			m.stated[b] = true
			if b.size >= m.model.MinLayerBytes {
				layers = append(layers, index.Layer{Digest: b.digest, Size: b.size})
			}
		}
		nodestatus.SetLayers(&images[k], layers)
	}
	return images
}

// newPod makes a pod with one container. With app it belongs to a ReplicaSet of
// app, and of its version if that is set. apart keeps two pods of an app from
// sharing a node.
func (r *run) newPod(image, app string, milliCPU, memory int64, apart bool, version string) *pod {
	name := fmt.Sprintf("p%d", r.created)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{
			Name: "main", Image: image, ImagePullPolicy: v1.PullIfNotPresent,
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
				v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
			}},
		}}},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	if app != "" {
		// A hash, because a selector whose value is not a valid label selects
		// nothing.
		hash := fnv.New32a()
		hash.Write([]byte(version))
		template := strconv.FormatUint(uint64(hash.Sum32()), 16)
		p.Labels = map[string]string{"app": app, "pod-template-hash": template}
		set := app + "-" + template
		p.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: types.UID(set), Controller: ptr.To(true),
		}}
		if !r.sets[set] {
			r.sets[set] = true
			r.fail(r.scheduler.Sets.Add(&appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: set, UID: types.UID(set)},
				Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: p.Labels}},
			}))
		}
		if apart {
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
					TopologyKey:   v1.LabelHostname,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
				}},
			}}
		}
	}
	return &pod{object: p, name: image, image: r.images[image], created: r.q.now, milliCPU: milliCPU}
}
