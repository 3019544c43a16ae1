// Package store fills the image stores of nodes with many images.
package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

const (
	// Bases and the stacks on top of them are shared as in the registry of a
	// company: a few distributions, more language runtimes, and layers of each
	// image's own.
	bases, stacks = 20, 100
	// layerBytes keeps the store small: the results depend on the number of
	// layers, not on their size.
	layerBytes = 512
	// parallel pushes and pulls while the store is filled.
	parallel = 6
)

// Images are what a store is filled with.
type Images struct {
	// Count of images, each with so many Layers.
	Count, Layers int
	// Logf gets progress messages.
	Logf func(format string, args ...any)
}

// layersOf describes the layers of image i: of ten, five belong to its base,
// three to its stack and two to itself.
func layersOf(i, count int) []images.Layer {
	shared, own := (count+1)/2, max(1, count/5)
	layers := make([]images.Layer, count)
	for j := range layers {
		name := fmt.Sprintf("stack-%d-%d", i%stacks, j)
		switch {
		case j >= count-own:
			name = fmt.Sprintf("image-%d-%d", i, j)
		case j < shared:
			name = fmt.Sprintf("base-%d-%d", i%bases, j)
		}
		layers[j] = images.Layer{Name: name, Size: layerBytes}
	}
	return layers
}

// reference returns the name of image i. There is one repository per base, so that the registry
// gets a shared layer once.
func reference(c *cluster.Cluster, i int) string {
	return fmt.Sprintf("%s/bench/base-%d:image-%d", c.Registry().Address, i%bases, i)
}

// Push pushes the images to the cluster's registry.
func (s Images) Push(ctx context.Context, c *cluster.Cluster) error {
	return s.each(ctx, "pushed", func(ctx context.Context, i int) error {
		image, err := images.Build(images.Image{Layers: layersOf(i, s.Layers), Entrypoint: []string{"/none"}})
		if err != nil {
			return err
		}
		_, err = images.Push(ctx, reference(c, i), image)
		return err
	})
}

// Pull has a node pull the images.
func (s Images) Pull(ctx context.Context, c *cluster.Cluster, node *cluster.Node) error {
	cri, err := node.CRI()
	if err != nil {
		return err
	}
	return s.each(ctx, node.Name+" pulled", func(ctx context.Context, i int) error {
		return Pull(ctx, cri, reference(c, i))
	})
}

// each calls do for every image, several at a time, and reports progress.
func (s Images) each(ctx context.Context, done string, do func(context.Context, int) error) error {
	var count atomic.Int64
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		for {
			select {
			case <-finished:
				return
			case <-time.After(10 * time.Second):
				s.Logf("%s %d of %d images", done, count.Load(), s.Count)
			}
		}
	}()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range s.Count {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			defer count.Add(1)
			return do(ctx, i)
		})
	}
	err := group.Wait()
	if err == nil {
		s.Logf("%s %d images of %d layers", done, s.Count, s.Layers)
	}
	return err
}

// Pull has a node pull an image.
func Pull(ctx context.Context, cri *cluster.CRI, reference string) error {
	_, err := cri.Image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: reference}})
	if err != nil {
		return fmt.Errorf("pull %s: %w", reference, err)
	}
	return nil
}

// Remove removes an image from a node.
func Remove(ctx context.Context, cri *cluster.CRI, reference string) error {
	_, err := cri.Image.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: reference}})
	if err != nil {
		return fmt.Errorf("remove %s: %w", reference, err)
	}
	return nil
}

// The large image of Large.
const (
	largeLayers = 5
	// LargeLayerBytes is the size of each of its layers.
	LargeLayerBytes = 20_000_000
)

// Large pushes an image of 100 MB whose layers no other image has, and returns its name.
func Large(ctx context.Context, c *cluster.Cluster) (string, error) {
	pushed, err := Push(ctx, c, "large", Layers("large", largeLayers, LargeLayerBytes)...)
	if err != nil {
		return "", err
	}
	return pushed.Reference, nil
}

// Layers describes layers of one size.
func Layers(name string, count int, size int64) []images.Layer {
	layers := make([]images.Layer, count)
	for i := range layers {
		layers[i] = images.Layer{Name: fmt.Sprintf("%s-%d", name, i), Size: size}
	}
	return layers
}

// Push pushes an image of layers to the cluster's registry.
func Push(ctx context.Context, c *cluster.Cluster, name string, layers ...images.Layer) (*images.Pushed, error) {
	image, err := build(layers)
	if err != nil {
		return nil, err
	}
	return images.Push(ctx, tag(c, name), image)
}

// PushIndex is Push with an index before the manifest, as most images in public registries have.
func PushIndex(ctx context.Context, c *cluster.Cluster, name string, layers ...images.Layer) (*images.Pushed, error) {
	image, err := build(layers)
	if err != nil {
		return nil, err
	}
	index, err := images.Index(image)
	if err != nil {
		return nil, err
	}
	return images.Push(ctx, tag(c, name), index)
}

func build(layers []images.Layer) (v1.Image, error) {
	return images.Build(images.Image{Layers: layers, Entrypoint: []string{"/none"}})
}

func tag(c *cluster.Cluster, name string) string {
	return c.Registry().Address + "/bench/" + name + ":v1"
}
