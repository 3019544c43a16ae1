package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/mirrors"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

// MirrorSetter takes the mirrors that the cluster states, and returns what is wrong with
// those that it leaves out. *registry.Client implements it.
type MirrorSetter interface {
	SetMirrors([]mirrors.Entry) []error
}

// mirrorKind is a kind of OpenShift with mirrors of registries, for digests or for tags.
type mirrorKind struct {
	schema.GroupVersionKind
	field string
	tags  bool
}

var openShift = schema.GroupVersion{Group: "config.openshift.io", Version: "v1"}

var mirrorKinds = []mirrorKind{
	{openShift.WithKind("ImageDigestMirrorSet"), "imageDigestMirrors", false},
	{openShift.WithKind("ImageTagMirrorSet"), "imageTagMirrors", true},
	// What the first one replaces: clusters that came from OpenShift 4.12 or earlier may have both.
	{schema.GroupVersionKind{Group: "operator.openshift.io", Version: "v1alpha1", Kind: "ImageContentSourcePolicy"}, "repositoryDigestMirrors", false},
}

// mirrorSets are the mirrors of the objects in the cluster.
type mirrorSets struct {
	to       MirrorSetter
	mu       sync.Mutex
	byObject map[string][]mirrors.Entry
}

// set replaces the mirrors of an object, without any for one that is gone, and returns what
// is wrong with those of all objects.
func (m *mirrorSets) set(object string, entries []mirrors.Entry) []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(entries) == 0 {
		delete(m.byObject, object)
	} else {
		m.byObject[object] = entries
	}
	var all []mirrors.Entry
	for _, name := range slices.Sorted(maps.Keys(m.byObject)) {
		all = append(all, m.byObject[name]...)
	}
	return m.to.SetMirrors(all)
}

// mirrorsOf returns the mirrors in an object.
func (k *mirrorKind) mirrorsOf(object *unstructured.Unstructured) ([]mirrors.Entry, error) {
	list, _, err := unstructured.NestedSlice(object.Object, "spec", k.field)
	if err != nil {
		return nil, err
	}
	found := make([]mirrors.Entry, 0, len(list))
	for _, item := range list {
		var stated struct {
			Source             string   `json:"source"`
			Mirrors            []string `json:"mirrors"`
			MirrorSourcePolicy string   `json:"mirrorSourcePolicy"`
		}
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("spec.%s has an item that is no object", k.field)
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &stated); err != nil {
			return nil, err
		}
		found = append(found, mirrors.Entry{
			Source: stated.Source, Mirrors: stated.Mirrors, Tags: k.tags, Only: stated.MirrorSourcePolicy == "NeverContactSource",
		})
	}
	return found, nil
}

// watchMirrors learns the mirrors of registries where the API server has objects for them.
func (r *Resolver) watchMirrors(ctx context.Context, mgr manager.Manager, watch func(client.Object, cache.ResourceEventHandler) error) error {
	if r.options.Mirrors == nil {
		return nil
	}
	r.mirrors = &mirrorSets{to: r.options.Mirrors, byObject: map[string][]mirrors.Entry{}}
	for i := range mirrorKinds {
		kind := &mirrorKinds[i]
		mapping, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			r.log.Info("The API server does not serve this kind of registry mirrors", "kind", kind.Kind)
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for %s: %w", kind.Kind, err)
		}
		// A cache that waits for what may not be read never is complete.
		may, err := workloads.MayRead(ctx, mgr.GetClient(), mapping.Resource)
		if err != nil {
			return fmt.Errorf("asking whether %s may be read: %w", kind.Kind, err)
		}
		if !may {
			r.log.Info("The resolver may not list and watch this kind of registry mirrors: bind a ClusterRole that allows it, and restart the resolver", "kind", kind.Kind)
			continue
		}
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind.GroupVersionKind)
		if err := watch(object, r.mirrorHandler(kind)); err != nil {
			return err
		}
	}
	return nil
}

func (r *Resolver) mirrorHandler(kind *mirrorKind) cache.ResourceEventHandler {
	set := func(object any, gone bool) {
		o, ok := object.(*unstructured.Unstructured)
		if !ok {
			return
		}
		var entries []mirrors.Entry
		var err error
		if !gone {
			entries, err = kind.mirrorsOf(o)
		}
		for _, err := range append(r.mirrors.set(kind.Kind+"/"+o.GetName(), entries), err) {
			if err != nil {
				r.log.Info("Mirrors of registries are left out", "kind", kind.Kind, "name", o.GetName(), "cause", err.Error())
			}
		}
		if r.HasSynced() {
			r.mirrorsChanged()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { set(object, false) },
		UpdateFunc: func(_, object any) { set(object, false) },
		DeleteFunc: func(object any) { set(lastKnown(object), true) },
	}
}

// mirrorsChanged asks again for what was refused: another registry may have it now.
func (r *Resolver) mirrorsChanged() {
	for _, image := range r.usage.All() {
		if r.attempts.allowRetry(image, v1alpha1.ReasonDenied, v1alpha1.ReasonNotFound, v1alpha1.ReasonUnauthorized,
			v1alpha1.ReasonUnavailable, v1alpha1.ReasonRateLimited) {
			r.ask(image)
		}
	}
}
