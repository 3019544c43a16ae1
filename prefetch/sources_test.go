package prefetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

func deployment(namespace, name, image string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	d.Spec.Replicas = ptr.To[int32](3)
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: image, ImagePullPolicy: corev1.PullAlways}}
	return d
}

func scheme(t *testing.T) *apiruntime.Scheme {
	t.Helper()
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		t.Fatal(err)
	}
	return clientgoscheme.Scheme
}

// unstructuredOf returns an object as the cache has it.
func unstructuredOf(t *testing.T, apiVersion, kind string, object any) *unstructured.Unstructured {
	t.Helper()
	fields, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: fields}
	o.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	return o
}

// TestOneWorkloadStopsNoOthers: what the API server refuses, or does not answer, for the first workload of a tag is not that
// of the others, and only what may succeed later is tried again.
func TestOneWorkloadStopsNoOthers(t *testing.T) {
	const tag, of = "registry.example/app:1", "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "imageprefetches"}
	for name, test := range map[string]struct {
		err   error
		again bool
	}{
		"a quota":           {apierrors.NewForbidden(resource, "x", errors.New("exceeded quota")), true},
		"an invalid object": {apierrors.NewInvalid(schema.GroupKind{}, "x", nil), false},
		"too large":         {apierrors.NewRequestEntityTooLargeError("x"), false},
		"a webhook":         {apierrors.NewInternalError(errors.New("failed calling webhook")), true},
	} {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder().WithScheme(scheme(t))
			var pods []*corev1.Pod
			for _, namespace := range []string{"a", "b", "c", "without-nodes"} {
				builder.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, deployment(namespace, "app", tag))
				pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "app", Labels: map[string]string{"app": "app"}}, Spec: corev1.PodSpec{NodeName: "n1"}})
			}
			pods[3].Spec.NodeName = ""
			api := interceptor.NewClient(builder.Build(), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
					if object.GetNamespace() == "a" {
						return test.err
					}
					return c.Create(ctx, object, opts...)
				},
			})
			r, err := newReconciler(api, clusterOf(pods...), Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := newSources(r, AutomaticSources)
			s.tags[tag] = confirmed{of, time.Now()}
			if _, err := s.tag(t.Context(), cause{source: SourceTag, name: tag}); (err != nil) != test.again {
				t.Errorf("error %v, is it tried again: want %t", err, test.again)
			}
			var all v1alpha1.ImagePrefetchList
			if err := api.List(t.Context(), &all); err != nil || len(all.Items) != 2 {
				t.Errorf("%d objects, error %v: want those of b and c", len(all.Items), err)
			}
		})
	}
}

// clusterOf returns one that has pods.
func clusterOf(pods ...*corev1.Pod) *Cluster {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, pod := range pods {
		_ = store.Add(pod) // it has a key
	}
	return &Cluster{pods: corelisters.NewPodLister(store)}
}

// TestNodesOfARollout: all nodes of a workload but one are prepared. If they are one, the first pod is all, and nothing is done unless the
// rollout is held.
func TestNodesOfARollout(t *testing.T) {
	const kind, old, wanted = "Deployment", "registry.example/app:1", "registry.example/app:2"
	pods := func(on ...string) (all []*corev1.Pod) {
		for i, node := range on {
			image := old
			if strings.HasPrefix(node, "new ") {
				image = wanted
			}
			all = append(all, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i), Labels: map[string]string{"app": "app"}},
				Spec:       corev1.PodSpec{NodeName: strings.TrimPrefix(node, "new "), Containers: []corev1.Container{{Name: "main", Image: image}}},
			})
		}
		return all
	}
	for name, test := range map[string]struct {
		at   map[time.Duration][]*corev1.Pod
		want int // nodes; 0: no object
	}{
		"on three nodes":             {map[time.Duration][]*corev1.Pod{0: pods("n1", "n2", "n2", "n3")}, 2},
		"on two, and a new one":      {map[time.Duration][]*corev1.Pod{0: pods("n1", "n2", "new n3")}, 2},
		"half are new":               {map[time.Duration][]*corev1.Pod{0: pods("new n1", "new n2", "new n3", "n4", "n5", "n6")}, 5},
		"on one, and a new one":      {map[time.Duration][]*corev1.Pod{0: pods("n1", "n1", "new n3")}, 0},
		"on one, and soon a new one": {map[time.Duration][]*corev1.Pod{0: pods("n1"), holding: pods("n1", "new n1")}, 0},
		"on one, too soon":           {map[time.Duration][]*corev1.Pod{0: pods("n1"), holding - 1: pods("n1")}, 0},
		"on one, held":               {map[time.Duration][]*corev1.Pod{0: pods("n1", "n1"), holding: pods("n1", "n1")}, 1},
		"all are new":                {map[time.Duration][]*corev1.Pod{0: pods("new n1", "new n2")}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, deployment("a", "app", wanted)).Build()
			r, err := newReconciler(api, nil, Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := newSources(r, AutomaticSources)
			e := cause{SourceTemplate, schema.FromAPIVersionAndKind("apps/v1", kind), "a", "app"}
			for _, at := range slices.Sorted(maps.Keys(test.at)) {
				r.clock, r.cluster = clocktesting.NewFakePassiveClock(begin.Add(at)), clusterOf(test.at[at]...)
				if again, err := s.template(t.Context(), e); err != nil || again > holding {
					t.Fatalf("again after %s, error %v", again, err)
				}
			}
			var all v1alpha1.ImagePrefetchList
			if err := api.List(t.Context(), &all); err != nil || len(all.Items) != min(test.want, 1) || test.want > 0 && all.Items[0].Spec.MaxNodes.IntValue() != test.want {
				t.Errorf("%+v, error %v, want %d nodes", all.Items, err, test.want)
			}
		})
	}
}

