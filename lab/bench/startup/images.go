package startup

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// shared returns the share of the bytes of all images that is in layers of more
// than one of them.
func shared(all []dataset.Image) float64 {
	users := map[dataset.Layer]int{}
	for _, image := range all {
		for layer := range distinct(image) {
			users[layer]++
		}
	}
	var sum, common float64
	for layer, n := range users {
		bytes := float64(n) * float64(layer.Size)
		sum += bytes
		if n > 1 {
			common += bytes
		}
	}
	return common / max(1, sum)
}

// distinct returns the different layers of an image.
func distinct(image dataset.Image) map[dataset.Layer]bool {
	layers := map[dataset.Layer]bool{}
	for _, layer := range image.Layers {
		layers[layer] = true
	}
	return layers
}

const (
	// closeEnough is the allowed distance of the share of shared bytes from that
	// of all images. swaps is the number of attempts to exchange an image.
	closeEnough = 0.01
	swaps       = 20_000
)

// draw returns n images that share with each other as much as all images do. A
// few images drawn at random share much less. So draw exchanges images for
// others as long as that brings the share nearer.
func draw(r *rand.Rand, all []dataset.Image, n int) ([]dataset.Image, error) {
	if len(all) < n {
		return nil, fmt.Errorf("%d images, want at least %d", len(all), n)
	}
	mixed := dataset.Draw(r, all, len(all))
	want := shared(all)
	distance := func() float64 { return math.Abs(shared(mixed[:n]) - want) }
	best := distance()
	for tried := 0; best > closeEnough && tried < swaps && len(mixed) > n; tried++ {
		in, out := r.IntN(n), n+r.IntN(len(mixed)-n)
		mixed[in], mixed[out] = mixed[out], mixed[in]
		if d := distance(); d < best {
			best = d
		} else {
			mixed[in], mixed[out] = mixed[out], mixed[in]
		}
	}
	if best > 5*closeEnough {
		return nil, fmt.Errorf("found no %d images of which %.0f %% of the bytes are shared, as of all: take more images or another seed", n, 100*want)
	}
	return mixed[:n], nil
}

// model is an image to build.
type model struct {
	tag string
	// of is the image that it is modelled on.
	of     string
	layers []images.Layer
}

// repository is the repository of all images in the cluster's registry. It is a
// single one, so that a layer is pushed only once. This makes no difference to
// nodes, which identify layers by digest.
const repository = "bench/startup"

// reference returns the image reference that pods use. It names Docker Hub, for
// which the cluster's registry stands in, because the registry's own address
// may differ in each run.
func (m *model) reference() string { return "docker.io/" + repository + ":" + m.tag }

// expansion is the ratio of a layer's size on disk to its compressed size, as
// for usual programs. ImageLocality, of the default profile, goes by the size
// on disk.
const expansion = 2.5

// scale makes images with the same number of layers and the same sharing as the
// given ones. Sizes are scaled so that all layers together have the given
// number of compressed bytes, or fewer if the given images have fewer.
func scale(drawn []dataset.Image, bytes int64) []model {
	var sum float64
	var largest int64
	seen := map[dataset.Layer]bool{}
	for _, image := range drawn {
		for layer := range distinct(image) {
			if !seen[layer] {
				seen[layer] = true
				sum += float64(layer.Size)
				largest = max(largest, layer.Size)
			}
		}
	}
	factor := min(1, float64(bytes)/max(1, sum))
	zeros := make([]byte, int64((expansion-1)*factor*float64(largest))+1)
	models := make([]model, len(drawn))
	for i, image := range drawn {
		models[i] = model{tag: fmt.Sprintf("image-%02d", i+1), of: image.Image}
		for _, layer := range image.Layers {
			// Name and size determine the content. A layer must not be empty, or
			// different layers would be equal.
			size := max(1, int64(math.Round(factor*float64(layer.Size))))
			models[i].layers = append(models[i].layers, images.Layer{
				Name: layer.Digest, Size: size,
				Files: map[string][]byte{"/zeros/" + layer.Digest: zeros[:int64((expansion-1)*factor*float64(layer.Size))]},
			})
		}
	}
	return models
}

// push builds the images and pushes them to a registry. It returns the layers
// that nodes pull. The layer with the program is left out: the pod sandbox has
// it too, so it is on every node that runs a pod.
func push(ctx context.Context, registry string, models []model) ([]dataset.Image, error) {
	pushed := make([]dataset.Image, len(models))
	for i, m := range models {
		image, err := images.Build(images.Image{Layers: m.layers})
		if err != nil {
			return nil, fmt.Errorf("%s, made after %s: %w", m.tag, m.of, err)
		}
		there, err := images.Push(ctx, registry+"/"+repository+":"+m.tag, image)
		if err != nil {
			return nil, err
		}
		pushed[i] = dataset.Image{Image: m.reference(), Digest: there.Digest.String()}
		for _, layer := range there.Layers[1:] {
			pushed[i].Layers = append(pushed[i].Layers, dataset.Layer{Digest: layer.Digest.String(), Size: layer.Size})
		}
	}
	return pushed, nil
}
