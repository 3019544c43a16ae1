package startup

import (
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// image makes an image of the given layers.
func image(name string, layers ...dataset.Layer) dataset.Image {
	return dataset.Image{Image: name, Layers: layers}
}

func layer(name string, size int64) dataset.Layer { return dataset.Layer{Digest: name, Size: size} }

func TestShared(t *testing.T) {
	t.Parallel()
	all := []dataset.Image{
		image("one", layer("base", 60), layer("own-1", 20), layer("own-1", 20)), // the same layer twice is one
		image("two", layer("base", 60), layer("own-2", 20)),
		image("three", layer("own-3", 40)),
	}
	if got, want := shared(all), 120.0/200; math.Abs(got-want) > 1e-9 {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	all := dataset.Generate(rand.New(rand.NewPCG(1, 1)), 500)
	once := func(seed uint64) []dataset.Image {
		t.Helper()
		drawn, err := draw(rand.New(rand.NewPCG(seed, 1)), all, 24)
		if err != nil {
			t.Fatal(err)
		}
		return drawn
	}
	for seed := range uint64(5) {
		drawn := once(seed)
		names := map[string]bool{}
		for _, i := range drawn {
			names[i.Image] = true
		}
		if len(names) != 24 {
			t.Errorf("seed %d: %d different images, want 24", seed, len(names))
		}
		if got, want := shared(drawn), shared(all); math.Abs(got-want) > 5*closeEnough {
			t.Errorf("seed %d: share of shared bytes %v, of all images %v", seed, got, want)
		}
		if !reflect.DeepEqual(drawn, once(seed)) {
			t.Errorf("seed %d: two draws differ", seed)
		}
	}
	if reflect.DeepEqual(once(1), once(2)) {
		t.Error("two seeds draw the same images")
	}
	if _, err := draw(rand.New(rand.NewPCG(1, 1)), all[:23], 24); err == nil {
		t.Error("24 images of 23")
	}
	pair := []dataset.Image{image("one", layer("base", 1)), image("two", layer("base", 1))}
	if _, err := draw(rand.New(rand.NewPCG(1, 1)), pair, 1); err == nil {
		t.Error("one image alone shares nothing, but was drawn for two that share all")
	}
}

func TestScale(t *testing.T) {
	t.Parallel()
	drawn := []dataset.Image{
		image("one", layer("base", 6_000_000), layer("own-1", 2_000_000), layer("empty", 32)),
		image("two", layer("base", 6_000_000), layer("own-2", 2_000_000), layer("empty", 32)),
	}
	var got []string
	for _, m := range scale(drawn, 1_000_000) {
		for _, l := range m.layers {
			zeros := 0
			for _, content := range l.Files {
				zeros += len(content)
			}
			got = append(got, fmt.Sprintf("%s %s %s %d+%d", m.reference(), m.of, l.Name, l.Size, zeros))
		}
	}
	want := []string{
		"docker.io/bench/startup:image-01 one base 599998+899997",
		"docker.io/bench/startup:image-01 one own-1 199999+299999",
		"docker.io/bench/startup:image-01 one empty 3+4",
		"docker.io/bench/startup:image-02 two base 599998+899997",
		"docker.io/bench/startup:image-02 two own-2 199999+299999",
		"docker.io/bench/startup:image-02 two empty 3+4",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if size := scale(drawn, 1<<40)[0].layers[0].Size; size != 6_000_000 {
		t.Errorf("a layer of 6 MB has become one of %d bytes: images are made smaller, never larger", size)
	}
	if size := scale(drawn, 1000)[0].layers[2].Size; size != 1 {
		t.Errorf("the smallest layer has %d bytes, want 1: an empty one would be the same for all", size)
	}
}

// Nodes identify layers by digest: layers that were shared must be shared, and
// no others.
func TestPush(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	drawn := []dataset.Image{
		image("one", layer("base", 60_000), layer("own-1", 500), layer("same-size-1", 40)),
		image("two", layer("base", 60_000), layer("own-2", 700), layer("same-size-2", 40)),
	}
	pushed, err := push(t.Context(), strings.TrimPrefix(server.URL, "http://"), scale(drawn, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	if len(pushed) != 2 || pushed[1].Image != "docker.io/bench/startup:image-02" || pushed[1].Digest == "" {
		t.Fatalf("pushed %v", pushed)
	}
	digests := map[string]bool{}
	for i, image := range pushed {
		if len(image.Layers) != len(drawn[i].Layers) {
			t.Fatalf("%s has %d layers, want %d", image.Image, len(image.Layers), len(drawn[i].Layers))
		}
		for j, got := range image.Layers {
			digests[got.Digest] = true
			// An archive has headers of some 200 bytes, and small random archives get a
			// little larger when they are compressed.
			if want := drawn[i].Layers[j].Size; got.Size < want || got.Size > want+want/20+400 {
				t.Errorf("%s, layer %d: %d bytes, want %d", image.Image, j, got.Size, want)
			}
		}
	}
	if len(digests) != 5 || pushed[0].Layers[0] != pushed[1].Layers[0] {
		t.Errorf("%d different layers, want 5 with the base in common: %v", len(digests), pushed)
	}
}
