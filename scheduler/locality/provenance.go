package locality

import (
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Provenance is how it is known that a node has an image.
type Provenance string

const (
	// FromLayers means that the node states the image's layers, or an agent does.
	FromLayers Provenance = "layers"
	// FromManifest means that the node names the image, and a manifest has its layers.
	FromManifest Provenance = "manifest"
	// FromName means that the node names the image, and nothing else is known.
	FromName Provenance = "name"
	// FromUse means that the node does not list the image, but pods use it there or did.
	FromUse Provenance = "use"
)

func provenanceOf(r index.Report) Provenance {
	switch {
	case r.Source == unlistedSource:
		return FromUse
	case !r.Layers:
		return FromName
	case r.Source == manifestSource:
		return FromManifest
	}
	return FromLayers
}

// Provenance returns how it is known that a node has an image under one of the names; empty if
// it does not have it.
func (t *Tracker) Provenance(node string, names []imageref.Canonical) Provenance {
	var best Provenance
	for _, r := range t.index.Reports(node, names) {
		if p := provenanceOf(r); best == "" || p.rank() < best.rank() {
			best = p
		}
	}
	return best
}

// rank is lower for better provenance.
func (p Provenance) rank() int {
	for i, other := range allProvenances {
		if p == other {
			return i
		}
	}
	return len(allProvenances)
}

var allProvenances = [...]Provenance{FromLayers, FromManifest, FromUse, FromName}

// ImagesOf counts the images of a node by how they are known.
func (t *Tracker) ImagesOf(node string) map[Provenance]int {
	return byProvenance(t.index.ImagesOf(node))
}

// ImagesOfAll counts the images of all nodes by how they are known, with 0 for what there
// is none of.
func (t *Tracker) ImagesOfAll() map[Provenance]int {
	counts := byProvenance(t.index.ImagesOfAll())
	for _, p := range allProvenances {
		counts[p] += 0
	}
	return counts
}

func byProvenance(reports map[index.Report]int) map[Provenance]int {
	counts := map[Provenance]int{}
	for r, n := range reports {
		counts[provenanceOf(r)] += n
	}
	return counts
}
