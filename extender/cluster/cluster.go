// Package cluster follows the Nodes and the placed Pods of a cluster with kube-scheduler's
// own cache, from which agents take their snapshots.
package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
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
	pods   corelisters.PodLister
	synced []cache.InformerSynced
	// assuming is held while a Pod is assumed, forgotten, or left out of a snapshot.
	assuming sync.Mutex
}

// unfinished selects the Pods that a scheduler follows: the others need nothing of their node.
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

// New returns a Cluster that knows nothing before Start.
func New(ctx context.Context, client kubernetes.Interface) (*Cluster, error) {
	c := &Cluster{
		Informers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim)),
		logger:    klog.FromContext(ctx),
		cache:     schedulercache.New(ctx, nil, false),
	}
	c.Informers.InformerFor(&v1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			func(options *metav1.ListOptions) { options.FieldSelector = unfinished })
	})
	core := c.Informers.Core().V1()
	c.pods = core.Pods().Lister()
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

// HasSynced tells whether the first Nodes and Pods are known.
func (c *Cluster) HasSynced() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// Update brings a snapshot up to date. A Pod that is only assumed on a node is left out of
// it. A snapshot belongs to one caller at a time.
func (c *Cluster) Update(snapshot *schedulercache.Snapshot, except *v1.Pod) error {
	c.assuming.Lock()
	defer c.assuming.Unlock()
	if known := c.forget(except); known != nil {
		defer func() {
			if err := c.cache.AssumePod(c.logger, known); err != nil {
				c.logger.V(4).Info("A pod was bound just now", "pod", klog.KObj(known), "reason", err)
			}
		}()
	}
	return c.cache.UpdateSnapshot(c.logger, snapshot)
}

// Placed returns the node of a Pod; empty if it has none, or if no such Pod is known that is
// not finished.
func (c *Cluster) Placed(namespace, name string, uid types.UID) (node string) {
	pod, err := c.pods.Pods(namespace).Get(name)
	if err != nil || pod.UID != uid {
		return ""
	}
	return pod.Spec.NodeName
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
				c.Forget(pod) // it may be on another node than the one it was assumed on
				c.log(c.cache.AddPod(c.logger, pod), "A pod cannot be added to the cache", pod)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			old, ok1 := oldObj.(*v1.Pod)
			pod, ok2 := newObj.(*v1.Pod)
			switch {
			case !ok1 || !ok2:
			case old.UID != pod.UID: // deleted and made again between two updates
				c.log(c.cache.RemovePod(c.logger, old), "A pod cannot be removed from the cache", old)
				c.log(c.cache.AddPod(c.logger, pod), "A pod cannot be added to the cache", pod)
			default:
				c.log(c.cache.UpdatePod(c.logger, old, pod), "A pod cannot be updated in the cache", pod)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, ok := last[*v1.Pod](obj); ok {
				c.log(c.cache.RemovePod(c.logger, pod), "A pod cannot be removed from the cache", pod)
			}
		},
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

// Assume counts a Pod as one of a node's from now on, as kube-scheduler does between its
// decision and the binding. It ends with Forget, or with the binding, to whichever node. It
// returns false if the Pod counts already.
func (c *Cluster) Assume(pod *v1.Pod, node string) bool {
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = node
	c.assuming.Lock()
	defer c.assuming.Unlock()
	return c.cache.AssumePod(c.logger, assumed) == nil
}

// Forget ends what Assume began, unless the Pod was bound meanwhile.
func (c *Cluster) Forget(pod *v1.Pod) {
	c.assuming.Lock()
	defer c.assuming.Unlock()
	c.forget(pod)
}

// forget ends what Assume began, and returns the Pod as it was assumed; nil if it was not.
func (c *Cluster) forget(pod *v1.Pod) *v1.Pod {
	if pod.UID == "" {
		return nil // nobody assumes it
	}
	known, err := c.cache.GetPod(pod)
	if err != nil || c.cache.ForgetPod(c.logger, known) != nil { // an error if it was bound
		return nil
	}
	return known
}
