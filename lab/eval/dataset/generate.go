package dataset

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// Generator makes images as people do: few distributions, more languages on top of
// each, and programs on top of those. The result resembles the official images of
// Docker Hub. The median image has 8 layers and 140 MB, the mean is 175 MB, and the
// largest ones have about 1 GB. 47 % of all layers have at least 1 MiB and hold
// 99.7 % of all bytes. With each layer counted once, all images together have 0.37
// of the sum of their sizes.
type Generator struct {
	// Images is the number of images.
	Images int
	// Sharing is the share of the bytes of all images that are in layers of more
	// than one image, from 0 to about 0.9. It does not influence the sizes of
	// images and layers.
	Sharing float64
}

// DefaultSharing is the value for the official images of Docker Hub.
const DefaultSharing = 0.716

// Generate returns n images with DefaultSharing.
func Generate(r *rand.Rand, n int) []Image {
	return Generator{Images: n, Sharing: DefaultSharing}.Generate(r)
}

// Generate returns images.
func (g Generator) Generate(r *rand.Rand) []Image {
	built := g.build(r)
	images := make([]Image, len(built))
	for i, b := range built {
		images[i] = b.image(r, i)
	}
	return images
}

// A tag moves every 24 days on average, as the tags of Docker Hub's official images
// did in 2016 and 2017. These are the shares of moves that come from a new
// distribution, which changes all layers, or from a new language. The rest are new
// programs.
const (
	movesPerDay = 1.0 / 24
	ofBase      = 0.36
	ofLanguage  = 0.22
)

// History returns the versions of images over a period, and the moves of their
// tags, of which an image has one to five. When a distribution or language is
// rebuilt, so are all images on top of it, and their tags move in the same second.
// On average, a new version has 28 % of its bytes in common with the one before, as
// in the official images of Docker Hub.
func (g Generator) History(r *rand.Rand, begin time.Time, span time.Duration) History {
	images := g.build(r)
	users := map[*segment][]int{}
	var order []*segment
	level := map[*segment]int{}
	for i, b := range images {
		for l, s := range b {
			if users[s] == nil {
				order, level[s] = append(order, s), l
			}
			users[s] = append(users[s], i)
		}
	}
	// Segments are rebuilt at random moments, independently of each other.
	type release struct {
		at      time.Duration
		segment *segment
	}
	var releases []release
	for _, s := range order {
		rate := movesPerDay * [levels]float64{ofBase, ofLanguage, 1 - ofBase - ofLanguage, 0}[level[s]]
		if rate == 0 {
			continue
		}
		for day := r.ExpFloat64() / rate; day < span.Hours()/24; day += r.ExpFloat64() / rate {
			releases = append(releases, release{time.Duration(day * 24 * float64(time.Hour)).Truncate(time.Second), s})
		}
	}
	slices.SortStableFunc(releases, func(a, b release) int { return int(a.at - b.at) })

	tags := make([][]string, len(images))
	for i := range tags {
		tags[i] = []string{"latest", "1", "1.0", "stable", "lts"}[:1+r.IntN(5)]
	}
	var h History
	publish := func(at time.Duration, i int) {
		image := images[i].image(r, i)
		image.FirstSeen = begin.Add(at)
		name := strings.TrimSuffix(image.Image, "latest")
		for _, tag := range tags[i] {
			if tag != "latest" {
				image.Aliases = append(image.Aliases, name+tag)
			}
			h.Moves = append(h.Moves, Move{Time: image.FirstSeen, Tag: fmt.Sprintf("image-%d:%s", i, tag), ImageID: image.ImageID})
		}
		h.Images = append(h.Images, image)
	}
	for i := range images {
		publish(0, i)
	}
	for _, release := range releases {
		done := map[*segment]bool{}
		for _, i := range users[release.segment] {
			for _, s := range images[i][level[release.segment]:] {
				if !done[s] {
					done[s] = true
					s.rebuild(r)
				}
			}
		}
		for _, i := range users[release.segment] {
			publish(release.at, i)
		}
	}
	return h
}

// segment is a group of layers that are always together.
type segment struct{ layers []Layer }

func (s *segment) size() int64 {
	var size int64
	for _, l := range s.layers {
		size += l.Size
	}
	return size
}

// copy returns a segment with other layers of the same sizes.
func (s *segment) copy(r *rand.Rand) *segment {
	other := &segment{slices.Clone(s.layers)}
	for i := range other.layers {
		other.layers[i].Digest = randomDigest(r)
	}
	return other
}

