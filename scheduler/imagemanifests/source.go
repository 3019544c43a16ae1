// Package imagemanifests is the scheduler's side of the resolver. Its Source has the layers
// of images that no node has pulled yet, from ImageManifest objects. It does not depend on
// kube-scheduler.
package imagemanifests

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/intern"
)

// Source answers from the latest ImageManifests. When an object changes, it computes
// what the names of that object stand for, so that a question is only a look-up.
type Source struct {
	strings intern.Strings
	// client and leases are what Start watches with.
	client rest.Interface
	leases coordinationclient.LeaseInterface
	// changed is that of Start. noted are the names to call it with; only the goroutine that
	// writes uses them.
	changed func(names []imageref.Canonical)
	noted   []imageref.Canonical
	// tried is set once the objects have been listed, or cannot be; see RequireSync.
	tried       atomic.Bool
	requireSync bool

	mu sync.RWMutex
	// objects by their name. One goroutine writes them and what follows from them; it reads them
	// without mu.
	objects map[string]*object
	images  map[imageref.Canonical]*image
	// watching means that the objects are those of the apiserver, give or take an
	// event.
	watching bool
	// seen means that there is or was an object: layer-resolver works, or did.
	seen bool
	// layers and names are the sums of those of the objects.
	layers, names int
	// leaseActive means that a layer-resolver renews its Lease. It matters until the first
	// object is seen.
	leaseActive bool
	// waiting are those of OnAnswer.
	waiting []func()
}

func newSource() *Source {
	return &Source{objects: map[string]*object{}, images: map[imageref.Canonical]*image{}}
}

// image is what is known about a name.
type image struct {
	// references are those of the name: one for each platform, more while a tag moves.
	references []objectRef
	// manifests are computed from the references; nil if all of these are negative answers. They
	// are replaced and never changed, because Manifests returns them.
	manifests []index.Manifest
	// moved is set once a tag was seen to be that of two manifests for one platform, for as
	// long as the tag is known.
	moved bool
}

// objectRef is an object that has a name.
type objectRef struct {
	object    *object
	confirmed int64
}

// Manifests implements locality.ManifestSource.
func (s *Source) Manifests(name imageref.Canonical) []index.Manifest {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if i := s.images[name]; i != nil {
		return i.manifests
	}
	return nil
}

// Awaits implements locality.AwaitedSource: nothing is awaited while the objects cannot be
// watched, and where no layer-resolver seems to be.
func (s *Source) Awaits(names []imageref.Canonical) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.watching && (s.seen || s.leaseActive) && !s.answeredLocked(names)
}

// Answered implements locality.AwaitedSource.
func (s *Source) Answered(names []imageref.Canonical) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.answeredLocked(names)
}

// OnAnswer implements locality.AwaitedSource.
func (s *Source) OnAnswer(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, f)
}

func (s *Source) answeredLocked(names []imageref.Canonical) bool {
	return slices.ContainsFunc(names, func(name imageref.Canonical) bool { return s.images[name] != nil })
}

// setWatching notes whether the objects can be watched. It returns whether that has
// changed.
func (s *Source) setWatching(watching bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.watching != watching
	s.watching = watching
	return changed
}

// What is taken over at most, whatever the apiserver has: more than layer-resolver writes
// with the --max-images that it has by default, and some hundred MiB. Further objects count
// as soon as others are gone and they change.
const (
	maxObjects = 150_000
	maxLayers  = 4_000_000
	maxNames   = 500_000
)

// errFull: an object is left out because there are too many.
var errFull = fmt.Errorf("there are %d objects, or %d layers or %d names in them, already", maxObjects, maxLayers, maxNames)

// hasRoom reports whether an object may replace another, or come anew if that is nil.
func (s *Source) hasRoom(old, o *object) bool {
	if o == nil {
		return true
	}
	layers, names := s.layers+len(o.layers), s.names+len(o.names)
	if old != nil {
		layers -= len(old.layers)
		names -= len(old.names)
	}
	return layers <= maxLayers && names <= maxNames && (old != nil || len(s.objects) < maxObjects)
}

// set replaces an object; nil if it is gone or states nothing. An object for which there is no
// room counts as gone, with errFull.
func (s *Source) set(key string, o *object) (err error) {
	old := s.objects[key]
	if !s.hasRoom(old, o) {
		o, err = nil, errFull
	}
	if old.equal(o) {
		return err
	}
	if old != nil && o != nil && old.sameLayers(o) {
		o.layers, o.order = old.layers, old.order
	}
	s.note(old, o)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old != nil {
		s.layers -= len(old.layers)
		s.names -= len(old.names)
	}
	if o != nil {
		s.objects[key] = o
		s.layers += len(o.layers)
		s.names += len(o.names)
	} else {
		delete(s.objects, key)
	}
	for _, n := range old.all() {
		i := s.images[n.canonical]
		i.references = slices.DeleteFunc(i.references, func(r objectRef) bool { return r.object == old })
	}
	for _, n := range o.all() {
		i := s.images[n.canonical]
		if i == nil {
			i = &image{}
			s.images[n.canonical] = i
		}
		i.references = append(i.references, objectRef{o, n.confirmed})
		i.moved = i.moved || moved(n.canonical, i.references)
		i.manifests = merge(n.canonical, i.references)
	}
	for _, n := range old.all() {
		switch i := s.images[n.canonical]; {
		case len(i.references) == 0:
			delete(s.images, n.canonical)
		case !o.has(n.canonical):
			i.manifests = merge(n.canonical, i.references)
		}
	}
	return err
}

// merge combines references: for each platform, the manifest that the registry confirmed
// last wins. A manifest without an image index is valid for every platform, so it
// replaces everything that was confirmed before it.
func merge(name imageref.Canonical, references []objectRef) []index.Manifest {
	var winners []objectRef
	for _, r := range references {
		if r.object.digest == "" {
			continue
		}
		i := slices.IndexFunc(winners, func(w objectRef) bool { return w.object.platformOf(name) == r.object.platformOf(name) })
		if i < 0 {
			winners = append(winners, r)
		} else if compare(r, winners[i]) > 0 {
			winners[i] = r
		}
	}
	if i := slices.IndexFunc(winners, func(w objectRef) bool { return w.object.platformOf(name) == index.Platform{} }); i >= 0 {
		every := winners[i]
		winners = slices.DeleteFunc(winners, func(w objectRef) bool { return w.confirmed < every.confirmed })
	}
	if len(winners) == 0 {
		return nil
	}
	manifests := make([]index.Manifest, len(winners))
	for i, w := range winners {
		manifests[i] = w.object.manifest(w.object.platformOf(name))
	}
	return manifests
}

// compare orders references by the time of their confirmation, and within a second by
// digest, so that the order in which objects come does not matter.
func compare(a, b objectRef) int {
	return cmp.Or(cmp.Compare(a.confirmed, b.confirmed), cmp.Compare(a.object.digest, b.object.digest))
}

// apply takes over an object as the apiserver has it.
func (s *Source) apply(m *v1alpha1.ImageManifest) error {
	o, err := convert(m, s.strings.Intern)
	s.mu.Lock()
	s.seen = true
	s.mu.Unlock()
	return cmp.Or(err, s.set(m.Name, o))
}
