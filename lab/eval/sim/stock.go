package sim

import (
	"context"
	"fmt"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// digest returns that of the image's manifest.
func (i *image) digest() string { return fmt.Sprintf("sha256:%064x", i.id) }

// digestName returns how nodes name an image by digest.
func (i *image) digestName() string { return "localhost/image@" + i.digest() }

// nodeManifests are manifests that also explain what stock nodes name by digest. The
// resolver asks for what pods use, and for what nodes list.
type nodeManifests struct {
	*manifests
	// resolved has the manifests by digest.
	resolved map[imageref.Canonical]index.Manifest
	changed  func([]imageref.Canonical)
}

var _ locality.FollowedSource = &nodeManifests{}

// learn has the resolver find an image at some time. It does nothing for other
// policies.
func (s *nodeManifests) learn(i *image, name string) {
	if s == nil || i == nil {
		return
	}
	digest, err := imageref.Parse(i.digestName())
	if err != nil {
		s.r.fail(err)
		return
	}
	s.r.q.at(s.r.known[name], func() {
		if _, ok := s.resolved[digest]; !ok {
			s.resolved[digest] = manifestOf(i)
			s.changed([]imageref.Canonical{digest})
		}
	})
}

// ManifestOnNode implements locality.FollowedSource.
func (s *nodeManifests) ManifestOnNode(name imageref.Canonical, _ index.Platform) (manifest index.Manifest, ok bool) {
	manifest, ok = s.resolved[name]
	return manifest, ok
}

// Start implements locality.FollowedSource.
func (s *nodeManifests) Start(_ context.Context, changed func([]imageref.Canonical)) {
	s.changed = changed
}

// HasSynced implements locality.FollowedSource.
func (*nodeManifests) HasSynced() bool { return true }
