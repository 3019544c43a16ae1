package controller

import (
	"cmp"
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
)

// kind is a kind of object that names images.
type kind struct {
	apiVersion, name string
	object           client.Object
	// template returns the spec that pods are made from, or nil for any other
	// object.
	template func(any) *corev1.PodSpec
}

// kinds are pods, and the kinds that have a pod template.
var kinds = []kind{
	{"v1", "Pod", &corev1.Pod{}, func(o any) *corev1.PodSpec {
		pod, ok := o.(*corev1.Pod)
		if !ok || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return nil
		}
		return &pod.Spec
	}},
	{"apps/v1", "Deployment", &appsv1.Deployment{}, func(o any) *corev1.PodSpec {
		if d, ok := o.(*appsv1.Deployment); ok {
			return &d.Spec.Template.Spec
		}
		return nil
	}},
	{"apps/v1", "StatefulSet", &appsv1.StatefulSet{}, func(o any) *corev1.PodSpec {
		if s, ok := o.(*appsv1.StatefulSet); ok {
			return &s.Spec.Template.Spec
		}
		return nil
	}},
	{"apps/v1", "DaemonSet", &appsv1.DaemonSet{}, func(o any) *corev1.PodSpec {
		if d, ok := o.(*appsv1.DaemonSet); ok {
			return &d.Spec.Template.Spec
		}
		return nil
	}},
	{"batch/v1", "Job", &batchv1.Job{}, func(o any) *corev1.PodSpec {
		job, ok := o.(*batchv1.Job)
		if !ok || ended(job) {
			return nil
		}
		return &job.Spec.Template.Spec
	}},
	{"batch/v1", "CronJob", &batchv1.CronJob{}, func(o any) *corev1.PodSpec {
		if c, ok := o.(*batchv1.CronJob); ok {
			return &c.Spec.JobTemplate.Spec.Template.Spec
		}
		return nil
	}},
}

// ended reports whether a Job has completed or failed.
func ended(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// identity returns what identifies an object in events and among claims.
func (k *kind) identity(o metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: k.apiVersion, Kind: k.name, Namespace: unique.Make(o.GetNamespace()).Value(), Name: o.GetName(), UID: o.GetUID(),
	}
}

// claimOf returns what an object needs; ok is false if it needs nothing, or has
// ended.
func (k *kind) claimOf(object any) (c claim, ok bool) {
	if w, isShort := object.(*workload); isShort {
		return w.claim, len(w.claim.images) > 0
	}
	m, isObject := object.(metav1.Object)
	spec := k.template(object)
	if !isObject || spec == nil {
		return claim{}, false
	}
	c = claim{workload: k.identity(m), controlled: metav1.GetControllerOfNoCopy(m) != nil}
	for _, image := range imageref.OfPod(spec) {
		c.images = append(c.images, unique.Make(image.Name).Value())
	}
	names := make([]string, 0, len(spec.ImagePullSecrets))
	for i := range spec.ImagePullSecrets {
		names = append(names, spec.ImagePullSecrets[i].Name)
	}
	slices.Sort(names)
	c.pull = pull{
		namespace: c.workload.Namespace, serviceAccount: unique.Make(cmp.Or(spec.ServiceAccountName, defaultAccount)).Value(),
		secrets: unique.Make(strings.Join(names, ",")).Value(),
	}
	return c, len(c.images) > 0
}

// workload is what the cache keeps of an object: the metadata by which
// informers identify it, and its claim, without images if it needs nothing. A
// Pod with only these data takes four times the memory.
type workload struct {
	metav1.ObjectMeta
	claim claim
}

// transform returns the workload of an object.
func (k *kind) transform(object any) (any, error) {
	m, ok := object.(metav1.Object)
	if _, isShort := object.(*workload); isShort || !ok {
		return object, nil
	}
	c, _ := k.claimOf(object)
	return &workload{slimMeta(m), c}, nil
}

func slimMeta(m metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.GetName(), Namespace: unique.Make(m.GetNamespace()).Value(), UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(),
	}
}

// CacheOptions returns the options of a manager's cache for Add. Of 100,000
// pods, and of nodes with 50 images each, only what is needed is kept in
// memory.
func CacheOptions() crcache.Options {
	by := map[client.Object]crcache.ByObject{}
	for i := range kinds {
		by[kinds[i].object] = crcache.ByObject{Transform: kinds[i].transform}
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
		// One image of each registry stands for all of them.
		hosts := registriesOf(o)
		names := make([]string, len(hosts))
		for i, host := range hosts {
			names[i] = unique.Make(host + "/image").Value()
		}
		short.Status.Images = []corev1.ContainerImage{{Names: names}}
		return short, nil
	case *v1alpha1.ImageManifest:
		// The layers are for the scheduler; only digest and references are needed
		// here.
		short := &v1alpha1.ImageManifest{ObjectMeta: slimMeta(o), Spec: o.Spec, Status: o.Status}
		short.Spec.Layers = nil
		return short, nil
	}
	return object, nil
}

// registriesOf returns the registries that the images of a node come from.
func registriesOf(node *corev1.Node) []string {
	var hosts []string
	for i := range node.Status.Images {
		for _, name := range node.Status.Images[i].Names {
			named, err := reference.ParseNormalizedNamed(name)
			if err != nil {
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

// platformOf returns the platform that images are resolved for on a node:
// os/architecture; empty if the node reports none, or none that is valid.
func platformOf(node *corev1.Node) string {
	info := &node.Status.NodeInfo
	if !platformPart.MatchString(info.OperatingSystem) || !platformPart.MatchString(info.Architecture) {
		return ""
	}
	return info.OperatingSystem + "/" + info.Architecture
}
