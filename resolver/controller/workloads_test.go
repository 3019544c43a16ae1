package controller

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/resolver/usage"
)

// The object that the cache keeps gives the same images as the original, and
// informers know it by the same name.
func TestTransformKeepsTheClaim(t *testing.T) {
	meta := metav1.ObjectMeta{
		Name: "one", Namespace: "ns", UID: "1", ResourceVersion: "7", Labels: map[string]string{"app": "x"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Controller: ptr.To(true)}},
	}
	spec := corev1.PodSpec{
		ServiceAccountName: "account",
		ImagePullSecrets:   []corev1.LocalObjectReference{{Name: "b"}, {Name: "a"}},
		InitContainers:     []corev1.Container{{Image: "reg/init:1"}},
		Containers:         []corev1.Container{{Image: "reg/x:1"}, {Image: "reg/y:1"}, {Image: "reg/x:1"}},
		Volumes:            []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "reg/data:1"}}}},
	}
	template := corev1.PodTemplateSpec{Spec: spec}
	objects := []metav1.Object{
		&corev1.Pod{ObjectMeta: meta, Spec: spec},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: template}},
		&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Template: template}},
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: template}},
		&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: template}},
		&batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}},
	}
	if len(objects) != len(kinds) {
		t.Fatalf("%d objects of %d kinds", len(objects), len(kinds))
	}
	for i, object := range objects {
		k := &kinds[i]
		want := usage.WorkloadImages{
			Workload:   corev1.ObjectReference{APIVersion: k.apiVersion, Kind: k.name, Namespace: "ns", Name: "one", UID: "1"},
			Controlled: true, Pull: usage.Pull{Namespace: "ns", ServiceAccount: "account", Secrets: "a,b"},
			Images: []string{"reg/init:1", "reg/x:1", "reg/y:1", "reg/data:1"},
		}
		short, err := k.transform(object)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := short.(*workload); !ok {
			t.Errorf("%s is kept as %T, which takes four times the memory", k.name, short)
		}
		again, err := k.transform(short)
		if err != nil {
			t.Fatal(err)
		}
		for what, of := range map[string]any{"object": object, "kept": short, "kept twice": again} {
			if got, ok := k.imagesOf(of); !ok || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: %+v, want %+v", k.name, what, got, want)
			}
		}
		kept, ok := short.(metav1.Object)
		if !ok || kept.GetNamespace() != "ns" || kept.GetName() != "one" || kept.GetUID() != "1" || kept.GetResourceVersion() != "7" {
			t.Errorf("%s is kept as %+v", k.name, short)
		}
	}
	ended, err := kinds[0].transform(&corev1.Pod{ObjectMeta: meta, Spec: spec, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}})
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := kinds[0].imagesOf(ended); ok {
		t.Errorf("a pod that has ended needs %+v", c)
	}
}

// Whose pods are all made from the template of now; kinds without such a status never are.
func TestSettled(t *testing.T) {
	meta := metav1.ObjectMeta{Generation: 3}
	deployment := func(observed int64, all, updated int32) any {
		return &appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: all, UpdatedReplicas: updated}}
	}
	stateful := func(observed int64, all, updated int32) any {
		return &appsv1.StatefulSet{ObjectMeta: meta, Status: appsv1.StatefulSetStatus{ObservedGeneration: observed, Replicas: all, UpdatedReplicas: updated}}
	}
	daemon := func(observed int64, all, updated int32) any {
		return &appsv1.DaemonSet{ObjectMeta: meta, Status: appsv1.DaemonSetStatus{ObservedGeneration: observed, CurrentNumberScheduled: all, UpdatedNumberScheduled: updated}}
	}
	for kind, object := range map[int]func(int64, int32, int32) any{1: deployment, 2: stateful, 3: daemon} {
		for status, want := range map[[3]int]bool{
			{3, 2, 2}: true,
			{2, 2, 2}: false, // of the template before
			{3, 2, 1}: false, // a pod is still of that one
			{3, 0, 0}: false, // there are none
		} {
			if got := kinds[kind].settled(object(int64(status[0]), int32(status[1]), int32(status[2]))); got != want {
				t.Errorf("%s, observed, pods, updated %v: %v", kinds[kind].name, status, got)
			}
		}
	}
	for active, want := range map[int32]bool{0: false, 1: true} {
		if got := kinds[4].settled(&batchv1.Job{Status: batchv1.JobStatus{Active: active}}); got != want {
			t.Errorf("a Job with %d pods: %v", active, got)
		}
	}
	for _, kind := range []int{0, 5} {
		if kinds[kind].settled != nil {
			t.Errorf("%s is settled", kinds[kind].name)
		}
	}
	// It is part of it, also of what the cache keeps.
	object := deployment(3, 2, 2).(*appsv1.Deployment)
	object.Spec.Template.Spec.Containers = []corev1.Container{{Image: "reg/x:1"}}
	short, err := kinds[1].transform(object)
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := kinds[1].imagesOf(short); !ok || !c.Settled {
		t.Errorf("images %+v", c)
	}
}

