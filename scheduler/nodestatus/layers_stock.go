//go:build !imagelayers

package nodestatus

import (
	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Layers reports whether this build sees the layers in NodeStatus.
const Layers = false

func appendLayers(layers []index.Layer, _ *v1.ContainerImage) []index.Layer { return layers }

func sameLayers(_, _ *v1.ContainerImage) bool { return true }

func internLayers(*v1.ContainerImage, func(string) string) {}

// SetLayers makes image report the layers; for tests and benchmarks. This build
// has no place for them.
func SetLayers(*v1.ContainerImage, []index.Layer) {}
