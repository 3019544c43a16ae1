package imagelayers

import (
	"maps"
	"strconv"
)

// ExclusiveKey is the key of the annotation with the number of bytes that a node
// gets back when it removes an image: those of layers that nothing else there
// needs, uncompressed. It is reserved, as Prefix is.
const ExclusiveKey = "imageExclusiveBytes"

// StoredLayer is a layer as a store has it: unpacked, above another one.
type StoredLayer struct {
	ID string
	// Parent is the layer below it, "" if there is none.
	Parent string
	// Size is that of the uncompressed content, in bytes; negative if it is not
	// known.
	Size int64
	// ReadOnly means that it is in a store that cannot be written.
	ReadOnly bool
}

// StoredImage is an image as a store has it.
type StoredImage struct {
	ID string
	// Top is the uppermost of its layers.
	Top string
	// MappedTops are copies of Top for other user namespaces.
	MappedTops []string
	// ReadOnly means that it is in a store that cannot be written.
	ReadOnly bool
}

// ExclusiveBytes returns, by image ID, how many bytes of layers go when that image
// alone is removed. These are its layers from the top down to the first one on
// which another layer lies (of an image, of a container, or of a pull that goes
// on) or which is the top of another image: what the store removes. Nothing goes
// from stores that cannot be written. Images with a layer of unknown size among
// what goes are left out.
func ExclusiveBytes(images []StoredImage, layers []StoredLayer) map[string]int64 {
	exclusive := make(map[string]int64, len(images))
	// An ID can be in several stores, and is removed from all that can be written.
	writable := make(map[string][]StoredImage, len(images))

	for i := range images {
		image := &images[i]
		if image.ReadOnly {
			exclusive[image.ID] = 0
		} else {
			writable[image.ID] = append(writable[image.ID], *image)
		}
	}

	s := newStored(writable, layers)
	for id, records := range writable {
		size, known := s.exclusive(records)
		if known {
			exclusive[id] = size
		} else {
			delete(exclusive, id)
		}
	}

	return exclusive
}

// stored is what stores have that can be written.
type stored struct {
	layers map[string]StoredLayer
	// children counts the layers that lie on a layer, tops the image IDs of which
	// it is a top.
	children, tops map[string]int
}

func newStored(images map[string][]StoredImage, layers []StoredLayer) *stored {
	s := &stored{
		layers:   make(map[string]StoredLayer, len(layers)),
		children: make(map[string]int, len(layers)),
		tops:     make(map[string]int, len(images)),
	}

	for _, layer := range layers {
		if !layer.ReadOnly {
			s.layers[layer.ID] = layer
			s.children[layer.Parent]++
		}
	}

	for _, records := range images {
		tops := map[string]struct{}{}

		for i := range records {
			tops[records[i].Top] = struct{}{}
			for _, top := range records[i].MappedTops {
				tops[top] = struct{}{}
			}
		}

		for top := range tops {
			s.tops[top]++
		}
	}

	return s
}

// exclusive returns what goes with the records of an image; known is false if a
// size is not known.
func (s *stored) exclusive(records []StoredImage) (size int64, known bool) {
	g := going{stored: s, layers: map[string]struct{}{}, children: map[string]int{}, known: true}
	for i := range records {
		g.remove(&records[i])
	}

	return g.size, g.known
}

// going is what goes with an image.
type going struct {
	*stored

	layers map[string]struct{}
	// children counts those of a layer that go as well.
	children map[string]int
	size     int64
	known    bool
}

func (g *going) inUse(id string, ownTops int) bool {
	return g.tops[id] > ownTops || g.stored.children[id] > g.children[id]
}

func (g *going) removeLayer(layer StoredLayer) {
	if _, gone := g.layers[layer.ID]; gone {
		return
	}

	g.layers[layer.ID] = struct{}{}
	g.children[layer.Parent]++
	g.size += layer.Size
	g.known = g.known && layer.Size >= 0
}

func (g *going) remove(image *StoredImage) {
	topInUse := g.inUse(image.Top, 1)

	for _, id := range image.MappedTops {
		topInUse = topInUse || g.inUse(id, 1)

		if layer, ok := g.stored.layers[id]; ok {
			g.removeLayer(layer)
		}
	}

	top, ok := g.stored.layers[image.Top]
	if !ok || topInUse {
		return
	}

	g.removeLayer(top)

	// This ends even if parents form a ring: there, a child of each layer stays.
	for layer, ok := g.stored.layers[top.Parent]; ok && !g.inUse(layer.ID, 0); layer, ok = g.stored.layers[layer.Parent] {
		g.removeLayer(layer)
	}
}

// WithExclusive returns the layers with the number of bytes that only the image
// needs. It is the same value as long as that stays the same.
func (l *Layers) WithExclusive(bytes int64) *Layers {
	value := strconv.FormatInt(bytes, 10)

	if l == nil {
		return newLayers(map[string]string{ExclusiveKey: value})
	}

	if last := l.exclusive.Load(); last != nil && last.annotations[ExclusiveKey] == value {
		return last
	}

	annotations := make(map[string]string, len(l.annotations)+1)
	maps.Copy(annotations, l.annotations)
	annotations[ExclusiveKey] = value

	stated := newLayers(annotations)
	l.exclusive.Store(stated)

	return stated
}
