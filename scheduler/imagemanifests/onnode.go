package imagemanifests

import (
	"context"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Start implements locality.FollowedSource.
func (s *Source) Start(ctx context.Context, changed func(names []imageref.Canonical)) {
	s.changed = changed
	go s.watch(ctx, s.client)
	if s.leases != nil {
		go s.watchLease(ctx, s.leases)
	}
}

// HasSynced implements locality.FollowedSource.
func (s *Source) HasSynced() bool { return s.tried.Load() }

// ManifestOnNode implements locality.FollowedSource. The digest of a manifest is that manifest
// on every node. Any other name is an index, or a tag: it is the manifest for the platform of
// the node, if there is only one that it can be. When a registry last confirmed it does not
// matter: a node may have pulled what a tag was before. So a tag that has moved has no answer.
func (s *Source) ManifestOnNode(name imageref.Canonical, platform index.Platform) (manifest index.Manifest, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	known := s.images[name]
	if known == nil || known.moved {
		return index.Manifest{}, false
	}
	unknown := index.Platform{} // of a node; a manifest of none is for all
	var found *object
	for _, r := range known.references {
		switch o := r.object; {
		case o.digest == "":
		case o.digest == name:
			return o.manifest(platform), true
		case o.platform != platform && o.platform != unknown && platform != unknown:
		case found != nil && found.digest != o.digest: // a manifest may have several objects
			return index.Manifest{}, false
		default:
			found = o
		}
	}
	if found == nil || platform == unknown && found.platform != unknown {
		return index.Manifest{}, false
	}
	return found.manifest(platform), true
}

// moved reports whether the last of the references gives a tag to another manifest than one before
// it, for the same platform.
func moved(n imageref.Canonical, references []objectRef) bool {
	last := references[len(references)-1].object
	if last.digest == "" || !strings.Contains(string(n), "/") { // digests have none
		return false
	}
	return slices.ContainsFunc(references, func(r objectRef) bool {
		o, every := r.object, index.Platform{}
		return o.digest != "" && o.digest != last.digest &&
			(o.platform == last.platform || o.platform == every || last.platform == every)
	})
}

// note remembers the names about which ManifestOnNode has another answer after old was replaced by o.
func (s *Source) note(old, o *object) {
	if s.changed == nil {
		return
	}
	old, o = old.resolved(), o.resolved()
	same := old != nil && o != nil && old.digest == o.digest && old.platform == o.platform && old.sameLayers(o)
	for _, n := range old.all() {
		if !same || !o.has(n.canonical) {
			s.noted = append(s.noted, n.canonical)
		}
	}
	for _, n := range o.all() {
		if !old.has(n.canonical) {
			s.noted = append(s.noted, n.canonical)
		}
	}
}

// resolved returns the object if it has content, otherwise nil.
func (o *object) resolved() *object {
	if o == nil || o.digest == "" {
		return nil
	}
	return o
}

// notify calls changed with the noted names, and the functions of OnAnswer.
func (s *Source) notify() {
	if names := s.noted; len(names) > 0 {
		s.noted = nil
		s.changed(names)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, f := range s.waiting {
		f()
	}
}
