package dataset

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// statistics are those of images; sizes are in bytes.
type statistics struct {
	medianLayers, medianSize, meanSize, maxSize float64
	// shared is the share of bytes in layers of more than one image. union is the
	// bytes of all layers, each counted once, divided by the sum of all images.
	shared, union float64
	// big is the share of layers of at least 1 MiB, bigBytes the share of their
	// bytes.
	big, bigBytes float64
}

func measure(images []Image) statistics {
	uses, size := map[string]float64{}, map[string]float64{}
	var counts, sizes []float64
	var s statistics
	var layers, total float64
	for _, image := range images {
		sum := 0.0
		for _, layer := range image.Layers {
			layers++
			uses[layer.Digest]++
			size[layer.Digest] = float64(layer.Size)
			sum += float64(layer.Size)
			if layer.Size >= 1<<20 {
				s.big++
				s.bigBytes += float64(layer.Size)
			}
		}
		total += sum
		counts, sizes = append(counts, float64(len(image.Layers))), append(sizes, sum)
	}
	for layer, n := range uses {
		s.union += size[layer]
		if n > 1 {
			s.shared += n * size[layer]
		}
	}
	s.shared, s.union, s.big, s.bigBytes = s.shared/total, s.union/total, s.big/layers, s.bigBytes/total
	s.medianLayers, s.medianSize, s.meanSize, s.maxSize = median(counts), median(sizes), total/float64(len(images)), slices.Max(sizes)
	return s
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// check fails for images that are not like the official ones of Docker Hub.
func (s statistics) check(t *testing.T) {
	for _, s := range []struct {
		name           string
		got, low, high float64
	}{
		{"median layers", s.medianLayers, 7, 9},
		{"median bytes", s.medianSize, 115e6, 165e6},
		{"mean bytes", s.meanSize, 155e6, 195e6},
		{"most bytes", s.maxSize, 0.6e9, 1.6e9},
		{"share of bytes in shared layers", s.shared, 0.70, 0.78},
		{"union by sum", s.union, 0.30, 0.42},
		{"share of layers of 1 MiB", s.big, 0.44, 0.50},
		{"share of bytes in layers of 1 MiB", s.bigBytes, 0.996, 0.9985},
	} {
		if s.got < s.low || s.got > s.high {
			t.Errorf("%s: %v, want %v to %v", s.name, s.got, s.low, s.high)
		}
	}
}

// moving is how tags move.
type moving struct {
	moves int
	// kept is the share of the bytes of new versions that are in the version before.
	// based is the share of moves to another lowest layer.
	kept, based float64
	// most is the largest number of tags that move in the same second.
	most int
}

func (h History) measure() moving {
	versions, _ := h.Versions()
	before, at := map[string]*Image{}, map[time.Time]int{}
	var m moving
	total := 0.0
	for _, v := range versions {
		old := before[v.Tag]
		before[v.Tag] = v.Image
		if old == nil || old == v.Image {
			continue
		}
		m.moves++
		at[v.Time]++
		m.most = max(m.most, at[v.Time])
		if old.Layers[0] != v.Image.Layers[0] {
			m.based++
		}
		for _, layer := range v.Image.Layers {
			total += float64(layer.Size)
			if slices.Contains(old.Layers, layer) {
				m.kept += float64(layer.Size)
			}
		}
	}
	m.kept, m.based = m.kept/total, m.based/float64(m.moves)
	return m
}

func (m moving) check(t *testing.T) {
	if m.kept < 0.24 || m.kept > 0.34 || m.based < 0.3 || m.based > 0.5 || m.most < 100 {
		t.Errorf("tags move otherwise than those of Docker Hub: %+v", m)
	}
}

// The generator replaces real images, so its images must resemble them.
func TestGenerate(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			measure(Generate(rand.New(rand.NewPCG(seed, 0)), 1000)).check(t)
		})
	}
}