// passing is a clock on which a second passes whenever it is read.
type passing struct{ clocktesting.FakePassiveClock }

func (c *passing) Now() time.Time {
	c.SetTime(c.FakePassiveClock.Now().Add(time.Second))
	return c.FakePassiveClock.Now()
}

func (c *passing) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// TestHeldRolloutIsSeenAgain: also one that comes to be held while it is looked at.
func TestHeldRolloutIsSeenAgain(t *testing.T) {
	api := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(deployment("a", "app", "registry.example/app:2")).Build()
	r, err := newReconciler(api, clusterOf(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "0", Labels: map[string]string{"app": "app"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}}},
	}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	clock := &passing{}
	clock.SetTime(begin.Add(holding - 2*time.Second))
	s, e := newSources(r, AutomaticSources), cause{SourceTemplate, schema.FromAPIVersionAndKind("apps/v1", "Deployment"), "a", "app"}
	s.clock, s.held[e] = clock, heldRollout{"registry.example/app:2", begin}
	if again, err := s.template(t.Context(), e); err != nil || again <= 0 {
		t.Errorf("again after %s, error %v", again, err)
	}
}

// TestNameOf: names are valid wherever a long one is cut.
func TestNameOf(t *testing.T) {
	for n := range 253 {
		for _, name := range []string{strings.Repeat("a", n) + strings.Repeat(".a", 60), strings.Repeat("a", n) + "---" + strings.Repeat("b", 60)} {
			if errs := validation.IsDNS1123Subdomain(nameOf("x"+name, make([]byte, 32))); len(errs) > 0 {
				t.Fatalf("%q: %v", name, errs)
			}
		}
	}
}

// TestSlim: of objects with all that the API server takes, little is kept; and all that is needed.
func TestSlim(t *testing.T) {
	large := func(i int) string { return strings.Repeat(fmt.Sprint(i%10), 200_000) }
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const objects = 100
	kept := make([]any, 0, 2*objects)
	for i := range objects {
		d := deployment("a", "app", "registry.example/app:1")
		d.Annotations = map[string]string{"x": large(i)}
		template := &d.Spec.Template
		template.Annotations = map[string]string{"x": large(i)}
		template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "X", Value: large(i)}}
		template.Spec.Containers = append(template.Spec.Containers, corev1.Container{Image: "registry.example/" + large(i)})
		template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: large(i)}}}}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"x": large(i), v1alpha1.PrefetchNodeAnnotation: "n1"}}, Spec: *template.Spec.DeepCopy()}
		template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}, {Name: large(i)}}
		pod.Spec.ImagePullSecrets = slices.Clone(template.Spec.ImagePullSecrets)
		for _, object := range []any{unstructuredOf(t, "apps/v1", "Deployment", d), pod} {
			slimmed, err := slim(object)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, slimmed)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / (2 * objects); each > 20_000 {
		t.Errorf("%d bytes an object are kept", each)
	}
	w, pod := workloadOf(kept[0].(*unstructured.Unstructured)), kept[1].(*corev1.Pod)
	images := imageref.PulledByPod(&w.template)
	if len(images) != 1 || images[0].Name != "registry.example/app:1" || images[0].PullPolicy != corev1.PullAlways || w.selector.MatchLabels["app"] != "app" {
		t.Errorf("of the Deployment are kept %v, selector %v", images, w.selector)
	}
	if len(w.template.ImagePullSecrets) != 1 || w.GetUID() != "aapp" || pod.Annotations[v1alpha1.PrefetchNodeAnnotation] != "n1" || pod.Spec.Containers[0].Image == "" {
		t.Errorf("kept: %+v, %+v", w, pod.ObjectMeta)
	}
}

