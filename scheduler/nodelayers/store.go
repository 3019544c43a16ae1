package nodelayers

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// store makes a Source usable as the store of a reflector.
type store struct {
	*Source
	logger klog.Logger
}

var _ cache.TransformingStore = &store{}

// Add implements cache.ReflectorStore.
func (s *store) Add(obj any) error {
	object, ok := obj.(*v1alpha1.NodeLayers)
	if !ok {
		return fmt.Errorf("a NodeLayers is a %T", obj)
	}
	s.slim(object)
	if err := s.apply(object, time.Now()); err != nil {
		s.logger.V(3).Info("Part or all of a NodeLayers is left out", "name", object.Name, "reason", err)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (s *store) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(obj any) error {
	if object, ok := obj.(*v1alpha1.NodeLayers); ok {
		s.delete(object.Name)
	}
	return nil
}

// Replace implements cache.ReflectorStore: objs are all objects.
func (s *store) Replace(objs []any, _ string) error {
	gone := s.names()
	for _, obj := range objs {
		if err := s.Add(obj); err != nil {
			return err
		}
		delete(gone, obj.(*v1alpha1.NodeLayers).Name)
	}
	for name := range gone {
		s.delete(name)
	}
	s.tried.Store(true)
	if s.setWatching(true) {
		s.logger.Info("Watching NodeLayers", "objects", len(objs))
	}
	return nil
}

// Resync implements cache.ReflectorStore: there is nothing to repeat.
func (s *store) Resync() error { return nil }

// Transformer implements cache.TransformingStore: it keeps only the used parts of the objects
// that the reflector collects.
func (s *store) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if object, ok := obj.(*v1alpha1.NodeLayers); ok {
			s.slim(object)
		}
		return obj, nil
	}
}

// slim lets nodes share the texts of layers, of which digests are parts.
func (s *Source) slim(object *v1alpha1.NodeLayers) {
	object.ObjectMeta = metav1.ObjectMeta{Name: object.Name, ResourceVersion: object.ResourceVersion, OwnerReferences: object.OwnerReferences}
	for i, text := range object.Spec.Layers {
		object.Spec.Layers[i] = s.strings.Intern(text)
	}
}