// A pod that is deleted and created again while nobody watches, like those of
// StatefulSets, comes as an update. The images of the first pod are not in use
// any longer.
func TestReplacedObject(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	handler := r.workloadHandler(&kinds[0])
	pod := func(uid types.UID, image string) any {
		short, err := kinds[0].transform(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: "ns", UID: uid},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: image}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return short
	}
	handler.OnAdd(pod("1", "reg/old:1"), false)
	handler.OnUpdate(pod("1", "reg/old:1"), pod("2", "reg/new:1"))
	if r.usage.InUse("reg/old:1") || !r.usage.InUse("reg/new:1") {
		t.Errorf("in use: %v", r.usage.All())
	}
	handler.OnDelete(pod("2", "reg/new:1"))
	if images := r.usage.All(); len(images) > 0 {
		t.Errorf("in use: %v", images)
	}
}

// A pod that has ended needs its images no longer.
func TestEndedPods(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		r, _, _ := newTestResolver(t, &fakeRegistry{})
		handler := r.workloadHandler(&kinds[0])
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: "reg/x:1"}}},
		}
		handler.OnAdd(pod, false)
		if !r.usage.InUse("reg/x:1") {
			t.Fatal("not in use")
		}
		ended := pod.DeepCopy()
		ended.Status.Phase = phase
		handler.OnUpdate(pod, ended)
		if r.usage.InUse("reg/x:1") {
			t.Errorf("%s, and in use", phase)
		}
	}
}

// Each pull secret counts once, in whatever order they are named, and a workload without images
// needs nothing.
func TestClaim(t *testing.T) {
	names := func(all ...string) (secrets []corev1.LocalObjectReference) {
		for _, name := range all {
			secrets = append(secrets, corev1.LocalObjectReference{Name: name})
		}
		return secrets
	}
	a, b := deploymentOf("", "reg/x:1"), deploymentOf("default", "reg/x:1")
	a.Spec.Template.Spec.ImagePullSecrets = names("two", "one", "two")
	b.Spec.Template.Spec.ImagePullSecrets = names("one", "two")
	first, ok := kinds[1].imagesOf(a)
	second, also := kinds[1].imagesOf(b)
	if !ok || !also || first.Pull != second.Pull || first.Pull.Secrets != "one,two" {
		t.Errorf("%+v and %+v", first.Pull, second.Pull)
	}
	b.Spec.Template.Spec.Containers = nil
	if c, ok := kinds[1].imagesOf(b); ok {
		t.Errorf("without images: %+v", c)
	}
}

// Of all kinds the cache keeps only what is needed.
func TestCacheTransforms(t *testing.T) {
	for object, by := range CacheOptions().ByObject {
		if by.Transform == nil {
			t.Errorf("%T is kept as it is", object)
		}
	}
	if n := len(CacheOptions().ByObject); n != len(kinds)+2 {
		t.Errorf("%d kinds, want the %d of workloads, Node and ImageManifest", n, len(kinds))
	}
}
