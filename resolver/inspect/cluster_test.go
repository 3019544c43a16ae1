package inspect

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func pod(images ...string) corev1.PodSpec {
	spec := corev1.PodSpec{}
	for i, image := range images {
		spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: image})
	}
	return spec
}

// newCluster returns a client of a fake API server with the objects.
func newCluster(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

func TestInventory(t *testing.T) {
	m := metav1.ObjectMeta{Namespace: "default", Name: "x"}
	everywhere := pod("container", "")
	everywhere.InitContainers = []corev1.Container{{Image: "init"}}
	everywhere.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "ephemeral"}}}
	everywhere.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "volume"}}}, {}}
	template := func(image string) corev1.PodTemplateSpec { return corev1.PodTemplateSpec{Spec: pod(image)} }
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"a@sha256:1", "a:1"}}, {Names: []string{"b:1"}}}
	manifest := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: "sha256-1"}}
	cronJob := &batchv1.CronJob{ObjectMeta: m}
	cronJob.Spec.JobTemplate.Spec.Template = template("cronjob")
	objects := []client.Object{
		&corev1.Pod{ObjectMeta: m, Spec: everywhere}, node, manifest, cronJob,
		&appsv1.Deployment{ObjectMeta: m, Spec: appsv1.DeploymentSpec{Template: template("deployment")}},
		&appsv1.StatefulSet{ObjectMeta: m, Spec: appsv1.StatefulSetSpec{Template: template("statefulset")}},
		&appsv1.DaemonSet{ObjectMeta: m, Spec: appsv1.DaemonSetSpec{Template: template("daemonset")}},
		&batchv1.Job{ObjectMeta: m, Spec: batchv1.JobSpec{Template: template("job")}},
	}
	// List in two pages, the first without items; the fake does not support pages
	// itself.
	pages := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		var o client.ListOptions
		o.ApplyOptions(options)
		if o.Limit == 0 {
			t.Errorf("%T is read in one piece", list)
		}
		if o.Continue == "" {
			list.SetContinue("more")
			return nil
		}
		return c.List(ctx, list)
	}}
	found, err := ReadInventory(t.Context(), newCluster(t, pages, objects...))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found.Images)
	if want := []string{"container", "cronjob", "daemonset", "deployment", "ephemeral", "init", "job", "statefulset", "volume"}; !slices.Equal(found.Images, want) {
		t.Errorf("images %q, want %q", found.Images, want)
	}
	if want := [][]string{{"a@sha256:1", "a:1"}, {"b:1"}}; !reflect.DeepEqual(found.Nodes, want) {
		t.Errorf("on nodes %q", found.Nodes)
	}
	if len(found.Manifests) != 1 || found.Manifests[0].Name != "sha256-1" {
		t.Errorf("manifests %+v", found.Manifests)
	}

	failing := func(err error, of client.ObjectList) interceptor.Funcs {
		return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if reflect.TypeOf(list) == reflect.TypeOf(of) {
				return err
			}
			return c.List(ctx, list, options...)
		}}
	}
	missing := &meta.NoKindMatchError{GroupKind: v1alpha1.GroupVersion.WithKind("ImageManifest").GroupKind()}
	found, err = ReadInventory(t.Context(), newCluster(t, failing(missing, &v1alpha1.ImageManifestList{}), objects...))
	if err != nil || len(found.Images) != 9 || len(found.Manifests) != 0 {
		t.Errorf("without the CRD: error %v, %+v", err, found)
	}
	if _, err := ReadInventory(t.Context(), newCluster(t, failing(os.ErrPermission, &appsv1.DaemonSetList{}), objects...)); err == nil {
		t.Error("a cluster that cannot be read in full has no error")
	}
}
