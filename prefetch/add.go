package prefetch

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Options are those of Add.
type Options struct {
	// Sources are the automatic ones to use.
	Sources []string
	// Workloads are kinds of workloads besides those of Kubernetes, each GROUP/VERSION/KIND.
	Workloads []string
	Budget    Budget
	// PodImage is the image of pods that pull: it has to run as any user and do nothing until it is ended. PriorityClass and
	// PodUser, which is also the group, are theirs; a user less than 0 leaves that to the namespace.
	PodImage, PriorityClass string
	PodUser                 int64
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

// CacheOptions returns those of the manager's cache: of pods only those that pull, of ImageManifests no layers.
func CacheOptions() crcache.Options {
	pulls, err := labels.NewRequirement(v1alpha1.PrefetchPodLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return crcache.Options{DefaultTransform: slim, ByObject: map[client.Object]crcache.ByObject{
		&corev1.Pod{}: {Label: labels.NewSelector().Add(*pulls)},
		&v1alpha1.ImageManifest{}: {Transform: func(object any) (any, error) {
			if m, ok := object.(*v1alpha1.ImageManifest); ok {
				m.Spec.Layers, m.ManagedFields = nil, nil
			}
			return object, nil
		}},
	}}
}

// Add adds the controllers to a manager whose cache has CacheOptions, and whose client reads unstructured objects there.
func Add(ctx context.Context, mgr manager.Manager, options Options) (*Cluster, error) {
	cluster, err := newCluster(mgr.GetConfig())
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(cluster); err != nil {
		return nil, err
	}
	r, err := newReconciler(mgr.GetClient(), cluster, options)
	if err != nil {
		return nil, err
	}
	r.events = mgr.GetEventRecorder("layer-prefetcher")
	for _, kind := range r.kinds { // before the manager starts: a kind that may not be watched stops all, and not one worker at its first object
		if _, err := mgr.GetCache().GetInformer(ctx, emptyOf(kind)); err != nil {
			return nil, fmt.Errorf("watching %s of %s: %w", kind.Kind, kind.GroupVersion(), err)
		}
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("imageprefetch").
		WithOptions(controller.Options{NewQueue: inTurns(func(r ctrl.Request) string { return r.Namespace })}).
		For(&v1alpha1.ImagePrefetch{}).Owns(&corev1.Pod{}).
		WatchesRawSource(&source.Informer{Informer: cluster.informers.Core().V1().Pods().Informer(), Handler: handler.EnqueueRequestsFromMapFunc(r.usedBy)}).
		Complete(r)
	if err != nil {
		return nil, fmt.Errorf("the controller of ImagePrefetches: %w", err)
	}
	if err := newSources(r, options.Sources).addTo(ctx, mgr); err != nil {
		return nil, fmt.Errorf("--sources: %w", err)
	}
	return cluster, nil
}

// usedBy returns the objects whose images a pod may use on its node.
func (r *Reconciler) usedBy(ctx context.Context, pod client.Object) (requests []ctrl.Request) {
	p, ok := pod.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" || p.Labels[v1alpha1.PrefetchPodLabel] != "" {
		return nil
	}
	var all v1alpha1.ImagePrefetchList
	if r.client.List(ctx, &all, client.InNamespace(p.Namespace), client.UnsafeDisableDeepCopy) != nil {
		return nil // the process ends
	}
	for i := range all.Items {
		if n := entryOf(&all.Items[i], p.Spec.NodeName); n != nil && n.UsedBytes < n.Bytes {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return requests
}

func newReconciler(api client.Client, cluster *Cluster, options Options) (*Reconciler, error) {
	kinds, err := kindsOf(options.Workloads)
	return &Reconciler{
		client: api, cluster: cluster, clock: clock.RealClock{}, options: options, kinds: kinds, metrics: newMetrics(options.Registerer),
		begun: map[types.NamespacedName]pull{}, hour: map[pullKey]pull{}, sums: map[sum]int64{}, counts: map[prometheus.Counter]float64{},
	}, err
}
