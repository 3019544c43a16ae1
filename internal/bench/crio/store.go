package crio

import (
	"context"
	"fmt"

	"github.com/layer-locality/layer-locality/internal/bench/store"
	"github.com/layer-locality/layer-locality/internal/cluster"
)

// Images that are pulled at once: four of five layers of 20 MB, 80 %, are their common
// base.
const sharedImages, sharedLayers = 5, 4

// pushed are the names of what is pulled in measurements.
type pushed struct {
	large  string
	shared []string
}

// fill pushes all images, and pulls all but the shared ones into the node's store.
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
	if err := many.Pull(ctx, c, node); err != nil {
		return pushed{}, err
	}
	cri, err := node.CRI()
	if err != nil {
		return pushed{}, err
	}
	return names, store.Pull(ctx, cri, names.large)
}
