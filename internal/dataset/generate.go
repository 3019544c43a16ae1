package dataset

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/opencontainers/go-digest"
)

// Generate returns n images made the way images are: few distributions, more
// languages on top of each, and programs on top of those. Like in the official
// images of Docker Hub the median image has 8 layers and 140 MB, 47 % of all
// layers have at least 1 MiB and hold 99.7 % of all bytes, and 72 % of the bytes
// of all images are in layers of more than one image.
func Generate(r *rand.Rand, n int) []Image {
	distributions := make([][]Layer, max(1, n/100))
	for i := range distributions {
		distributions[i] = []Layer{bigLayer(r, 56e6, 0.2)}
	}
	languages := make([][]Layer, max(1, n/6))
	for i := range languages {
		languages[i] = append(languages[i], distributions[r.IntN(len(distributions))]...)
		for range 1 + r.IntN(4) {
			languages[i] = append(languages[i], layer(r, 44e6))
		}
	}
	images := make([]Image, n)
	for i := range images {
		var layers []Layer
		if r.IntN(12) == 0 {
			layers = append(layers, distributions[r.IntN(len(distributions))]...)
		} else {
			layers = append(layers, languages[r.IntN(len(languages))]...)
		}
		for range 1 + r.IntN(8) {
			layers = append(layers, layer(r, 19e6))
		}
		images[i] = Image{
			Image:  fmt.Sprintf("registry.example/library/image-%d:latest", i),
			Digest: randomDigest(r),
			Layers: layers,
		}
	}
	return images
}

// layer is more often small, a setting or a few files, than big.
func layer(r *rand.Rand, median float64) Layer {
	switch n := r.IntN(100); {
	case n < 52:
		return Layer{randomDigest(r), int64(90 + 2000*r.ExpFloat64())}
	case n < 61:
		return Layer{randomDigest(r), r.Int64N(1 << 20)}
	default:
		return bigLayer(r, median, 0.8)
	}
}

// bigLayer has a size as sizes of files are distributed: log-normal.
func bigLayer(r *rand.Rand, median, sigma float64) Layer {
	return Layer{randomDigest(r), int64(median * math.Exp(sigma*r.NormFloat64()))}
}

func randomDigest(r *rand.Rand) string {
	b := make([]byte, 32)
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return digest.NewDigestFromBytes(digest.SHA256, b).String()
}
