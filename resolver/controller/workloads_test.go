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
)

// The object that the cache keeps gives the same claim as the original, and
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
		want := claim{
			workload:   corev1.ObjectReference{APIVersion: k.apiVersion, Kind: k.name, Namespace: "ns", Name: "one", UID: "1"},
			controlled: true, pull: pull{namespace: "ns", serviceAccount: "account", secrets: "a,b"},
			images: []string{"reg/init:1", "reg/x:1", "reg/y:1", "reg/data:1"},
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
			if got, ok := k.claimOf(of); !ok || !reflect.DeepEqual(got, want) {
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
	if c, ok := kinds[0].claimOf(ended); ok {
		t.Errorf("a pod that has ended needs %+v", c)
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
	if r.usage.inUse("reg/old:1") || !r.usage.inUse("reg/new:1") {
		t.Errorf("in use: %v", r.usage.all())
	}
	handler.OnDelete(pod("2", "reg/new:1"))
	if images := r.usage.all(); len(images) > 0 {
		t.Errorf("in use: %v", images)
	}
}
