package contents

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Fit returns what Contents.Spec returned as a NodeLayers can hold it: without layers below
// minLayerBytes, unless all are needed because layers are used in chains, and with lists of at
// most limit bytes as JSON. Beyond that, what takes most of the object for a byte of its image
// goes first. It also returns how many images were left out.
func Fit(whole *v1alpha1.NodeLayersSpec, minLayerBytes int64, limit int) (spec *v1alpha1.NodeLayersSpec, left int, err error) {
	l, err := read(whole)
	if err != nil {
		return nil, 0, err
	}
	fitted := *whole
	spec = &fitted
	if whole.Reuse == v1alpha1.ReuseByDigest {
		spec.MinLayerBytes = minLayerBytes
		for i := range l.images {
			image := &l.images[i]
			image.digests = slices.DeleteFunc(image.digests, func(digest string) bool { return l.sizes[digest] < minLayerBytes })
		}
	}
	before := len(l.images)
	l.cut(limit)
	l.write(spec)
	return spec, before - len(l.images), nil
}

// read reads the lists of a NodeLayers.
func read(spec *v1alpha1.NodeLayersSpec) (*lists, error) {
	l := &lists{sizes: make(map[string]int64, len(spec.Layers)), images: make([]listed, len(spec.Images))}
	digests := make([]string, len(spec.Layers))
	for i, text := range spec.Layers {
		layer, err := v1alpha1.ParseLayer(text)
		if err != nil {
			return nil, err
		}
		l.sizes[layer.Digest], digests[i] = layer.Size, layer.Digest
	}
	for i, text := range spec.Images {
		image, err := v1alpha1.ParseNodeImage(text, len(digests))
		if err != nil {
			return nil, fmt.Errorf("image %d of %d: %w", i+1, len(spec.Images), err)
		}
		l.images[i].names = image.Names
		for _, place := range image.Layers {
			l.images[i].digests = append(l.images[i].digests, digests[place])
		}
	}
	return l, nil
}

// What an entry of a list takes in JSON besides its text: quotes and a comma.
const entry = 3

// placeBytes is what the place of a layer in the text of an image takes at most.
const placeBytes = 5

func layerCost(digest string) int { return entry + len(digest) + 1 + 13 }

func (i *listed) cost() int {
	cost := entry + len(i.digests)*placeBytes
	for _, name := range i.names {
		cost += len(name) + 1
	}
	return cost
}

// cut leaves images out until the lists fit.
func (l *lists) cut(limit int) {
	l.images = slices.DeleteFunc(l.images, func(image listed) bool { return image.tooLong() })
	// Layers are used by how many images; an image pays its share of each.
	users := map[string]int{}
	for _, image := range l.images {
		for _, digest := range distinct(image.digests) {
			users[digest]++
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
		for _, digest := range distinct(image.digests) {
			cost += float64(layerCost(digest)) / float64(users[digest])
			bytes += l.sizes[digest]
		}
		all[i] = rated{image, cost / float64(max(1, bytes))}
	}
	slices.SortStableFunc(all, func(a, b rated) int { return cmp.Compare(a.price, b.price) })
	listedLayers, total := map[string]bool{}, len("[],[],")
	l.images = l.images[:0]
	for _, image := range all {
		cost, more := image.cost(), []string{}
		for _, digest := range distinct(image.digests) {
			if !listedLayers[digest] {
				cost += layerCost(digest)
				more = append(more, digest)
			}
		}
		if total+cost > limit || len(l.images) >= v1alpha1.MaxNodeImages || len(listedLayers)+len(more) > v1alpha1.MaxNodeLayers {
			continue // a smaller one may fit
		}
		total += cost
		for _, digest := range more {
			listedLayers[digest] = true
		}
		l.images = append(l.images, image.listed)
	}
}

// tooLong tells whether an image cannot be listed whatever else is.
func (i *listed) tooLong() bool { return i.cost() > v1alpha1.MaxNodeImageLength }

// distinct returns the digests, each once. A manifest may repeat a layer.
func distinct(digests []string) []string {
	sorted := slices.Sorted(slices.Values(digests))
	return slices.Compact(sorted)
}