// rebuild makes a new version of all layers, with about the same sizes.
func (s *segment) rebuild(r *rand.Rand) {
	s.layers = slices.Clone(s.layers)
	for i, l := range s.layers {
		s.layers[i] = Layer{randomDigest(r), int64(float64(l.Size) * math.Exp(0.05*r.NormFloat64()))}
	}
}

// build is an image: segments on top of each other.
type build [levels]*segment

const (
	distribution = iota
	language
	program // what the variants of a program share
	variant // what only one variant has
	levels
)

func (b build) image(r *rand.Rand, i int) Image {
	image := Image{
		Image:   fmt.Sprintf("registry.example/library/image-%d:latest", i),
		Digest:  randomDigest(r),
		ImageID: randomDigest(r),
	}
	for _, s := range b {
		image.Layers = append(image.Layers, s.layers...)
	}
	return image
}

// build makes images that share as much as possible, and then reduces sharing:
// first of programs, then of everything below.
func (g Generator) build(r *rand.Rand) []build {
	distributions := make([]*segment, max(1, g.Images/20))
	scale := make([]float64, len(distributions))
	popularity, sum := make([]float64, len(distributions)), 0.0
	for i := range distributions {
		// Every third one is small, and so is what is built on it.
		base := 48e6
		if scale[i] = 1; i%3 == 1 {
			base, scale[i] = 2e6, 0.5
		}
		distributions[i] = &segment{[]Layer{bigLayer(r, base, 0.2)}}
		sum += 1 / float64(i+1)
		popularity[i] = sum
	}
	draw := func() int {
		i, _ := slices.BinarySearch(popularity, r.Float64()*sum)
		return min(i, len(distributions)-1)
	}
	type on struct {
		build
		scale float64
	}
	languages := make([]on, max(1, g.Images/6))
	for i := range languages {
		d := draw()
		languages[i] = on{build{distributions[d], &segment{}}, scale[d]}
		for range 1 + r.IntN(4) {
			languages[i].build[language].layers = append(languages[i].build[language].layers, layer(r, 60e6*scale[d]))
		}
	}
	programs := make([]on, max(1, g.Images/4))
	for i := range programs {
		if r.IntN(12) == 0 {
			d := draw()
			programs[i] = on{build{distributions[d], &segment{}}, scale[d]}
		} else {
			programs[i] = languages[r.IntN(len(languages))]
		}
		programs[i].build[program] = &segment{}
		for range r.IntN(9) {
			programs[i].build[program].layers = append(programs[i].build[program].layers, layer(r, 27e6*programs[i].scale))
		}
	}
	images := make([]build, g.Images)
	for i := range images {
		p := programs[r.IntN(len(programs))]
		images[i] = p.build
		images[i][variant] = &segment{[]Layer{layer(r, 27e6*p.scale)}}
	}
	g.detach(r, images)
	return images
}

// detach gives images copies of segments until Sharing is reached.
func (g Generator) detach(r *rand.Rand, images []build) {
	uses := map[*segment]int64{}
	var total, shared int64
	for _, b := range images {
		for _, s := range b {
			uses[s]++
			total += s.size()
		}
	}
	for s, n := range uses {
		if n > 1 {
			shared += n * s.size()
		}
	}
	order := r.Perm(len(images))
	for _, segments := range [][]int{{program}, {distribution, language}} {
		for _, i := range order {
			if float64(shared) <= g.Sharing*float64(total) {
				return
			}
			for _, l := range segments {
				s := images[i][l]
				switch uses[s] {
				case 1:
					continue
				case 2:
					shared -= s.size() // the other image no longer shares it either
				}
				shared -= s.size()
				uses[s]--
				images[i][l] = s.copy(r)
				uses[images[i][l]] = 1
			}
		}
	}
}

// layer makes a layer: more often a small one, with a setting or a few files, than
// a big one.
func layer(r *rand.Rand, median float64) Layer {
	switch n := r.IntN(100); {
	case n < 52:
		return Layer{randomDigest(r), int64(90 + 2000*r.ExpFloat64())}
	case n < 61:
		return Layer{randomDigest(r), r.Int64N(1 << 20)}
	default:
		return bigLayer(r, median, 0.9)
	}
}

// bigLayer makes a layer with a log-normal size, as sizes of files are distributed.
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
