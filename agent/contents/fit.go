package contents

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Smaller returns what Contents.Spec returned with lists of at most limit bytes as JSON.
func Smaller(whole *v1alpha1.NodeLayersSpec, limit int) (*v1alpha1.NodeLayersSpec, error) {
	var c Contents
	layers := make([]v1alpha1.ImageLayer, len(whole.Layers))
	for i, text := range whole.Layers {
		layer, err := v1alpha1.ParseLayer(text)
		if err != nil {
			return nil, err
		}
		layers[i] = layer
	}
	for i, text := range whole.Images {
		parsed, err := v1alpha1.ParseNodeImage(text, len(layers))
		if err != nil {
			return nil, fmt.Errorf("image %d of %d: %w", i+1, len(whole.Images), err)
		}
		image := Image{Names: parsed.Names}
		for _, place := range parsed.Layers {
			image.Layers = append(image.Layers, layers[place])
		}
		c.Images = append(c.Images, image)
	}
	smaller, l := *whole, c.lists()
	l.cut(limit)
	l.write(&smaller)
	return &smaller, nil
}

// What an entry of a list takes in JSON besides its text: quotes and a comma.
const entry = 3

// placeBytes is what the place of a layer in the text of an image takes at most.
const placeBytes = 5

func layerCost(digest string) int { return entry + len(digest) + 1 + 13 }

func (i *listed) cost() int {
	cost := entry + len(i.layers)*placeBytes
	for _, name := range i.names {
		cost += len(name) + 1
	}
	return cost
}

// cut leaves images out until the lists fit.
func (l *lists) cut(limit int) {
	l.images = slices.DeleteFunc(l.images, func(image listed) bool { return image.tooLong() })
	// Layers are used by how many images; an image pays its share of each.
	users := make([]int32, len(l.layers))
	for _, image := range l.images {
		for _, place := range distinct(image.layers) {
			users[place]++
		}
	}
	type rated struct {
		listed
		// price is the bytes of the object for a byte of the image.
		price float64
	}
	all := make([]rated, len(l.images))
	for i, image := range l.images {
		cost, bytes := float64(image.cost()), int64(0)
		for _, place := range distinct(image.layers) {
			cost += float64(layerCost(l.layers[place].Digest)) / float64(users[place])
			bytes += l.layers[place].Size
		}
		all[i] = rated{image, cost / float64(max(1, bytes))}
	}
	slices.SortStableFunc(all, func(a, b rated) int { return cmp.Compare(a.price, b.price) })
	listedLayers, total := map[int32]bool{}, len("[],[],")
	l.images = l.images[:0]
	for _, image := range all {
		cost, more := image.cost(), []int32{}
		for _, place := range distinct(image.layers) {
			if !listedLayers[place] {
				cost += layerCost(l.layers[place].Digest)
				more = append(more, place)
			}
		}
		if total+cost > limit || len(l.images) >= v1alpha1.MaxNodeImages || len(listedLayers)+len(more) > v1alpha1.MaxNodeLayers {
			continue // a smaller one may fit
		}
		total += cost
		for _, place := range more {
			listedLayers[place] = true
		}
		l.images = append(l.images, image.listed)
	}
}

// tooLong reports whether an image cannot be listed whatever else is.
func (i *listed) tooLong() bool { return i.cost() > v1alpha1.MaxNodeImageLength }

// distinct returns the places, each once. A manifest may repeat a layer.
func distinct(places []int32) []int32 {
	sorted := slices.Clone(places)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}
