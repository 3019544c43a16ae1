package livetest

import (
	"archive/tar"
	"fmt"
	"io"
	"testing"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// Push builds an image and pushes it.
func Push(t testing.TB, reference string, what images.Image) *images.Pushed {
	t.Helper()
	image, err := images.Build(what)
	must(t, err)
	pushed, err := images.Push(t.Context(), reference, image)
	must(t, err)
	return pushed
}

// HubImage pushes an image with about this many compressed bytes, in layers of about equal
// size that no other image has. Nodes find it as docker.io/library/NAME.
func HubImage(t testing.TB, c *cluster.Cluster, name string, size int64, layers int) *images.Pushed {
	t.Helper()
	binary, compressed := pause(t)
	each := size / int64(layers)
	spec := images.Image{Entrypoint: []string{"/pause"}}
	for i := range layers {
		layer := images.Layer{Name: fmt.Sprintf("%s-%d", name, i), Size: each}
		if i == 0 {
			layer.Files, layer.Size = map[string][]byte{"/pause": binary}, each-compressed
		}
		spec.Layers = append(spec.Layers, layer)
	}
	return Push(t, c.Registry().Address+"/library/"+name, spec)
}

// pause returns the program that test images run, and its approximate size in a layer.
func pause(t testing.TB) (binary []byte, compressed int64) {
	t.Helper()
	image, err := images.Build(images.Image{})
	must(t, err)
	layers, err := image.Layers()
	must(t, err)
	compressed, err = layers[0].Size()
	must(t, err)
	content, err := layers[0].Uncompressed()
	must(t, err)
	defer content.Close()
	archive := tar.NewReader(content)
	_, err = archive.Next()
	must(t, err)
	binary, err = io.ReadAll(archive)
	must(t, err)
	return binary, compressed
}

var must = testkit.Must

// Size returns what a node without any layer of an image downloads: the compressed bytes of
// its layers.
func Size(image *images.Pushed) int64 {
	var sum int64
	for _, layer := range image.Layers {
		sum += layer.Size
	}
	return sum
}
