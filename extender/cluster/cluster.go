// Package cluster follows the Nodes and the placed Pods of a cluster with kube-scheduler's
// own cache, from which agents take their snapshots.
package cluster

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
)

// Cluster is what is known of a cluster's Nodes and Pods.
type Cluster struct {
	// Informers are those of Nodes and of Pods that are not finished. Agents add their
	// handlers before Start.
	Informers informers.SharedInformerFactory

	logger klog.Logger
	cache  schedulercache.Cache
	synced []cache.InformerSynced
	// ended are called with each Pod that had a node and is gone.
	ended []func(*v1.Pod)
}

// unfinished selects the Pods that a scheduler follows: the others need nothing of their node.
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

// New returns a Cluster that is empty before Start.
func New(ctx context.Context, client kubernetes.Interface) (*Cluster, error) {
	c := &Cluster{
		Informers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim)),
		logger:    klog.FromContext(ctx),
		cache:     newCache(ctx),
	}
	c.Informers.InformerFor(&v1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			func(options *metav1.ListOptions) { options.FieldSelector = unfinished })
	})
	core := c.Informers.Core().V1()
	nodes, err := core.Nodes().Informer().AddEventHandler(c.nodeHandler())
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	pods, err := core.Pods().Informer().AddEventHandler(cache.FilteringResourceEventHandler{FilterFunc: placed, Handler: c.podHandler()})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	c.synced = []cache.InformerSynced{nodes.HasSynced, pods.HasSynced}
	return c, nil
}

// slim removes what no agent reads and what is large.
func slim(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil {
		m.SetManagedFields(nil)
	}
	return object, nil
}

// Start begins to follow the cluster, until the context is done.
func (c *Cluster) Start(ctx context.Context) { c.Informers.Start(ctx.Done()) }

// Wait waits for what Start began, after its context is done.
func (c *Cluster) Wait() { c.Informers.Shutdown() }

// HasSynced reports whether the first Nodes and Pods are known.
func (c *Cluster) HasSynced() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// OnEnd has f called with each Pod that had a node and is gone or finished, after the cache has
// forgotten it. It has to be called before Start.
func (c *Cluster) OnEnd(f func(*v1.Pod)) { c.ended = append(c.ended, f) }

// Update brings a snapshot up to date. A snapshot belongs to one caller at a time, who may
// assume Pods in it, and forgets them before the next Update.
func (c *Cluster) Update(snapshot *schedulercache.Snapshot) error {
	return c.cache.UpdateSnapshot(c.logger, snapshot)
}

// Placed returns the node of a Pod that the cache, and so the next snapshot, has; empty if it
// has no such Pod: it has no node, is finished, or there is another one of its name.
func (c *Cluster) Placed(pod *v1.Pod) (node string) {
	known, err := c.cache.GetPod(pod)
	if err != nil {
		return ""
	}
	return known.Spec.NodeName
}

func (c *Cluster) nodeHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*v1.Node); ok {
				c.cache.AddNode(c.logger, node)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			old, ok1 := oldObj.(*v1.Node)
			node, ok2 := newObj.(*v1.Node)
			if ok1 && ok2 {
				c.cache.UpdateNode(c.logger, old, node)
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := last[*v1.Node](obj); ok {
				c.log(c.cache.RemoveNode(c.logger, node), "A node cannot be removed from the cache", node)
			}
		},
	}
}

// placed selects Pods that have a node.
func placed(obj any) bool {
	pod, ok := last[*v1.Pod](obj)
	return ok && pod.Spec.NodeName != ""
}

func (c *Cluster) podHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*v1.Pod); ok {
				c.log(c.cache.AddPod(c.logger, pod), "A pod cannot be added to the cache", pod)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			old, ok1 := oldObj.(*v1.Pod)
			pod, ok2 := newObj.(*v1.Pod)
			switch {
			case !ok1 || !ok2:
			case old.UID != pod.UID: // deleted and made again between two updates
				c.remove(old)
				c.log(c.cache.AddPod(c.logger, pod), "A pod cannot be added to the cache", pod)
			default:
				c.log(c.cache.UpdatePod(c.logger, old, pod), "A pod cannot be updated in the cache", pod)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, ok := last[*v1.Pod](obj); ok {
				c.remove(pod)
			}
		},
	}
}

func (c *Cluster) remove(pod *v1.Pod) {
	c.log(c.cache.RemovePod(c.logger, pod), "A pod cannot be removed from the cache", pod)
	for _, f := range c.ended {
		f(pod)
	}
}

// last returns the object of an event, also of a deletion that was seen late.
func last[T any](obj any) (object T, ok bool) {
	if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
		obj = gone.Obj
	}
	object, ok = obj.(T)
	return object, ok
}

func (c *Cluster) log(err error, message string, object klog.KMetadata) {
	if err != nil {
		c.logger.Error(err, message, "object", klog.KObj(object))
	}
}
