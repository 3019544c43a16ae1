package imagelayers

import (
	"maps"
	"strconv"
)

// ExclusiveKey is the key of the annotation that says how many bytes a node gets
// back when it removes an image: those of layers that nothing else there needs,
// uncompressed. It is reserved, as Prefix is.
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
	s := newStored(images, layers)
	exclusive := make(map[string]int64, len(images))

	for i := range images {
		if images[i].ReadOnly {
			exclusive[images[i].ID] = 0
		}
	}

	// An ID can be in several stores.
	for i := range images {
		if images[i].ReadOnly {
			continue
		}

		size, known := s.exclusive(&images[i])
		if known {
			exclusive[images[i].ID] = size
		} else {
			delete(exclusive, images[i].ID)
		}
	}

	return exclusive
}

// stored is what stores have that can be written.
type stored struct {
	layers map[string]StoredLayer
	// children counts the layers that lie on a layer, tops the images of which it
	// is a top.
	children, tops map[string]int
}

func newStored(images []StoredImage, layers []StoredLayer) *stored {
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

	for i := range images {
		if images[i].ReadOnly {
			continue
		}

		s.tops[images[i].Top]++

		for _, top := range images[i].MappedTops {
			s.tops[top]++
		}
	}

	return s
}

// exclusive returns what goes with an image; known is false if a size is not known.
func (s *stored) exclusive(image *StoredImage) (size int64, known bool) {
	known = true
	// going counts the children of a layer that go as well.
	going := map[string]int{}
	remove := func(layer StoredLayer) {
		going[layer.Parent]++
		size += layer.Size
		known = known && layer.Size >= 0
	}
	inUse := func(id string, ownTops int) bool {
		return s.tops[id] > ownTops || s.children[id] > going[id]
	}

	topInUse := inUse(image.Top, 1)

	for _, id := range image.MappedTops {
		topInUse = topInUse || inUse(id, 1)

		if layer, ok := s.layers[id]; ok {
			remove(layer)
		}
	}

	top, ok := s.layers[image.Top]
	if !ok || topInUse {
		return size, known
	}

	remove(top)

	// This ends even if parents form a ring: there, a child of each layer stays.
	for layer, ok := s.layers[top.Parent]; ok && !inUse(layer.ID, 0); layer, ok = s.layers[layer.Parent] {
		remove(layer)
	}

	return size, known
}

// WithExclusive returns what also says how many bytes are exclusively the image's.
// It is the same value as long as that stays the same.
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
