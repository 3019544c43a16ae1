package index

import (
	"slices"
	"strings"
	"sync"

	"github.com/layer-locality/layer-locality/imageref"
)

// Sum is what a node holds.
type Sum struct {
	// Images as they are reported, each once. Layers each once; an image of which only the name
	// is known has none.
	Images, Layers int
	// Bytes of the layers, and of the images that are known by name: compressed, and for the
	// latter an estimate. ElsewhereBytes are those of them that another node holds, too.
	Bytes, ElsewhereBytes int64
}

// layerSets are used again: one for each of thousands of nodes would be most of what sums take.
var layerSets = sync.Pool{New: func() any { return map[*layer]bool{} }}

// Sum returns what a node holds; the zero Sum for a node that is not known.
func (x *Index) Sum(nodeName string) (sum Sum) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := x.nodes[nodeName]
	if n == nil {
		return Sum{}
	}
	images := map[*imageReport]bool{}
	seen := layerSets.Get().(map[*layer]bool) //nolint:forcetypeassert // see layerSets
	for _, reports := range n.sources {
		for _, r := range reports {
			images[r] = true
			for _, l := range r.content.layers {
				seen[l] = true
			}
		}
	}
	sum.Images = len(images)
	for l := range seen {
		size := x.sizeOf(l)
		sum.Bytes += size
		if l.nodes.n > 1 {
			sum.ElsewhereBytes += size
		}
		if !l.opaque {
			sum.Layers++
		}
	}
	clear(seen)
	layerSets.Put(seen)
	return sum
}

// NodeImage is an image that a node has.
type NodeImage struct {
	// Names sorted, each once.
	Names []imageref.Canonical
	// Layers with the keys that the node has for them (see Chain) and the sizes that count. An
	// image that is known by name only is one piece, whose key is no digest and whose size is
	// an estimate.
	Layers []Layer
	// Report is the source of that.
	Report Report
}

// NodeImages returns the images of a node, in no particular order.
func (x *Index) NodeImages(nodeName string) (images []NodeImage) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := x.nodes[nodeName]
	if n == nil {
		return nil
	}
	for source, reports := range n.sources {
		for _, r := range reports {
			image := NodeImage{Report: Report{source, !r.content.opaque}, Layers: make([]Layer, len(r.content.layers))}
			for _, name := range r.names {
				image.Names = append(image.Names, name.canonical)
			}
			slices.Sort(image.Names)
			for i, l := range r.content.layers {
				image.Layers[i] = Layer{l.key, x.sizeOf(l)}
			}
			images = append(images, image)
		}
	}
	return images
}

// Holders returns how many nodes hold a layer, by its key.
func (x *Index) Holders(key string) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l := x.layers[key]; l != nil {
		return l.nodes.n
	}
	return 0
}

// Usage is how much of the nodes a layer is.
type Usage struct {
	Layer
	// Nodes hold it.
	Nodes int
	// Images have it: sets of layers, under whatever names. They are numbers that stand for
	// images in one answer, sorted.
	Images []int
}

// Usages returns all layers that nodes hold, sorted by digest, and the names of the images by
// their numbers. Images that are known by name only have none.
func (x *Index) Usages() (layers []Usage, images [][]imageref.Canonical) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	// Contents also differ by the reported sizes: the same layers are one image.
	byLayers := map[string]int{}
	numbers := map[*content]int{}
	users := map[*layer][]int{}
	for _, r := range x.reports {
		c := r.content
		if c.opaque || len(r.nodes) == 0 {
			continue
		}
		number, ok := numbers[c]
		if !ok {
			key := c.layerKeys()
			if number, ok = byLayers[key]; !ok {
				number = len(images)
				byLayers[key] = number
				images = append(images, nil)
				for _, l := range c.layers {
					users[l] = append(users[l], number)
				}
			}
			numbers[c] = number
		}
		for _, name := range r.names {
			images[number] = append(images[number], name.canonical)
		}
	}
	for i := range images {
		slices.Sort(images[i])
		images[i] = slices.Compact(images[i])
	}
	for l, of := range users {
		slices.Sort(of)
		layers = append(layers, Usage{Layer{l.key, l.size}, l.nodes.n, of})
	}
	slices.SortFunc(layers, func(a, b Usage) int { return strings.Compare(a.Digest, b.Digest) })
	return layers, images
}

// layerKeys returns a text that stands for the layers.
func (c *content) layerKeys() string {
	keys := make([]string, len(c.layers))
	for i, l := range c.layers {
		keys[i] = l.key
	}
	return strings.Join(keys, " ")
}
