package prefetch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

// TestMany: of 500 objects of ten namespaces, each for a node, no more pull at a time than there may be, and each does once, although
// the cache is behind.
func TestMany(t *testing.T) {
	const objects, namespaces, nodes = 500, 10, 20
	random := rand.New(rand.NewPCG(1, 2))
	api := fake.NewClientBuilder().WithScheme(scheme(t)).Build()
	var shown corev1.PodList
	made, now := 0, begin
	behind := interceptor.NewClient(api, interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			shown.DeepCopyInto(list.(*corev1.PodList))
			return nil
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			object.SetCreationTimestamp(metav1.NewTime(now))
			err := c.Create(ctx, object, opts...)
			if err == nil {
				made++
			}
			return err
		},
	})
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for i := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := indexer.Add(node); err != nil {
			t.Fatal(err)
		}
	}
	budget := DefaultBudget()
	budget.Pods, budget.PodsPerNode, budget.PodsPerNamespace = 12, 2, 3
	r, err := newReconciler(behind, &Cluster{nodes: corelisters.NewNodeLister(indexer)}, Options{Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	images := &target{images: []imageref.PodImage{{Name: "app:1"}}}
	var left []*v1alpha1.ImagePrefetch
	on := map[types.UID]string{}
	for i := range objects {
		object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%namespaces), Name: fmt.Sprint("o", i), UID: types.UID(fmt.Sprint(i))}}
		left, on[object.UID] = append(left, object), fmt.Sprint("n", random.IntN(nodes))
	}
	seen := map[types.UID]bool{} // by the cache: pods, and the objects that they are for
	for round := 0; len(left) > 0; round++ {
		if round == 10*objects {
			t.Fatalf("%d objects have not had their turn", len(left))
		}
		now = now.Add(time.Second)
		r.clock = clocktesting.NewFakePassiveClock(now)
		random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		for _, object := range left[:min(len(left), 20)] {
			pulls, err := r.active(t.Context(), now)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.pull(t.Context(), object, images, chosen{name: on[object.UID], has: onNode{missing: 1}}, &pulls, 1, now); err != nil {
				t.Fatal(err)
			}
		}
		var pods corev1.PodList
		if err := api.List(t.Context(), &pods); err != nil {
			t.Fatal(err)
		}
		all, ofNode, ofNamespace := 0, map[string]int{}, map[string]int{}
		for i := range pods.Items {
			pod := &pods.Items[i]
			done := len(pod.Status.ContainerStatuses) > 0
			if !done {
				all++
				ofNode[nodeOf(pod)]++
				ofNamespace[pod.Namespace]++
			}
			switch later := random.IntN(3) > 0; {
			case later:
			case !done: // its node has pulled
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
				err = api.Status().Update(t.Context(), pod)
			case seen[types.UID(pod.Name)]:
				err = api.Delete(t.Context(), pod)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if all > budget.Pods || slices.Max(append(slices.Collect(maps.Values(ofNode)), 0)) > budget.PodsPerNode ||
			slices.Max(append(slices.Collect(maps.Values(ofNamespace)), 0)) > budget.PodsPerNamespace {
			t.Fatalf("round %d: %d pods pull, of nodes %v, of namespaces %v", round, all, ofNode, ofNamespace)
		}
		if round%10 == 0 || random.IntN(4) == 0 {
			if err := api.List(t.Context(), &shown); err != nil {
				t.Fatal(err)
			}
			for i := range shown.Items {
				seen[types.UID(shown.Items[i].Name)], seen[shown.Items[i].OwnerReferences[0].UID] = true, true
			}
			left = slices.DeleteFunc(left, func(object *v1alpha1.ImagePrefetch) bool { return seen[object.UID] })
		}
	}
	if made != objects {
		t.Errorf("%d pods for %d objects", made, objects)
	}
}

// oneFailed returns an API with two pods of an object: that on n1 has pulled, that on n2 has failed.
func oneFailed(t *testing.T, object *v1alpha1.ImagePrefetch, images *target) client.Client {
	t.Helper()
	builder := fake.NewClientBuilder().WithScheme(scheme(t))
	for node, state := range map[string]corev1.ContainerState{
		"n1": {Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(begin)}}, "n2": {Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}},
	} {
		pod := newPod(object, images, node, 5, 0, &Options{})
		pod.CreationTimestamp = metav1.NewTime(begin)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state}}
		builder.WithObjects(pod)
	}
	return builder.Build()
}

// TestNothingIsLost: a pod that is done stays until the status has what became of it. Whoever leads next, or comes too late, finds it.
func TestNothingIsLost(t *testing.T) {
	object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "o", UID: "1"}}
	images := &target{images: []imageref.PodImage{{Name: "app:1"}}}
	api := oneFailed(t, object, images)
	cluster, err := newCluster(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, object *v1alpha1.ImagePrefetch, after time.Duration, left ...string) {
		t.Helper()
		r, err := newReconciler(api, cluster, Options{Budget: DefaultBudget()}) // another process
		if err != nil {
			t.Fatal(err)
		}
		r.events, r.clock = events.NewFakeRecorder(10), clocktesting.NewFakePassiveClock(begin.Add(after))
		pods, err := r.podsOf(t.Context(), object, images)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.observe(t.Context(), object, images, pods); err != nil {
			t.Fatal(err)
		}
		var nodes []string
		pods, err = r.podsOf(t.Context(), object, images)
		for _, pod := range pods {
			nodes = append(nodes, nodeOf(pod))
		}
		if slices.Sort(nodes); err != nil || !slices.Equal(nodes, left) {
			t.Errorf("%s: pods on %v, error %v, want those on %v", what, nodes, err, left)
		}
		if s := &object.Status; len(s.Nodes) != 2 || s.BytesMoved != 5 || entryOf(object, "n2").Attempts != 1 {
			t.Errorf("%s: %+v", what, s)
		}
	}
	expect("seen, but not written", object.DeepCopy(), linger, "n1", "n2")
	expect("seen by another", object, 0, "n1", "n2")
	expect("written", object, 0, "n1")
	expect("later", object, linger)
}

// TestFullStatus: pods that the status has no room for are not kept for it.
func TestFullStatus(t *testing.T) {
	object := &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "o", UID: "1"}}
	object.Status.Nodes = make([]v1alpha1.PrefetchedNode, v1alpha1.MaxPrefetchedNodes)
	images := &target{images: []imageref.PodImage{{Name: "app:1"}}}
	cluster, err := newCluster(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := newReconciler(oneFailed(t, object, images), cluster, Options{Budget: DefaultBudget()})
	if err != nil {
		t.Fatal(err)
	}
	r.events, r.clock = events.NewFakeRecorder(10), clocktesting.NewFakePassiveClock(begin)
	pods, err := r.podsOf(t.Context(), object, images)
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d pods, %v", len(pods), err)
	}
	if _, err := r.observe(t.Context(), object, images, pods); err != nil {
		t.Fatal(err)
	}
	if pods, err = r.podsOf(t.Context(), object, images); err != nil || len(pods) != 0 {
		t.Errorf("%d pods are left, %v", len(pods), err)
	}
}
