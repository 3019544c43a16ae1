// Package contents describes what a node holds, and makes a NodeLayers of it that is not too
// large.
package contents

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Contents are the images of a node.
type Contents struct {
	// Runtime is the container runtime and its version.
	Runtime string
	// InChains means that a layer is used again only above the same layers.
	InChains bool
	// JoinsDownloads tells whether a layer is downloaded once although two images that are
	// pulled at the same time need it; nil if that is not known.
	JoinsDownloads *bool
	Images         []Image
}

// Image is an image of a node.
type Image struct {
	// Names are tags and digests. Those that cannot be listed are left out of the NodeLayers.
	Names []string
	// Layers are those of its manifest, in that order, the base first; empty if they are not
	// known.
	Layers []v1alpha1.ImageLayer
}

// MaxNames is how many names of an image are listed. Schedulers look at as many.
const MaxNames = 16

// Spec returns all that a node holds, sorted, so that the same contents give the same lists.
// The lists may have more than a NodeLayers can; see Fit.
func (c *Contents) Spec() *v1alpha1.NodeLayersSpec {
	spec := &v1alpha1.NodeLayersSpec{Runtime: c.Runtime, Reuse: v1alpha1.ReuseByDigest, JoinsDownloads: c.JoinsDownloads}
	if c.InChains {
		spec.Reuse = v1alpha1.ReuseInChains
	}
	l := lists{sizes: map[string]int64{}}
	for _, image := range c.Images {
		if len(image.Layers) > v1alpha1.MaxLayers {
			image.Layers = nil
		}
		if names := listable(image.Names); len(names) > 0 {
			l.images = append(l.images, listed{names: names, digests: l.digests(image.Layers)})
		}
	}
	spec.TotalImages, spec.TotalLayers = int32(len(l.images)), int32(len(l.sizes)) //nolint:gosec // readers bound what they read
	for _, size := range l.sizes {
		spec.TotalBytes = plus(spec.TotalBytes, size)
	}
	l.write(spec)
	return spec
}

// plus adds sizes as manifests claim them: some millions of the largest layers are more than an
// int64 can hold.
func plus(total, size int64) int64 {
	if total > math.MaxInt64-size {
		return math.MaxInt64
	}
	return total + size
}

// listable returns the valid ones of an image's names, each once: digests first, then tags,
// sorted, at most MaxNames. Neither keeps the other from half of the places.
func listable(names []string) []string {
	var valid []string
	for _, name := range names {
		if isName(name) && !slices.Contains(valid, name) {
			valid = append(valid, name)
		}
	}
	slices.SortFunc(valid, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
	})
	digests := slices.IndexFunc(valid, func(name string) bool { return !v1alpha1.IsDigest(name) })
	if digests < 0 {
		digests = len(valid)
	}
	kept := min(digests, max(MaxNames/2, MaxNames-(len(valid)-digests)))
	valid = slices.Delete(valid, kept, digests)
	return valid[:min(len(valid), MaxNames)]
}

func rank(name string) int {
	if v1alpha1.IsDigest(name) {
		return 0
	}
	return 1
}

// maxName is the length of a name; MaxNames of them, and the places of a few layers, are an
// image that can be listed.
const maxName = 400

// isName tells whether a text can be a name in a list: no spaces, and nothing that takes more
// than a byte in JSON.
func isName(text string) bool {
	if text == "" || len(text) > maxName {
		return false
	}
	for i := range len(text) {
		switch c := text[i]; {
		case c <= ' ', c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// lists are the lists of a NodeLayers while they are made.
type lists struct {
	// sizes of all layers by their digest.
	sizes  map[string]int64
	images []listed
}

// listed is an image with the digests of its layers.
type listed struct{ names, digests []string }

// digests notes the sizes of the layers and returns their digests; nil if one is not valid. Of
// several sizes of a layer the smallest counts.
func (l *lists) digests(layers []v1alpha1.ImageLayer) []string {
	for _, layer := range layers {
		if !v1alpha1.IsDigest(layer.Digest) || layer.Size < 0 || layer.Size > v1alpha1.MaxLayerBytes {
			return nil
		}
	}
	digests := make([]string, len(layers))
	for i, layer := range layers {
		if size, known := l.sizes[layer.Digest]; !known || layer.Size < size {
			l.sizes[layer.Digest] = layer.Size
		}
		digests[i] = layer.Digest
	}
	return digests
}

// write writes the lists into spec: the images, and the layers that they have.
func (l *lists) write(spec *v1alpha1.NodeLayersSpec) {
	used := map[string]int{}
	for _, image := range l.images {
		for _, digest := range image.digests {
			used[digest] = 0
		}
	}
	sorted := make([]string, 0, len(used))
	for digest := range used {
		sorted = append(sorted, digest)
	}
	slices.Sort(sorted)
	spec.Layers, spec.Images = make([]string, len(sorted)), make([]string, len(l.images))
	for place, digest := range sorted {
		used[digest] = place
		spec.Layers[place] = v1alpha1.ImageLayer{Digest: digest, Size: l.sizes[digest]}.String()
	}
	for i, image := range l.images {
		places := make([]int, len(image.digests))
		for j, digest := range image.digests {
			places[j] = used[digest]
		}
		spec.Images[i] = v1alpha1.NodeImage{Layers: places, Names: image.names}.String()
	}
	// By name, as places change with every layer.
	slices.SortFunc(spec.Images, func(a, b string) int {
		_, x, _ := strings.Cut(a, " ")
		_, y, _ := strings.Cut(b, " ")
		return cmp.Or(strings.Compare(x, y), strings.Compare(a, b))
	})
}
