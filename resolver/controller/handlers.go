package controller

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/usage"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

func (r *Resolver) workloadHandler(k *workloads.Kind) cache.ResourceEventHandler {
	set := func(object any) {
		c, ok := k.ImagesOf(object)
		if !ok {
			if o, isObject := object.(metav1.Object); isObject {
				r.release(r.usage.Unset(k.Identity(o))...)
			}
			return
		}
		changed := r.usage.Set(c)
		r.release(changed.Unused...)
		if r.leading.Load() { // Start handles what existed before
			r.askForNew(c, changed.Added)
			r.reportKnown(c, changed)
		}
	}
	unset := func(object any) {
		if o, ok := object.(metav1.Object); ok {
			r.release(r.usage.Unset(k.Identity(o))...)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			r.runs(nil, object)
			set(object)
		},
		UpdateFunc: func(before, object any) {
			r.runs(before, object)
			set(object)
			if replaced(before, object) {
				unset(before)
			}
		},
		DeleteFunc: func(object any) {
			object = lastKnown(object)
			r.runs(object, nil)
			unset(object)
		},
	}
}

// runs notes from which registries the images of a pod come that runs.
func (r *Resolver) runs(before, after any) {
	if r.nodes.setPod(workloads.RunningFrom(before), workloads.RunningFrom(after)) {
		r.nodesChanged()
	}
}

// replaced reports whether an object was deleted and another one created under
// its name: an informer that missed the deletion reports an update.
func replaced(before, after any) bool {
	a, ok := before.(metav1.Object)
	b, also := after.(metav1.Object)
	return ok && also && a.GetUID() != b.GetUID()
}

// reportKnown notifies a workload which of its new images are known to fail. For a
// pod that another object made, that object is notified instead of the pod.
func (r *Resolver) reportKnown(c usage.WorkloadImages, changed usage.Change) {
	if c.Controlled {
		return
	}
	for _, image := range append(changed.Added, changed.Shared...) {
		r.reportFailure(image, c.Workload)
	}
	if changed.Over {
		r.notifier.reportFailure(changed.First, v1alpha1.ReasonTooMany, brief(v1alpha1.ReasonTooMany), c.Workload)
	}
	for _, invalid := range changed.Invalid {
		r.notifier.reportInvalid(invalid, c.Workload)
	}
}

// setNodeImages notes which images a node holds, and asks for those that are new.
func (r *Resolver) setNodeImages(node string, references []string) {
	if !r.options.ImagesOnNodes {
		return
	}
	added, gone := r.nodeImages.Set(node, references)
	for _, reference := range added {
		for _, image := range r.usage.Set(usage.ImageOnNodes(reference)).Added {
			if r.leading.Load() { // Start handles what existed before
				r.ask(image)
			}
		}
	}
	for _, reference := range gone {
		r.release(r.usage.Unset(usage.ImageOnNodes(reference).Workload)...)
	}
}

func (r *Resolver) nodeHandler() cache.ResourceEventHandler {
	set := func(object any) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return
		}
		facts := nodeFacts{
			platform: workloads.PlatformOf(node), registries: workloads.RegistriesOf(node),
			networks: workloads.NetworksOf(node.Spec.PodCIDRs), foreign: workloads.HasForeignRuntime(node),
		}
		if r.nodes.set(node.Name, facts) {
			r.nodesChanged()
		}
		r.setNodeImages(node.Name, workloads.ImagesOn(node))
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, object any) { set(object) },
		DeleteFunc: func(object any) {
			if node, ok := lastKnown(object).(*corev1.Node); ok {
				r.nodes.remove(node.Name)
				r.nodesChanged()
				r.setNodeImages(node.Name, nil)
			}
		},
	}
}

// nodesChanged asks again for the images that are affected by a new platform or
// registry on the nodes: they may have been denied, or not built for any
// platform, or known without the new platform.
func (r *Resolver) nodesChanged() {
	if !r.HasSynced() {
		return // Start calls it when all nodes are known
	}
	r.circumstancesChanged(r.nodes.update())
}

// circumstancesChanged asks again for what was refused because of something that has
// changed.
func (r *Resolver) circumstancesChanged(changes clusterChanges) {
	if !changes.platform && !changes.networks && changes.registries == nil {
		return
	}
	for _, image := range r.usage.All() {
		var reasons []string
		if changes.networks || slices.ContainsFunc(image.References, changes.inUse) {
			reasons = append(reasons, v1alpha1.ReasonDenied)
		}
		if changes.platform {
			reasons = append(reasons, v1alpha1.ReasonPlatformNotFound)
		}
		if r.attempts.allowRetry(image, reasons...) || changes.platform {
			r.ask(image)
		}
	}
}

// serviceHandler learns the networks of services, which must not be asked.
func (r *Resolver) serviceHandler() cache.ResourceEventHandler {
	set := func(object any) {
		if services, ok := object.(*networkingv1.ServiceCIDR); ok {
			r.nodes.setServices(services.Name, workloads.NetworksOf(services.Spec.CIDRs))
			r.nodesChanged()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, object any) { set(object) },
		DeleteFunc: func(object any) {
			if services, ok := lastKnown(object).(*networkingv1.ServiceCIDR); ok {
				r.nodes.setServices(services.Name, nil)
				r.nodesChanged()
			}
		},
	}
}

func (r *Resolver) manifestHandler() cache.ResourceEventHandler {
	changed := func(object any) {
		manifest, ok := object.(*v1alpha1.ImageManifest)
		if ok && r.leading.Load() && r.store.Drifted(manifest.Name, manifest.ResourceVersion) {
			r.drifts.Add(drift{manifest.Name, manifest.ResourceVersion})
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: func(object any) {
			if manifest, ok := lastKnown(object).(*v1alpha1.ImageManifest); ok {
				r.store.Deleted(manifest.Name, manifest.UID)
			}
		},
	}
}

// lastKnown returns a deleted object as it was last seen: its end may have been missed.
func lastKnown(object any) any {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return object
}