// Sharing has the requested value, and nothing else changes with it.
func TestSharing(t *testing.T) {
	generate := func(sharing float64) []Image {
		return Generator{Images: 1000, Sharing: sharing}.Generate(rand.New(rand.NewPCG(1, 0)))
	}
	sizes := func(images []Image) (all [][]int64) {
		for _, image := range images {
			var sizes []int64
			for _, layer := range image.Layers {
				sizes = append(sizes, layer.Size)
			}
			all = append(all, sizes)
		}
		return all
	}
	usual := sizes(generate(DefaultSharing))
	for _, sharing := range []float64{0, 0.2, 0.5, DefaultSharing, 0.9} {
		images := generate(sharing)
		if got := measure(images).shared; math.Abs(got-sharing) > 0.01 {
			t.Errorf("shared %v, want %v", got, sharing)
		}
		if !reflect.DeepEqual(sizes(images), usual) {
			t.Errorf("sharing %v changes the sizes of layers", sharing)
		}
		if !reflect.DeepEqual(images, generate(sharing)) {
			t.Errorf("sharing %v: the same seed gives other images", sharing)
		}
	}
}

func TestHistory(t *testing.T) {
	begin := time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC)
	generate := func(seed uint64) History {
		return Generator{Images: 1000, Sharing: DefaultSharing}.History(rand.New(rand.NewPCG(seed, 0)), begin, 200*24*time.Hour)
	}
	var mean moving
	const seeds = 4
	for seed := range uint64(seeds) {
		h := generate(seed)
		if seed == 0 && !reflect.DeepEqual(h, generate(seed)) {
			t.Error("the same seed gives another history")
		}
		if _, dropped := h.Versions(); dropped > 0 {
			t.Errorf("%d moves to images that are not there", dropped)
		}
		if !slices.IsSortedFunc(h.Moves, func(a, b Move) int { return a.Time.Compare(b.Time) }) {
			t.Error("moves are not in the order of time")
		}
		for _, move := range h.Moves {
			if err := move.validate(); err != nil {
				t.Fatal(err)
			}
		}
		m := h.measure()
		// 1,000 images with 3 tags each, a move every 24 days.
		if want := 3000 * 200 / 24.0; math.Abs(float64(m.moves)/want-1) > 0.2 {
			t.Errorf("%d moves, want about %v", m.moves, want)
		}
		mean.kept, mean.based, mean.most = mean.kept+m.kept/seeds, mean.based+m.based/seeds, max(mean.most, m.most)
	}
	mean.check(t)
}

// Files with official images must match the documented figures. Other files are only
// measured.
func TestFiles(t *testing.T) {
	images := fromFile(t, Env, Load)
	s := measure(images)
	t.Logf("%d images: %+v", len(images), s)
	if official(images) {
		s.check(t)
	}
}

func TestHistoryFiles(t *testing.T) {
	h := History{Images: fromFile(t, HistoryEnv, Load), Moves: fromFile(t, MovesEnv, LoadMoves)}
	versions, dropped := h.Versions()
	m := h.measure()
	t.Logf("%d events, %d dropped: %+v", len(h.Moves), dropped, m)
	if dropped > len(h.Moves)/100 {
		t.Errorf("%d of %d events are about images that are not there: %s and %s do not belong together", dropped, len(h.Moves), HistoryEnv, MovesEnv)
	}
	if len(versions) > 0 && official(h.Images) {
		m.check(t)
	}
}

// fromFile loads the file that an environment variable names; without it the test is
// skipped.
func fromFile[T any](t *testing.T, env string, load func(string) (T, error)) T {
	t.Helper()
	name := os.Getenv(env)
	if name == "" {
		t.Skip(env + " names no file")
	}
	loaded, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// official reports whether all images are official ones of Docker Hub.
func official(images []Image) bool {
	return !slices.ContainsFunc(images, func(i Image) bool { return !strings.HasPrefix(i.Image, "docker.io/library/") })
}
