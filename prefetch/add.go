package prefetch

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Options are those of Add.
type Options struct {
	// Sources are the automatic ones to use.
	Sources []string
	Budget  Budget
	// PodImage is the image of pods that pull: it has to run as any user and do nothing. PriorityClass and PodUser are
	// theirs; a user less than 0 leaves that to the namespace.
	PodImage, PriorityClass string
	PodUser                 int64
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

// CacheOptions returns those of the manager's cache: of pods only those that pull, of ImageManifests no layers.
func CacheOptions() crcache.Options {
	pulls, err := labels.NewRequirement(PodLabel, selection.Exists, nil)
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

// Add adds the controller to a manager whose cache has CacheOptions.
func Add(ctx context.Context, mgr manager.Manager, options Options) (*Cluster, error) {
	images, layers, err := Sources(mgr.GetConfig())
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return nil, err
	}
	cluster, err := NewCluster(core, images, layers)
	if err != nil {
		return nil, err
	}
	r := newReconciler(mgr.GetClient(), cluster, options)
	r.events = mgr.GetEventRecorder("layer-prefetcher")
	s := newSources(r, options.Sources)
	if err := s.watch(ctx, mgr.GetCache()); err != nil {
		return nil, err
	}
	// Nodes are followed from Start on, handlers are added before.
	if err := mgr.Add(cluster); err != nil {
		return nil, err
	}
	if err := mgr.Add(s); err != nil {
		return nil, err
	}
	used := make(chan event.GenericEvent, 1024)
	_, err = cluster.informers.Core().V1().Pods().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { r.notePlaced(ctx, object, used) },
		UpdateFunc: func(_, object any) { r.notePlaced(ctx, object, used) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("imageprefetch").WithOptions(controller.Options{NewQueue: newQueue}).
		For(&v1alpha1.ImagePrefetch{}).Owns(&corev1.Pod{}).
		WatchesRawSource(source.Channel(used, &handler.EnqueueRequestForObject{})).Complete(r)
	if err != nil {
		return nil, fmt.Errorf("the controller of ImagePrefetches: %w", err)
	}
	return cluster, nil
}

// notePlaced has those objects looked at of which a pod may use what its node has pulled.
func (r *Reconciler) notePlaced(ctx context.Context, object any, used chan<- event.GenericEvent) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Labels[PodLabel] != "" {
		return
	}
	var all v1alpha1.ImagePrefetchList
	if r.client.List(ctx, &all, client.InNamespace(pod.Namespace)) != nil {
		return // the cache has not begun, and all objects will be looked at when it has
	}
	for i := range all.Items {
		if n := entryOf(&all.Items[i], pod.Spec.NodeName); n == nil || n.Bytes == 0 || n.Used {
			continue
		}
		select {
		case used <- event.GenericEvent{Object: &all.Items[i]}:
		default: // nobody reads: another process leads
		}
	}
}

func newReconciler(api client.Client, cluster *Cluster, options Options) *Reconciler {
	return &Reconciler{
		client: api, cluster: cluster, clock: clock.RealClock{}, budget: options.Budget,
		pods: podOptions{options.PodImage, options.PriorityClass, options.PodUser}, metrics: newMetrics(options.Registerer), ledger: newLedger(),
		begun: map[types.NamespacedName]pull{}, accounted: map[pullKey]bool{}, judged: map[types.NamespacedName]map[pullKey]bool{},
	}
}
