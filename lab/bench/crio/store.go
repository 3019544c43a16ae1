package crio

import (
	"context"
	"fmt"

	"github.com/layer-locality/layer-locality/lab/bench/store"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

const (
	// Images that are pulled at once: four of five layers of 20 MB, 80 %, are their common
	// base.
	sharedImages, sharedLayers = 5, 4

	// Images that are pulled at once and have nothing in common: two layers of 20 MB, behind
	// an index, as most of those in public registries are. A pull has to ask what the others
	// behind theirs are.
	apartImages, apartLayers = 5, 2
)

// pushed are the names of what is pulled in measurements.
type pushed struct {
	large         string
	shared, apart []string
}

// fill pushes all images, and pulls all but those that are pulled at once into the node's
// store.
func fill(ctx context.Context, c *cluster.Cluster, node *cluster.Node, config Config) (names pushed, err error) {
	many := store.Images{Count: config.Images, Layers: config.Layers, Logf: config.Logf}
	if err := many.Push(ctx, c); err != nil {
		return pushed{}, err
	}
	if names.large, err = store.Large(ctx, c); err != nil {
		return pushed{}, err
	}
	base := store.Layers("shared", sharedLayers, store.LargeLayerBytes)
	for i := range sharedImages {
		name := fmt.Sprintf("shared-%d", i)
		image, err := store.Push(ctx, c, name, append(base[:sharedLayers:sharedLayers], store.Layers(name, 1, store.LargeLayerBytes)...)...)
		if err != nil {
			return pushed{}, err
		}
		names.shared = append(names.shared, image.Reference)
	}
	for i := range apartImages {
		name := fmt.Sprintf("apart-%d", i)
		image, err := store.PushIndex(ctx, c, name, store.Layers(name, apartLayers, store.LargeLayerBytes)...)
		if err != nil {
			return pushed{}, err
		}
		names.apart = append(names.apart, image.Reference)
	}
	if err := many.Pull(ctx, c, node); err != nil {
		return pushed{}, err
	}
	cri, err := node.CRI()
	if err != nil {
		return pushed{}, err
	}
	return names, store.Pull(ctx, cri, names.large)
}
