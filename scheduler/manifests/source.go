// Package manifests is the scheduler's side of the resolver: it tells the plugin
// what images consist of that no node has pulled yet, as ImageManifest objects
// say it. It knows nothing of kube-scheduler.
package manifests

import (
	"cmp"
	"slices"
	"sync"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/intern"
)

// Source answers from the ImageManifests it was given last. What a name stands
// for is made when an object changes, in proportion to the names of that object,
// so that asking is a look-up.
type Source struct {
	strings intern.Strings

	mu sync.RWMutex
	// objects by their name.
	objects map[string]*object
	images  map[imageref.Canonical]*image
	// watching: the objects are those of the apiserver, give or take an event.
	watching bool
}

func newSource() *Source {
	return &Source{objects: map[string]*object{}, images: map[imageref.Canonical]*image{}}
}

// image is what is said of a name.
type image struct {
	// claims are the objects that have the name: one for each platform, and more
	// while a tag moves.
	claims []claim
	// manifests are made of the claims; nil if all say that there is no answer.
	// Replaced, never changed: Manifests gives them away.
	manifests []index.Manifest
}

type claim struct {
	object    *object
	confirmed int64
}

// Manifests implements layerlocality.ImageSource.
func (s *Source) Manifests(name imageref.Canonical) []index.Manifest {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if i := s.images[name]; i != nil {
		return i.manifests
	}
	return nil
}

// Awaits implements layerlocality.AwaitedSource: nothing is awaited while the
// objects cannot be watched.
func (s *Source) Awaits(names []imageref.Canonical) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.watching && !slices.ContainsFunc(names, func(name imageref.Canonical) bool { return s.images[name] != nil })
}

// setWatching tells whether the objects can be watched, and returns whether that
// is news.
func (s *Source) setWatching(watching bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.watching != watching
	s.watching = watching
	return changed
}

// set replaces what an object says; nil if it is gone or says nothing.
func (s *Source) set(key string, o *object) {
	old := s.objects[key] // only the caller writes, one at a time
	if old.equal(o) {
		return
	}
	if old != nil && o != nil && slices.Equal(old.layers, o.layers) {
		o.layers = old.layers
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o != nil {
		s.objects[key] = o
	} else {
		delete(s.objects, key)
	}
	for _, n := range old.all() {
		i := s.images[n.canonical]
		i.claims = slices.DeleteFunc(i.claims, func(c claim) bool { return c.object == old })
	}
	for _, n := range o.all() {
		i := s.images[n.canonical]
		if i == nil {
			i = &image{}
			s.images[n.canonical] = i
		}
		i.claims = append(i.claims, claim{o, n.confirmed})
		i.manifests = merge(n.canonical, i.claims)
	}
	for _, n := range old.all() {
		switch i := s.images[n.canonical]; {
		case len(i.claims) == 0:
			delete(s.images, n.canonical)
		case !o.has(n.canonical):
			i.manifests = merge(n.canonical, i.claims)
		}
	}
}

// merge returns what claims come to: for each platform, what the registry
// confirmed last. A manifest that no index led to is one for every platform, so
// it replaces what was confirmed before it for a single one.
func merge(name imageref.Canonical, claims []claim) []index.Manifest {
	var winners []claim
	for _, c := range claims {
		if c.object.digest == "" {
			continue
		}
		i := slices.IndexFunc(winners, func(w claim) bool { return w.object.platformOf(name) == c.object.platformOf(name) })
		if i < 0 {
			winners = append(winners, c)
		} else if compare(c, winners[i]) > 0 {
			winners[i] = c
		}
	}
	if i := slices.IndexFunc(winners, func(w claim) bool { return w.object.platformOf(name) == index.Platform{} }); i >= 0 {
		every := winners[i]
		winners = slices.DeleteFunc(winners, func(w claim) bool { return w.confirmed < every.confirmed })
	}
	if len(winners) == 0 {
		return nil
	}
	manifests := make([]index.Manifest, len(winners))
	for i, w := range winners {
		manifests[i] = index.Manifest{Platform: w.object.platformOf(name), Layers: w.object.layers}
	}
	return manifests
}

// compare orders claims by the time of their confirmation, those of the same
// second by digest, so that the order in which objects come does not matter.
func compare(a, b claim) int {
	return cmp.Or(cmp.Compare(a.confirmed, b.confirmed), cmp.Compare(a.object.digest, b.object.digest))
}

// apply takes over an object as the apiserver has it.
func (s *Source) apply(m *v1alpha1.ImageManifest) error {
	o, err := convert(m, s.strings.Intern)
	s.set(m.Name, o)
	return err
}
