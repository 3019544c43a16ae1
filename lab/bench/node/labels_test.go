package node

import (
	"strings"
	"testing"
	"time"
)

func TestLabelWrites(t *testing.T) {
	ms := func(values ...float64) (all []time.Duration) {
		for _, value := range values {
			all = append(all, time.Duration(value*float64(time.Millisecond)))
		}
		return all
	}
	writes := &LabelWrites{Stock: ms(9, 1, 2), Without: ms(3, 1, 1), With: ms(1, 50, 2.5)}
	if got := writes.ratio(); got != 1.25 {
		t.Errorf("ratio %v, want that of the medians", got)
	}
	var out strings.Builder
	if err := writes.write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"median of at least 3", "stock kube-apiserver", "2.000", "patched, no layers", "0.50", "patched, 400 layers", "1.25"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestImagesWithLayers(t *testing.T) {
	for _, want := range []int{0, 1, 400} {
		got, digests := 0, map[any]bool{}
		images := imagesWithLayers(want)
		for _, image := range images {
			layers, _ := image["layers"].([]map[string]any)
			got += len(layers)
			for _, layer := range layers {
				digests[layer["digest"]] = true
			}
		}
		if len(images) != labelImages || got != want || len(digests) != want {
			t.Errorf("%d images with %d layers, %d different, want %d with %d", len(images), got, len(digests), labelImages, want)
		}
	}
}

func TestLists(t *testing.T) {
	list := func(n int) List {
		took := []time.Duration{time.Duration(n) * time.Millisecond}
		return List{Layers: 200, Protobuf: n * 1e6, JSON: 3 * n * 1e6, Cached: took, Current: took, JSONTook: took, Memory: int64(n) << 20, Heap: int64(n) << 20, Peak: int64(n) << 21}
	}
	var out strings.Builder
	if err := (&Lists{Nodes: 7, Without: list(10), With: list(25)}).write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"list of 7 Nodes", "200 layers each", "30.0", "75.0", "2.50", "50.0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestMetricValue(t *testing.T) {
	text := []byte("# TYPE a gauge\na_b 1\na 1.5e+03\n")
	if got, err := value(text, "a"); err != nil || got != 1500 {
		t.Errorf("got %d, %v", got, err)
	}
	if got, err := value(text, "c"); err == nil || !strings.Contains(err.Error(), "no metric c") {
		t.Errorf("got %d, %v", got, err)
	}
}