// TestWorkloads: kinds of others are workloads as those of Kubernetes are, if a flag names them.
func TestWorkloads(t *testing.T) {
	rollout := unstructuredOf(t, "argoproj.io/v1alpha1", "Rollout", deployment("a", "web", "registry.example/web:2"))
	daemonSet := unstructuredOf(t, "apps.kruise.io/v1alpha1", "DaemonSet", &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "log"}, Spec: appsv1.DaemonSetSpec{Template: deployment("", "", "registry.example/log:1").Spec.Template},
	})
	api := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, rollout, daemonSet).Build()
	r, err := newReconciler(api, nil, Options{Workloads: []string{"argoproj.io/v1alpha1/Rollout", "apps.kruise.io/v1alpha1/DaemonSet"}})
	if err != nil {
		t.Fatal(err)
	}
	s := newSources(r, AutomaticSources)
	all, err := s.workloads(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%d workloads, error %v", len(all), err)
	}
	for _, w := range all {
		if len(imageref.PulledByPod(&w.template)) != 1 || (w.selector == nil) != (w.GetKind() == "DaemonSet") {
			t.Errorf("%s: images %v, selector %v", w.GetKind(), imageref.PulledByPod(&w.template), w.selector)
		}
		if err := s.create(t.Context(), SourceTemplate, w, "x", v1alpha1.ImagePrefetchSpec{}); err != nil {
			t.Fatal(err)
		}
	}
	var made v1alpha1.ImagePrefetchList
	if err := api.List(t.Context(), &made); err != nil || len(made.Items) != 2 {
		t.Fatalf("%d objects, error %v", len(made.Items), err)
	}
	for i := range made.Items {
		object := &made.Items[i]
		target, w, err := r.target(t.Context(), object)
		if err != nil || w == nil || len(target.images) != 1 || w.GetKind() != object.Spec.Workload.Kind || object.OwnerReferences[0].APIVersion != w.GetAPIVersion() {
			t.Errorf("%+v: %+v, %v, error %v", object, target, w, err)
		}
	}
	var invalid invalidError
	if _, _, err := r.target(t.Context(), &v1alpha1.ImagePrefetch{Spec: v1alpha1.ImagePrefetchSpec{Workload: &v1alpha1.WorkloadReference{APIVersion: "batch/v1", Kind: "Job", Name: "x"}}}); !errors.As(err, &invalid) {
		t.Errorf("a kind that no flag names: %v", err)
	}
	for _, text := range []string{"Rollout", "argoproj.io/Rollout", "argoproj.io//Rollout", "a/b/c/d"} {
		if _, err := kindsOf([]string{text}); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestConfirm: a tag has moved if a later confirmation has another digest, whichever object says so first; what is forgotten, or seen
// for the first time, has not.
func TestConfirm(t *testing.T) {
	r, err := newReconciler(nil, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := newSources(r, AutomaticSources)
	manifest := func(digest string, minute int, names ...string) *v1alpha1.ImageManifest {
		m := &v1alpha1.ImageManifest{}
		for _, name := range names {
			m.Status.References = append(m.Status.References, v1alpha1.ImageReference{Name: name, Digest: digest, LastConfirmed: ptr.To(metav1.NewTime(begin.Add(time.Duration(minute) * time.Minute)))})
		}
		return m
	}
	const tag, other = "registry.example/app:1", "registry.example/app:2"
	for _, step := range []struct {
		what   string
		object *v1alpha1.ImageManifest
		gone   bool
		moved  []string
	}{
		{"new", manifest("a", 0, tag, other, "registry.example/app@a"), false, nil},
		{"confirmed", manifest("a", 1, tag, other), false, nil},
		{"moved", manifest("b", 2, tag, "registry.example/app@b"), false, []string{tag}},
		{"the object that is about to lose it", manifest("a", 1, tag, other), false, nil},
		{"confirmed again", manifest("b", 3, tag), false, nil},
		{"the old one is deleted", manifest("a", 1, tag, other), true, nil},
		{"moved back", manifest("a", 4, tag), false, []string{tag}},
		{"the other was forgotten", manifest("b", 5, other), false, nil},
	} {
		var moved []string
		if step.gone {
			s.forget(cache.DeletedFinalStateUnknown{Obj: step.object}, nil)
		} else {
			for _, c := range s.confirm(step.object) {
				moved = append(moved, c.name)
			}
		}
		if !slices.Equal(moved, step.moved) {
			t.Errorf("%s: moved %q, want %q", step.what, moved, step.moved)
		}
	}
	// An object that stays drops a name.
	s.confirm(manifest("c", 9, tag, other))
	s.forget(manifest("c", 9, tag, other), manifest("c", 9, tag))
	if _, left := s.tags[other]; left || s.tags[tag].digest != "c" {
		t.Errorf("tags %v, want %s alone", s.tags, tag)
	}
}

// TestDefaultPolicy: the apiserver defaults no templates of kinds that it does not know.
func TestDefaultPolicy(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"app": corev1.PullAlways, "app:latest": corev1.PullAlways, "app:1": corev1.PullIfNotPresent, "app:latest@sha256:" + strings.Repeat("a", 64): corev1.PullIfNotPresent,
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{
			map[string]any{"name": "unset", "image": image}, map[string]any{"name": "set", "image": image, "imagePullPolicy": "Never"},
		}}}}}}
		if c := workloadOf(o).template.Containers; len(c) != 2 || c[0].ImagePullPolicy != want || c[1].ImagePullPolicy != corev1.PullNever {
			t.Errorf("%s: %+v, want %s", image, c, want)
		}
	}
}
