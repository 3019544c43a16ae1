// Package workloads reads which images pods, pod templates and nodes name, and what the
// cache has to keep of them for that.
package workloads

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unique"

	"github.com/distribution/reference"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// Kind is a kind of object that names images.
type Kind struct {
	apiVersion, name string
	Object           client.Object
	// template returns the spec that pods are made from, or nil for any other
	// object.
	template func(any) *corev1.PodSpec
	// settled reports whether an object has pods, and all of them are made from the template
	// it has now. Nil if no field shows that.
	settled func(any) bool
}

// kinds are pods, and the kinds that have a pod template.
var kinds = []Kind{
	{"v1", "Pod", &corev1.Pod{}, func(o any) *corev1.PodSpec {
		pod, ok := o.(*corev1.Pod)
		if !ok || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return nil
		}
		return &pod.Spec
	}, nil},
	{"apps/v1", "Deployment", &appsv1.Deployment{}, func(o any) *corev1.PodSpec {
		if d, ok := o.(*appsv1.Deployment); ok {
			return &d.Spec.Template.Spec
		}
		return nil
	}, func(o any) bool {
		d, ok := o.(*appsv1.Deployment)
		return ok && d.Status.ObservedGeneration == d.Generation && d.Status.Replicas > 0 && d.Status.UpdatedReplicas == d.Status.Replicas
	}},
	{"apps/v1", "StatefulSet", &appsv1.StatefulSet{}, func(o any) *corev1.PodSpec {
		if s, ok := o.(*appsv1.StatefulSet); ok {
			return &s.Spec.Template.Spec
		}
		return nil
	}, func(o any) bool {
		s, ok := o.(*appsv1.StatefulSet)
		return ok && s.Status.ObservedGeneration == s.Generation && s.Status.Replicas > 0 && s.Status.UpdatedReplicas == s.Status.Replicas
	}},
	{"apps/v1", "DaemonSet", &appsv1.DaemonSet{}, func(o any) *corev1.PodSpec {
		if d, ok := o.(*appsv1.DaemonSet); ok {
			return &d.Spec.Template.Spec
		}
		return nil
	}, func(o any) bool {
		d, ok := o.(*appsv1.DaemonSet)
		return ok && d.Status.ObservedGeneration == d.Generation && d.Status.CurrentNumberScheduled > 0 && d.Status.UpdatedNumberScheduled == d.Status.CurrentNumberScheduled
	}},
	{"batch/v1", "Job", &batchv1.Job{}, func(o any) *corev1.PodSpec {
		job, ok := o.(*batchv1.Job)
		if !ok || ended(job) {
			return nil
		}
		return &job.Spec.Template.Spec
	}, func(o any) bool {
		job, ok := o.(*batchv1.Job)
		return ok && job.Status.Active > 0 // the template of a Job stays as it is
	}},
	{"batch/v1", "CronJob", &batchv1.CronJob{}, func(o any) *corev1.PodSpec {
		if c, ok := o.(*batchv1.CronJob); ok {
			return &c.Spec.JobTemplate.Spec.Template.Spec
		}
		return nil
	}, nil},
}

// Kinds returns pods, the kinds of Kubernetes that have a pod template, and those of templates.
func Kinds(templates []Template) []Kind { return append(kindsOf(templates), kinds...) }

// ended reports whether a Job has completed or failed.
func ended(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// Identity returns what identifies an object in events and among workloads.
func (k *Kind) Identity(o metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: k.apiVersion, Kind: k.name, Namespace: unique.Make(o.GetNamespace()).Value(), Name: o.GetName(), UID: o.GetUID(),
	}
}

