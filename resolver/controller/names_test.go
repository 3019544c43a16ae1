package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
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
	const cronJobs, each = 5, 256
	cronJob := func(i int) *batchv1.CronJob {
		o := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i), Namespace: "many"}}
		for n := range each {
			o.Spec.JobTemplate.Spec.Template.Spec.Containers = append(o.Spec.JobTemplate.Spec.Template.Spec.Containers, corev1.Container{Image: fmt.Sprintf("reg/%d:%d", i, n)})
		}
		return o
	}
	k := &kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == "CronJob" })]
	h := r.workloadHandler(k)
	for i := range cronJobs {
		h.OnAdd(cronJob(i), false)
	}
	if n := len(r.usage.all()); n != namesPerImage*100 {
		t.Errorf("%d names of a namespace are followed, want %d", n, namesPerImage*100)
	}
	if n := len(told.notes); n != cronJobs || !strings.Contains(told.notes[0], v1alpha1.ReasonTooMany) {
		t.Errorf("%d events, want one for each of %d workloads: %.300q", n, cronJobs, told.notes)
	}
	other := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "one"}, Spec: cronJob(9).Spec}
	h.OnAdd(other, false)
	if n := r.usage.names.each["one"]; n != namesPerImage*100 {
		t.Errorf("another namespace has room for %d names, want %d", n, namesPerImage*100)
	}
	// All together are at their limit. A third one has room for its part.
	deployments := r.workloadHandler(&kinds[1])
	deployments.OnAdd(deploymentOf("", "reg/late:1"), false)
	if !r.usage.inUse("reg/late:1") {
		t.Error("a namespace with one name has no room because others name many")
	}
	h.OnDelete(other)
	for i := range cronJobs - 1 {
		h.OnDelete(cronJob(i))
	}
	for n := range namesPerImage * 100 {
		key := fmt.Sprintf("reg/%d:%d", cronJobs-1, n)
		if !r.usage.inUse(key) {
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

// While others fill all room, a workload keeps its names whatever changes of it, and namespaces have room
// up to what each could have at most, however many small ones there are.
func TestNamesStay(t *testing.T) {
	u, _ := newTestUsage()
	u.names = newNames(limits{all: 500, each: 200})
	list := func(of string, n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("reg/%s-%d:1", of, i))
		}
		return names
	}
	for i := range 100 {
		u.set(imagesFor("w", fmt.Sprint("small-", i), "reg/x:1"))
	}
	honest := imagesFor("w", "honest", list("honest", 50)...)
	u.set(honest)
	for i := range 5 {
		u.set(imagesFor("w", fmt.Sprint("many-", i), list(fmt.Sprint("many-", i), 1000)...))
	}
	if u.names.all < u.names.limit.all || u.names.all > 2*u.names.limit.all {
		t.Errorf("%d names, the limit is %d", u.names.all, u.names.limit.all)
	}
	honest.settled = true
	if changed := u.set(honest); changed.over || len(u.byWorkload[honest.workload].keys) != 50 {
		t.Errorf("%d of 50 names are left after a change of status", len(u.byWorkload[honest.workload].keys))
	}
	if changed := u.set(imagesFor("other", "honest", list("new", 50)...)); changed.over || len(changed.added) != 50 {
		t.Errorf("%d of 50 new names of a namespace with few have room", len(changed.added))
	}
}

// Names longer than possible take no memory.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	c, ok := kinds[1].imagesOf(deploymentOf("", long))
	if n := len(c.images[0]); !ok || n > imageref.MaxLength+1 {
		t.Errorf("%d characters of a name are kept", n)
	}
	if _, err := imageref.Full(c.images[0]); err == nil {
		t.Error("what is left of a name that is too long is a name")
	}
}

// After random workloads, what is counted is what is used, and nobody waits while there is room.
func TestNamesRandomly(t *testing.T) {
	u, _ := newTestUsage()
	u.names = newNames(limits{all: 8, each: 3})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	used := map[corev1.ObjectReference]bool{}
	for range 5000 {
		c := imagesFor(fmt.Sprintf("w%d", random.IntN(20)), fmt.Sprintf("ns%d", random.IntN(5)))
		for range random.IntN(5) {
			c.images = append(c.images, fmt.Sprintf("i%d", random.IntN(12)))
		}
		c.settled = random.IntN(3) == 0
		used[c.workload] = true
		if random.IntN(3) == 0 {
			u.unset(c.workload)
		} else {
			u.set(c)
		}
		u.admit()
		distinct := map[nameUse]int{}
		for _, entry := range u.byWorkload {
			for _, key := range entry.keys {
				distinct[nameUse{entry.pull.namespace, key}]++
			}
			waits := len(entry.keys) < len(keysOf(entry.images))
			if _, over := u.over[entry.pull.namespace][entry]; over && u.names.hasRoom(entry.pull.namespace) || waits != over {
				t.Fatalf("%v: waits %t, noted %t, room %t", entry.workload, waits, over, u.names.hasRoom(entry.pull.namespace))
			}
		}
		each := map[string]int{}
		for use, n := range distinct {
			if each[use.namespace]++; u.names.uses[use] != n {
				t.Fatalf("%v: %d uses, %d are counted", use, n, u.names.uses[use])
			}
		}
		for namespace, n := range each {
			if n > namesPerImage*3 || u.names.each[namespace] != n {
				t.Fatalf("%s: %d names, %d are counted", namespace, n, u.names.each[namespace])
			}
		}
	}
	for w := range used {
		u.unset(w)
	}
	if len(u.over)+len(u.names.uses)+len(u.names.each)+u.names.all != 0 {
		t.Errorf("left over: %v, %+v", u.over, u.names)
	}
}

func keysOf(names []string) map[string]bool {
	distinct := map[string]bool{}
	for _, name := range names {
		distinct[name] = true
	}
	return distinct
}
