package resolver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
)

// apiServer is an API server with its etcd, and an informer of ImageManifests
// like a scheduler's.
type apiServer struct {
	*controlplane.ControlPlane
	client  client.Client
	metrics kubernetes.Interface
	view    *view
	// stop ends the informer.
	stop func() error
}

func startAPIServer(ctx context.Context, root string) (_ *apiServer, err error) {
	ctrllog.SetLogger(klog.NewKlogr())
	plane, err := controlplane.Start(root)
	if err != nil {
		return nil, err
	}
	s := &apiServer{ControlPlane: plane, view: &view{objects: map[string]*object{}}, stop: func() error { return nil }}
	defer func() {
		if err != nil {
			_ = s.Stop()
		}
	}()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	if s.client, err = client.New(plane.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if s.metrics, err = kubernetes.NewForConfig(plane.Config); err != nil {
		return nil, err
	}
	informers, err := cache.New(plane.Config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- informers.Start(ctx) }()
	s.stop = func() error {
		cancel()
		return <-ended
	}
	informer, err := informers.GetInformer(ctx, &v1alpha1.ImageManifest{})
	if err != nil {
		return nil, err
	}
	_, err = informer.AddEventHandler(s.view)
	return s, err
}

// Stop ends the API server, etcd and the informer.
func (s *apiServer) Stop() error {
	err := s.stop()
	if stopped := s.ControlPlane.Stop(); stopped != nil {
		return stopped
	}
	return err
}

// view is what a watch has shown of ImageManifests.
type view struct {
	mu      sync.Mutex
	objects map[string]*object // by name
}

// object is an ImageManifest: when it had layers first, when its last change was seen,
// and its content.
type object struct {
	appeared, changed time.Time
	reference         string
	layers            int
}

var _ toolscache.ResourceEventHandler = (*view)(nil)

// OnAdd implements ResourceEventHandler.
func (v *view) OnAdd(o any, _ bool) { v.set(o) }

// OnUpdate implements ResourceEventHandler.
func (v *view) OnUpdate(_, o any) { v.set(o) }

// OnDelete implements ResourceEventHandler.
func (v *view) OnDelete(o any) {
	if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if manifest, ok := o.(*v1alpha1.ImageManifest); ok {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.objects, manifest.Name)
	}
}

func (v *view) set(o any) {
	manifest, ok := o.(*v1alpha1.ImageManifest)
	if !ok {
		return
	}
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	seen := v.objects[manifest.Name]
	if seen == nil {
		seen = &object{}
		v.objects[manifest.Name] = seen
	}
	seen.changed, seen.layers = now, len(manifest.Spec.Layers)
	if seen.appeared.IsZero() && seen.layers > 0 {
		seen.appeared = now
	}
	if len(manifest.Status.References) > 0 {
		seen.reference = manifest.Status.References[0].Name
	}
}

func (v *view) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.objects)
}

// appeared returns when an image's ImageManifest was first seen with layers, or false if it
// was not. It fails if the ImageManifest differs from what the registry has.
func (v *view) appeared(i image) (time.Time, bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen := v.objects[i.objectName()]
	if seen == nil || seen.appeared.IsZero() {
		return time.Time{}, false, nil
	}
	if seen.reference != i.reference || seen.layers != layersPerImage {
		return time.Time{}, false, fmt.Errorf("ImageManifest %s has %d layers and the reference %q, want %d and %q",
			i.objectName(), seen.layers, seen.reference, layersPerImage, i.reference)
	}
	return seen.appeared, true, nil
}

// changedSince returns how many objects changed after a time, and the time of
// the last change.
func (v *view) changedSince(begin time.Time) (count int, last time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, seen := range v.objects {
		if seen.changed.After(begin) {
			count++
		}
		if seen.changed.After(last) {
			last = seen.changed
		}
	}
	return count, last
}

// writes returns how often ImageManifests were written since the API server
// started, by verb.
func (s *apiServer) writes(ctx context.Context) (map[string]int, error) {
	text, err := s.metrics.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("metrics of the API server: %w", err)
	}
	const name = "apiserver_request_total"
	if families[name] == nil {
		return nil, fmt.Errorf("the API server has no metric %s", name)
	}
	writes := map[string]int{}
	for _, metric := range families[name].GetMetric() {
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		switch verb := labels["verb"]; verb {
		case "POST", "PUT", "PATCH", "DELETE":
			if labels["resource"] == "imagemanifests" {
				writes[verb] += int(metric.GetCounter().GetValue())
			}
		}
	}
	return writes, nil
}

// createNode creates the only node. Its platform decides which manifest of an
// index is resolved.
func (s *apiServer) createNode(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	if err := s.client.Create(ctx, node); err != nil {
		return err
	}
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: platforms[0].OS, Architecture: platforms[0].Architecture}
	return s.client.Status().Update(ctx, node)
}

// createAll creates objects, several at once.
func (s *apiServer) createAll(ctx context.Context, objects []client.Object) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, object := range objects {
		group.Go(func() error { return s.client.Create(ctx, object) })
	}
	return group.Wait()
}

// forget removes all ImageManifests.
func (s *apiServer) forget(ctx context.Context) error {
	if err := s.client.DeleteAllOf(ctx, &v1alpha1.ImageManifest{}); err != nil {
		return err
	}
	return poll.Until(ctx, 10*time.Millisecond, time.Minute, func(context.Context) error {
		if left := s.view.count(); left > 0 {
			return fmt.Errorf("%d ImageManifests are still there", left)
		}
		return nil
	})
}

// remove removes the ImageManifest of an image, if there is one.
func (s *apiServer) remove(ctx context.Context, image image) error {
	object := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: image.objectName()}}
	if err := s.client.Delete(ctx, object); err != nil {
		return client.IgnoreNotFound(err)
	}
	return poll.Until(ctx, time.Millisecond, time.Minute, func(context.Context) error {
		if _, ok, err := s.view.appeared(image); ok || err != nil {
			return errors.Join(err, errors.New("the ImageManifest is still there"))
		}
		return nil
	})
}

// removeWorkloads deletes all Deployments and pods.
func (s *apiServer) removeWorkloads(ctx context.Context) error {
	for _, object := range []client.Object{&appsv1.Deployment{}, &corev1.Pod{}} {
		if err := s.client.DeleteAllOf(ctx, object, client.InNamespace(metav1.NamespaceDefault), client.GracePeriodSeconds(0)); err != nil {
			return err
		}
	}
	return nil
}

func deployment(name string, i image) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = podSpec(i)
	return d
}

func pod(name string, i image) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}, Spec: podSpec(i)}
}

func podSpec(i image) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: i.reference}}}
}
