package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/resolver/queue"
)

// A namespace follows no more names than its limit, whatever its workloads name. Others have room,
// its own workload is told, and its names count when there is room again.
func TestNamesAreBounded(t *testing.T) {
	r, _, told := newTestResolver(t, &fakeRegistry{}, func(o *Options, _ *dependencies) {
		o.MaxImages, o.MaxImagesPerNamespace = 200, 100
	})
	var mu sync.Mutex
	asked := map[string]bool{}
	r.queues = runQueues(t, 1, func(_ context.Context, _ *queue.Queue, key string) {
		mu.Lock()
		defer mu.Unlock()
		asked[key] = true
	})
	const cronJobs, each, namesPerImage = 5, 256, 2
	cronJob := func(i int) *batchv1.CronJob {
		o := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i), Namespace: "many"}}
		for n := range each {
			o.Spec.JobTemplate.Spec.Template.Spec.Containers = append(o.Spec.JobTemplate.Spec.Template.Spec.Containers, corev1.Container{Image: fmt.Sprintf("reg/%d:%d", i, n)})
		}
		return o
	}
	h := r.workloadHandler(&kinds[5]) // CronJob
	for i := range cronJobs {
		h.OnAdd(cronJob(i), false)
	}
	if n := len(r.usage.All()); n != namesPerImage*100 {
		t.Errorf("%d names of a namespace are followed, want %d", n, namesPerImage*100)
	}
	if n := len(told.notes); n != cronJobs || !strings.Contains(told.notes[0], v1alpha1.ReasonTooMany) {
		t.Errorf("%d events, want one for each of %d workloads: %.300q", n, cronJobs, told.notes)
	}
	other := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "one"}, Spec: cronJob(9).Spec}
	h.OnAdd(other, false)
	if n := len(r.usage.All()) - namesPerImage*100; n != namesPerImage*100 {
		t.Errorf("another namespace has room for %d names, want %d", n, namesPerImage*100)
	}
	// All together are at their limit. A third one has room for its part.
	deployments := r.workloadHandler(&kinds[1])
	deployments.OnAdd(deploymentOf("", "reg/late:1"), false)
	if !r.usage.InUse("reg/late:1") {
		t.Error("a namespace with one name has no room because others name many")
	}
	h.OnDelete(other)
	for i := range cronJobs - 1 {
		h.OnDelete(cronJob(i))
	}
	for n := range namesPerImage * 100 {
		key := fmt.Sprintf("reg/%d:%d", cronJobs-1, n)
		if !r.usage.InUse(key) {
			t.Fatalf("%s is not followed, although others of its namespace are gone", key)
		}
		if err := poll.Until(t.Context(), 5*time.Millisecond, time.Minute, func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if !asked[key] {
				return fmt.Errorf("%s is not asked for", key)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
