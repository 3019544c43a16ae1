package locality

import (
	"iter"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// manifestSource is the name in the index of images that nodes name without their layers, and
// that manifests resolve.
const manifestSource = "manifests"

// report writes into the index what a node lists: what it states itself, and what a
// FollowedSource makes of the images of which it states only names. Each image is reported
// once, so that a node whose layers are known does not also count as one that has something
// of that name.
func (t *Tracker) report(node *v1.Node) {
	t.reports.Lock()
	defer t.reports.Unlock()
	t.writeReportLocked(node)
}

// writeReportLocked is report with Tracker.reports locked. What an agent reports of the node
// stands for what it lists itself.
func (t *Tracker) writeReportLocked(node *v1.Node) {
	images := nodestatus.Images(node)
	var agent *keptReport
	if t.nodeReports.has(node) {
		agent = t.nodeReports.of(node)
	}
	in := nodeTraits{platform: nodestatus.Platform(node)}
	if in.chains = t.first.Args.LayerReuse == config.ReuseInChains && nodestatus.MayUseChains(node) && !slices.ContainsFunc(images, hasLayers); agent != nil {
		in.chains = agent.InChains
	}
	t.index.SetJoins(node.Name, t.joins(node))
	t.index.SetChains(node.Name, in.chains)
	if agent != nil {
		images = t.writeKeptReportLocked(node.Name, agent, images)
	}
	stated := images
	var resolved []index.Image
	if len(t.followed) > 0 {
		stated = make([]index.Image, 0, len(images))
		for _, image := range images {
			if withLayers, ok := t.resolve(image, in); ok {
				resolved = append(resolved, withLayers)
			} else {
				stated = append(stated, image)
			}
		}
	}
	t.index.SetImages(manifestSource, node.Name, resolved)
	t.index.SetImages(nodeStatusSource, node.Name, stated)
}

func hasLayers(image index.Image) bool { return len(image.Layers) > 0 }

// nodeTraits are what the layers of an image on a node depend on: its platform, and whether
// it uses a layer again only above the same layers.
type nodeTraits struct {
	platform index.Platform
	chains   bool
}

// maxLookups bounds how many names of an image are looked up. The kubelet lists five.
const maxLookups = 16

// resolve returns an image with the layers that a manifest gives it; ok is false for one
// whose layers are stated, and for one that is not known. A digest identifies an image: that
// of a manifest before that of an index, from which the node may have taken another manifest
// than the source. A tag does so only if the image has no digest, as one that was loaded from
// an archive, and if no other manifest has the tag.
func (t *Tracker) resolve(image index.Image, in nodeTraits) (resolved index.Image, ok bool) {
	if len(image.Layers) > 0 {
		return image, false
	}
	names := image.Names[:min(len(image.Names), maxLookups)]
	digests := false
	for _, of := range [...]index.Platform{{}, in.platform} { // without a platform, an index has no answer
		for digest := range digestsOf(names, image.Canonical) {
			digests = true
			if image.Layers, ok = t.layersOnNode(digest, nodeTraits{of, in.chains}); ok {
				return image, true
			}
		}
	}
	if digests {
		return image, false
	}
	for _, name := range append(canonical(names...), image.Canonical...) {
		if image.Layers, ok = t.layersOnNode(name, in); ok {
			return image, true
		}
	}
	return image, false
}

// digestsOf yields those names of an image that are digests. Names are not parsed, which
// would take most of the time: what is no digest is not known either.
func digestsOf(names []string, more []imageref.Canonical) iter.Seq[imageref.Canonical] {
	return func(yield func(imageref.Canonical) bool) {
		for _, name := range names {
			if _, digest, ok := strings.Cut(name, "@"); ok && strings.Contains(digest, ":") && !yield(imageref.Canonical(digest)) {
				return
			}
		}
		for _, name := range more {
			if !strings.Contains(string(name), "/") && !yield(name) {
				return
			}
		}
	}
}

// layersOnNode returns the layers of a node that has an image under a name.
func (t *Tracker) layersOnNode(name imageref.Canonical, in nodeTraits) (layers []index.Layer, ok bool) {
	for _, source := range t.followed {
		manifest, ok := source.ManifestOnNode(name, in.platform)
		if ok && in.chains {
			return manifest.Chain()
		}
		if ok {
			return manifest.Layers, true
		}
	}
	return nil, false
}

// resolveAgain brings up to date what the nodes have that list images under one of the
// names: a FollowedSource has another answer about these.
func (t *Tracker) resolveAgain(names []imageref.Canonical) {
	// With both, nothing is being written that was resolved before and is not found yet.
	t.reports.Lock()
	t.unlisted.mu.Lock()
	nodes := t.index.NodesWith(names)
	t.unlisted.mu.Unlock()
	t.reports.Unlock()
	for _, name := range nodes {
		// One at a time, so that reports of nodes need not wait for all of them. The Node is
		// read with the mutex held: it is at least as new as what was reported last.
		t.reports.Lock()
		if node := t.node(name); node != nil {
			t.writeReportLocked(node)
		}
		t.reports.Unlock()
		t.rewriteUnlisted(name)
	}
}
