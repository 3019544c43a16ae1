//go:build imagelayers

package nodestatus

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Layers reports whether this build sees the layers in NodeStatus.
const Layers = true

func appendLayers(layers []index.Layer, image *v1.ContainerImage) []index.Layer {
	for i := range image.Layers {
		layers = append(layers, index.Layer{Digest: image.Layers[i].Digest, Size: image.Layers[i].SizeBytes})
	}
	return layers
}

func sameLayers(a, b *v1.ContainerImage) bool { return slices.Equal(a.Layers, b.Layers) }

func internLayers(image *v1.ContainerImage, intern func(string) string) {
	for i := range image.Layers {
		image.Layers[i].Digest = intern(image.Layers[i].Digest)
	}
}

// SetLayers makes image report the layers; for tests and benchmarks.
func SetLayers(image *v1.ContainerImage, layers []index.Layer) {
	image.Layers = nil
	for _, l := range layers {
		image.Layers = append(image.Layers, v1.ContainerImageLayer{Digest: l.Digest, SizeBytes: l.Size})
	}
}