// ImagesOf returns what an object needs; ok is false if it needs nothing, or has
// ended.
func (k *Kind) ImagesOf(object any) (c usage.WorkloadImages, ok bool) {
	if w, isShort := object.(*workload); isShort {
		return w.images, len(w.images.Images) > 0
	}
	m, isObject := object.(metav1.Object)
	spec := k.template(object)
	if !isObject || spec == nil {
		return usage.WorkloadImages{}, false
	}
	c = usage.WorkloadImages{
		Workload: k.Identity(m), Controlled: metav1.GetControllerOfNoCopy(m) != nil,
		Settled: k.settled != nil && k.settled(object),
	}
	for _, image := range imageref.PulledByPod(spec) {
		// One more character shows that a name is too long.
		c.Images = append(c.Images, unique.Make(image.Name[:min(len(image.Name), imageref.MaxLength+1)]).Value())
	}
	names := make([]string, 0, len(spec.ImagePullSecrets))
	for i := range spec.ImagePullSecrets {
		names = append(names, spec.ImagePullSecrets[i].Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	names = names[:min(len(names), usage.MaxSecrets+1)] // one more shows that there are more
	c.Pull = usage.Pull{
		Namespace: c.Workload.Namespace, ServiceAccount: unique.Make(cmp.Or(spec.ServiceAccountName, usage.DefaultAccount)).Value(),
		Secrets: unique.Make(strings.Join(names, ",")).Value(),
	}
	return c, len(c.Images) > 0
}

// workload is what the cache keeps of an object: the metadata by which
// informers identify it, and its images, none if it needs nothing. A
// Pod with only these data takes four times the memory.
type workload struct {
	metav1.ObjectMeta
	images usage.WorkloadImages
	// registries that the images of a pod's running containers come from.
	registries []string
}

// transform returns the workload of an object.
func (k *Kind) transform(object any) (any, error) {
	m, ok := object.(metav1.Object)
	if _, isShort := object.(*workload); isShort || !ok {
		return object, nil
	}
	c, _ := k.ImagesOf(object)
	return &workload{slimMeta(m), c, RunningFrom(object)}, nil
}

// RunningFrom returns the registries that the images of a pod's running containers come
// from, each once; nil for any other object. The kubelet states these images by digest.
func RunningFrom(object any) (hosts []string) {
	if w, isShort := object.(*workload); isShort {
		return w.registries
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			host, ok := registryOfID(statuses[i].ImageID)
			if statuses[i].State.Running != nil && ok && !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	slices.Sort(hosts)
	return hosts
}

// registryOfID returns the registry in an image ID of the form repository@digest.
func registryOfID(id string) (host string, ok bool) {
	if _, rest, found := strings.Cut(id, "://"); found { // docker-pullable://
		id = rest
	}
	named, err := reference.ParseNormalizedNamed(id)
	if _, digested := named.(reference.Digested); err != nil || !digested || imported.MatchString(named.Name()) {
		return "", false
	}
	return unique.Make(reference.Domain(named)).Value(), true
}

func slimMeta(m metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.GetName(), Namespace: unique.Make(m.GetNamespace()).Value(), UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(),
	}
}

// CacheOptions returns the options of a manager's cache for Add, with the same templates. Of
// 100,000 pods, and of nodes with 50 images each, only what is needed is kept in memory.
func CacheOptions(templates ...Template) crcache.Options {
	by := map[client.Object]crcache.ByObject{}
	for _, k := range Kinds(templates) {
		by[k.Object] = crcache.ByObject{Transform: k.transform}
	}
	by[&corev1.Node{}] = crcache.ByObject{Transform: transform}
	by[&v1alpha1.ImageManifest{}] = crcache.ByObject{Transform: transform}
	return crcache.Options{ByObject: by}
}

var _ cache.TransformFunc = transform

func transform(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Node:
		short := &corev1.Node{ObjectMeta: slimMeta(o)}
		short.Status.NodeInfo.OperatingSystem = unique.Make(o.Status.NodeInfo.OperatingSystem).Value()
		short.Status.NodeInfo.Architecture = unique.Make(o.Status.NodeInfo.Architecture).Value()
		short.Status.NodeInfo.ContainerRuntimeVersion = unique.Make(o.Status.NodeInfo.ContainerRuntimeVersion).Value()
		short.Spec.PodCIDRs = o.Spec.PodCIDRs
		// One image of each registry stands for all of them.
		hosts := RegistriesOf(o)
		names := make([]string, len(hosts))
		for i, host := range hosts {
			names[i] = unique.Make(host + "/image").Value()
		}
		short.Status.Images = []corev1.ContainerImage{{Names: names}}
		for _, reference := range ImagesOn(o) {
			short.Status.Images = append(short.Status.Images, corev1.ContainerImage{Names: []string{unique.Make(reference).Value()}})
		}
		return short, nil
	case *v1alpha1.ImageManifest:
		// The store has the content; the watch shows what is not as it was left.
		return &v1alpha1.ImageManifest{ObjectMeta: slimMeta(o)}, nil
	}
	return object, nil
}

// imported is the name, in full, that containerd's "ctr images import", and so "kind load", gives an image that has none:
// no registry has it (cmd/ctr/commands/images/import.go).
var imported = regexp.MustCompile(`^docker\.io/library/import-\d{4}-\d{2}-\d{2}$`)

// RegistriesOf returns the registries that the images of a node come from.
func RegistriesOf(node *corev1.Node) []string {
	var hosts []string
	for i := range node.Status.Images {
		for _, name := range node.Status.Images[i].Names {
			named, err := reference.ParseNormalizedNamed(name)
			if err != nil || imported.MatchString(named.Name()) {
				continue // "<none>@<none>"
			}
			if host := unique.Make(reference.Domain(named)).Value(); !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	slices.Sort(hosts)
	return hosts
}

// platformPart is how Go names operating systems and architectures.
var platformPart = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// PlatformOf returns the platform that images are resolved for on a node:
// os/architecture; empty if the node reports none, or none that is valid.
func PlatformOf(node *corev1.Node) string {
	info := &node.Status.NodeInfo
	if !platformPart.MatchString(info.OperatingSystem) || !platformPart.MatchString(info.Architecture) {
		return ""
	}
	return info.OperatingSystem + "/" + info.Architecture
}

// HasForeignRuntime reports whether a node states that its container runtime is not CRI-O.
// containerd, and Docker with it, chooses differently among the manifests of an index.
func HasForeignRuntime(node *corev1.Node) bool {
	version := node.Status.NodeInfo.ContainerRuntimeVersion
	return version != "" && !strings.HasPrefix(version, "cri-o://")
}

// NetworksOf returns the valid ones of networks.
func NetworksOf(texts []string) []netip.Prefix {
	networks := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		if network, err := netip.ParsePrefix(text); err == nil {
			networks = append(networks, network.Masked())
		}
	}
	return networks
}

// MaxImagesPerNode bounds the images of a node that are asked for.
const MaxImagesPerNode = 512

// ImagesOn returns the images that a node states by digest, in full: once for each repository
// that it names, since one registry may be denied, private or gone where another has the image. The digest may be that of an index or of a manifest.
func ImagesOn(node *corev1.Node) (references []string) {
	for i := range node.Status.Images {
		var repositories []string
		for _, name := range node.Status.Images[i].Names {
			if !strings.Contains(name, "@") {
				continue
			}
			full, err := imageref.Full(name)
			if err != nil || imported.MatchString(full.Name()) || slices.Contains(repositories, full.Name()) {
				continue // "<none>@<none>", for one
			}
			repositories = append(repositories, full.Name())
			if reference := full.String(); len(references) < MaxImagesPerNode && !slices.Contains(references, reference) {
				references = append(references, reference)
			}
		}
	}
	return references
}
