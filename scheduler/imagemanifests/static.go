package imagemanifests

import "github.com/layer-locality/layer-locality/api/v1alpha1"

// NewStatic returns a source that has the objects that are added to it, and watches nothing.
func NewStatic() *Source {
	s := newSource()
	s.watching = true
	s.tried.Store(true)
	return s
}

// Add takes over an object as the apiserver has it. Nothing else may use the source meanwhile.
// Parts of the object that do not matter here are dropped. The error names what is left out.
func (s *Source) Add(m *v1alpha1.ImageManifest) error {
	s.slim(m)
	return s.apply(m)
}
