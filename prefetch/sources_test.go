package prefetch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func deployment(namespace, name, image string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: image, ImagePullPolicy: corev1.PullAlways}}
	return d
}

// TestOneWorkloadStopsNoOthers: what the API server refuses, or does not answer, for the first workload of a tag is not that
// of the others, and only what may succeed later is tried again.
func TestOneWorkloadStopsNoOthers(t *testing.T) {
	const tag, of = "registry.example/app:1", "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
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
			builder := fake.NewClientBuilder().WithScheme(scheme)
			for _, namespace := range []string{"a", "b", "c"} {
				builder.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, deployment(namespace, "app", tag))
			}
			api := interceptor.NewClient(builder.Build(), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
					if object.GetNamespace() == "a" {
						return test.err
					}
					return c.Create(ctx, object, opts...)
				},
			})
			s := newSources(newReconciler(api, nil, Options{}), AutomaticSources)
			s.tags[tag] = confirmed{of, time.Now()}
			if err := s.tag(t.Context(), cause{source: SourceTag, name: tag}); (err != nil) != test.again {
				t.Errorf("error %v, is it tried again: want %t", err, test.again)
			}
			var all v1alpha1.ImagePrefetchList
			if err := api.List(t.Context(), &all); err != nil || len(all.Items) != 2 {
				t.Errorf("%d objects, error %v: want those of b and c", len(all.Items), err)
			}
		})
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
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"x": large(i), NodeAnnotation: "n1"}}, Spec: *template.Spec.DeepCopy()}
		template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}, {Name: large(i)}}
		pod.Spec.ImagePullSecrets = slices.Clone(template.Spec.ImagePullSecrets)
		for _, object := range []any{d, pod} {
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
	d, pod := kept[0].(*appsv1.Deployment), kept[1].(*corev1.Pod)
	if images := names(pulledImages(workloadOf(d).template)); len(images) != 1 || images[0] != "registry.example/app:1" || d.Spec.Selector == nil {
		t.Errorf("of the Deployment are kept %v, selector %v", images, d.Spec.Selector)
	}
	if pulledImages(workloadOf(d).template)[0].PullPolicy != corev1.PullAlways || pod.Annotations[NodeAnnotation] != "n1" || pod.Spec.Containers[0].Image == "" {
		t.Errorf("kept: %+v, %+v", d.Spec.Template.Spec, pod.ObjectMeta)
	}
}
