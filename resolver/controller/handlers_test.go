package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A pod that is deleted and created again while nobody watches, like those of
// StatefulSets, comes as an update. The images of the first pod are not in use
// any longer.
func TestReplacedObject(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	handler := r.workloadHandler(&kinds[0])
	pod := func(uid types.UID, image string) any {
		short, err := cached(&corev1.Pod{
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
