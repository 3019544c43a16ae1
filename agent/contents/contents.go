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
	// JoinsDownloads reports whether a layer is downloaded once although two images that are
	// pulled at the same time need it; nil if that is not known.
	JoinsDownloads *bool
	Images         []Image

	// text is how many bytes the names of Images have that were added, places how many layers these name.
	text, places int
}

// What images have in memory together, far more than can be listed.
const (
	maxText   = 8 << 20
	maxPlaces = 1 << 19
)

// Add adds an image, with those of its names that can be listed. If the names of all have become too many,
// it has the first one only; without layers, if these have.
func (c *Contents) Add(image Image) {
	image.Names = listable(image.Names)
	for i, name := range image.Names {
		if c.text += len(name); i > 0 && c.text > maxText {
			image.Names = image.Names[:i]
			break
		}
	}
	image.Names = slices.Clone(image.Names) // what was cut off is not kept behind them
	if c.places += len(image.Layers); c.places > maxPlaces {
		image.Layers = nil
	}
	c.Images = append(c.Images, image)
}

// Image is an image of a node.
type Image struct {
	// Names are tags and digests. Those that cannot be listed are left out of the NodeLayers.
	Names []string
	// Layers are those of its manifest, in that order, the base first; empty if they are not
	// known.
	Layers []v1alpha1.ImageLayer
}

// Spec returns the spec of the node's NodeLayers, sorted, so that the same contents give the same
// lists: without layers below minLayerBytes, unless all are needed because layers are used in chains, and
// with lists of at most limit bytes as JSON. Beyond that, what takes most of the object for a byte of its
// image goes first. The totals are those of all that the node holds.
func (c *Contents) Spec(minLayerBytes int64, limit int) *v1alpha1.NodeLayersSpec {
	spec := &v1alpha1.NodeLayersSpec{Runtime: printable(c.Runtime), Reuse: v1alpha1.ReuseByDigest, JoinsDownloads: c.JoinsDownloads, MinLayerBytes: minLayerBytes}
	if c.InChains {
		spec.Reuse, spec.MinLayerBytes = v1alpha1.ReuseInChains, 0
	}
	l := c.lists()
	spec.TotalImages, spec.TotalLayers = int32(len(l.images)), int32(len(l.layers)) //nolint:gosec // readers bound what they read
	for _, layer := range l.layers {
		spec.TotalBytes = plus(spec.TotalBytes, layer.Size)
	}
	for i := range l.images {
		image := &l.images[i]
		image.layers = slices.DeleteFunc(image.layers, func(n int32) bool { return l.layers[n].Size < spec.MinLayerBytes })
	}
	l.cut(limit)
	l.write(spec)
	return spec
}

// printable returns the first printable ones of a text's characters, as many as a runtime's name has.
func printable(text string) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return -1
		}
		return c
	}, text)
	return text[:min(len(text), v1alpha1.MaxRuntimeLength)]
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
// sorted, as many as are listed. Neither keeps the other from half of the places.
func listable(names []string) []string {
	const most = v1alpha1.MaxNodeImageNames
	var valid []string
	for _, name := range names {
		if v1alpha1.IsNodeImageName(name) {
			valid = append(valid, name)
		}
	}
	slices.SortFunc(valid, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
	})
	valid = slices.Compact(valid)
	digests := slices.IndexFunc(valid, func(name string) bool { return !v1alpha1.IsDigest(name) })
	if digests < 0 {
		digests = len(valid)
	}
	kept := min(digests, max(most/2, most-(len(valid)-digests)))
	valid = slices.Delete(valid, kept, digests)
	return valid[:min(len(valid), most)]
}

func rank(name string) int {
	if v1alpha1.IsDigest(name) {
		return 0
	}
	return 1
}

// lists are the lists of a NodeLayers while they are made.
type lists struct {
	// layers, each once. Images name them by their places.
	layers []v1alpha1.ImageLayer
	places map[string]int32
	images []listed
}

// listed is an image with the places of its layers.
type listed struct {
	names  []string
	layers []int32
}

// lists returns all that can be listed.
func (c *Contents) lists() *lists {
	l := &lists{places: map[string]int32{}}
	for _, image := range c.Images {
		if names := listable(image.Names); len(names) > 0 {
			l.images = append(l.images, listed{names: names, layers: l.add(image.Layers)})
		}
	}
	return l
}

// add notes the layers of an image and returns their places; nil if one is not valid, or if they are too
// many. Of several sizes of a layer the smallest counts.
func (l *lists) add(layers []v1alpha1.ImageLayer) []int32 {
	if len(layers) > v1alpha1.MaxLayers || slices.ContainsFunc(layers, func(layer v1alpha1.ImageLayer) bool {
		return !v1alpha1.IsDigest(layer.Digest) || layer.Size < 0 || layer.Size > v1alpha1.MaxLayerBytes
	}) {
		return nil
	}
	places := make([]int32, len(layers))
	for i, layer := range layers {
		place, known := l.places[layer.Digest]
		if !known {
			place = int32(len(l.layers)) //nolint:gosec // readers bound what they read
			l.layers, l.places[layer.Digest] = append(l.layers, layer), place
		}
		l.layers[place].Size = min(l.layers[place].Size, layer.Size)
		places[i] = place
	}
	return places
}

// write writes the lists into spec: the images, and the layers that they have.
func (l *lists) write(spec *v1alpha1.NodeLayersSpec) {
	var used []int32
	for _, image := range l.images {
		used = append(used, image.layers...)
	}
	slices.Sort(used)
	used = slices.Compact(used)
	slices.SortFunc(used, func(a, b int32) int { return strings.Compare(l.layers[a].Digest, l.layers[b].Digest) })
	spec.Layers, spec.Images = make([]string, len(used)), make([]string, len(l.images))
	at := make(map[int32]int, len(used))
	for i, place := range used {
		at[place], spec.Layers[i] = i, l.layers[place].String()
	}
	for i, image := range l.images {
		places := make([]int, len(image.layers))
		for j, place := range image.layers {
			places[j] = at[place]
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
