package nodelayers

import (
	"slices"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// maxLayerIndexes is how many layers all images of a node may name together, the shared ones each time. What an agent
// writes, at most 128 KiB, cannot have as many: each takes two characters. An older schema allowed more, and the
// index is locked while it takes a report over.
const maxLayerIndexes = 64 << 10

// convert returns the report of an object, and how many of its lines are left out because they
// are not valid. The schema bounds what the apiserver accepts, but not what it stored under an
// older schema, so nothing here relies on it.
func convert(spec *v1alpha1.NodeLayersSpec) (report locality.NodeReport, refused int) {
	report = locality.NodeReport{InChains: spec.Reuse == v1alpha1.ReuseInChains, JoinsDownloads: spec.JoinsDownloads}
	refused = max(0, len(spec.Layers)-v1alpha1.MaxNodeLayers) + max(0, len(spec.Images)-v1alpha1.MaxNodeImages)
	layers := make([]index.Layer, min(len(spec.Layers), v1alpha1.MaxNodeLayers))
	for i := range layers {
		if spec.Layers[i] == "" {
			continue // not read; the schema has no empty one
		}
		l, err := v1alpha1.ParseLayer(spec.Layers[i])
		if err != nil {
			refused++
			continue // its index stays empty
		}
		layers[i] = index.Layer{Digest: l.Digest, Size: l.Size}
	}
	// Without the small layers, nothing is known about what is above them.
	unknown := report.InChains && spec.MinLayerBytes > 0
	report.Images = make([]index.Image, 0, min(len(spec.Images), v1alpha1.MaxNodeImages))
	left := maxLayerIndexes
	for _, text := range spec.Images[:min(len(spec.Images), v1alpha1.MaxNodeImages)] {
		parsed, err := v1alpha1.ParseNodeImage(text, len(layers))
		if err != nil || len(parsed.Layers) > left {
			refused++
			continue
		}
		left -= len(parsed.Layers)
		image := index.Image{}
		for _, name := range parsed.Names {
			if v1alpha1.IsDigest(name) {
				image.Canonical = append(image.Canonical, imageref.Canonical(name))
			} else {
				image.Names = append(image.Names, name)
			}
		}
		switch {
		case unknown:
		case report.InChains:
			image.Layers = chainOf(layers, parsed.Layers)
		default:
			image.Layers = layersOf(layers, parsed.Layers)
		}
		report.Images = append(report.Images, image)
	}
	return report, refused
}

// layersOf returns the layers at the indexes, without those that are not valid. They are
// sorted by digest if all layers are.
func layersOf(layers []index.Layer, indexes []int) []index.Layer {
	indexes = slices.Clone(indexes)
	slices.Sort(indexes)
	found := make([]index.Layer, 0, len(indexes))
	for _, i := range slices.Compact(indexes) {
		if layers[i].Digest != "" {
			found = append(found, layers[i])
		}
	}
	return found
}

// chainOf returns the chain of the layers at the indexes, up to the first that is not valid.
func chainOf(layers []index.Layer, indexes []int) []index.Layer {
	ordered := make([]index.Layer, 0, len(indexes))
	for _, i := range indexes {
		if layers[i].Digest == "" {
			break
		}
		ordered = append(ordered, layers[i])
	}
	return index.Chain(ordered)
}
