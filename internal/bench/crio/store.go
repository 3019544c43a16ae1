package crio

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/internal/cluster"
	"github.com/layer-locality/layer-locality/internal/cluster/images"
)

const (
	// Bases and the stacks on top of them are shared as in the registry of a
	// company: a few distributions, more language runtimes, and layers of each
	// image's own.
	bases, stacks = 20, 100
	// layerBytes keeps the store small: the results depend on the number of
	// layers, not on their size.
	layerBytes = 512

	// The large image: five layers of 20 MB.
	largeLayers, largeLayerBytes = 5, 20_000_000

	// Images that are pulled at once: four of five layers of 20 MB, 80 %, are their common
	// base.
	sharedImages, sharedLayers = 5, 4

	// Images that are pulled at once and have nothing in common: two layers of 20 MB, behind
	// an index, as most of those in public registries are. A pull has to ask what the others
	// behind theirs are.
	apartImages, apartLayers = 5, 2

	// parallel pushes and pulls while the store is filled.
	parallel = 6
)

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

// pushed are the names of what is pulled in measurements.
type pushed struct {
	large         string
	shared, apart []string
}

// fill pushes all images, and pulls all but those that are pulled at once into the node's
// store.
func fill(ctx context.Context, c *cluster.Cluster, node *cluster.Node, config Config) (names pushed, err error) {
	// One repository per base, so that the registry gets a shared layer once.
	reference := func(i int) string {
		return fmt.Sprintf("%s/bench/base-%d:image-%d", c.Registry().Address, i%bases, i)
	}
	err = each(ctx, config, "pushed", func(ctx context.Context, i int) error {
		image, err := images.Build(images.Image{Layers: layersOf(i, config.Layers), Entrypoint: []string{"/none"}})
		if err != nil {
			return err
		}
		_, err = images.Push(ctx, reference(i), image)
		return err
	})
	if err != nil {
		return pushed{}, err
	}
	push := func(name string, behindIndex bool, layers ...images.Layer) (string, error) {
		image, err := images.Build(images.Image{Layers: layers, Entrypoint: []string{"/none"}})
		if err != nil {
			return "", err
		}
		var what remote.Taggable = image
		if behindIndex {
			if what, err = images.Index(image); err != nil {
				return "", err
			}
		}
		name = c.Registry().Address + "/bench/" + name
		_, err = images.Push(ctx, name, what)
		return name, err
	}
	layers := func(name string, count int) (list []images.Layer) {
		for i := range count {
			list = append(list, images.Layer{Name: fmt.Sprintf("%s-%d", name, i), Size: largeLayerBytes})
		}
		return list
	}
	if names.large, err = push("large:v1", false, layers("large", largeLayers)...); err != nil {
		return pushed{}, err
	}
	for i := range sharedImages {
		name := fmt.Sprintf("shared-%d", i)
		name, err := push(name+":v1", false, append(layers("shared", sharedLayers), layers(name, 1)...)...)
		if err != nil {
			return pushed{}, err
		}
		names.shared = append(names.shared, name)
	}
	for i := range apartImages {
		name := fmt.Sprintf("apart-%d", i)
		name, err := push(name+":v1", true, layers(name, apartLayers)...)
		if err != nil {
			return pushed{}, err
		}
		names.apart = append(names.apart, name)
	}
	cri, err := node.CRI()
	if err != nil {
		return pushed{}, err
	}
	err = each(ctx, config, "pulled", func(ctx context.Context, i int) error {
		return pullImage(ctx, cri, reference(i))
	})
	if err != nil {
		return pushed{}, err
	}
	return names, pullImage(ctx, cri, names.large)
}

// each calls do for every image, several at a time, and reports progress.
func each(ctx context.Context, config Config, done string, do func(context.Context, int) error) error {
	var count atomic.Int64
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		for {
			select {
			case <-finished:
				return
			case <-time.After(10 * time.Second):
				config.Logf("%s %d of %d images", done, count.Load(), config.Images)
			}
		}
	}()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range config.Images {
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
		config.Logf("%s %d images of %d layers", done, config.Images, config.Layers)
	}
	return err
}

func pullImage(ctx context.Context, cri *cluster.CRI, reference string) error {
	_, err := cri.Image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: reference}})
	if err != nil {
		return fmt.Errorf("pull %s: %w", reference, err)
	}
	return nil
}

func removeImage(ctx context.Context, cri *cluster.CRI, reference string) error {
	_, err := cri.Image.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: reference}})
	if err != nil {
		return fmt.Errorf("remove %s: %w", reference, err)
	}
	return nil
}
