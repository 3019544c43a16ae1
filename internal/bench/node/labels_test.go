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
	for _, want := range []string{"median of 3", "stock kube-apiserver", "2.000", "patched, no layers", "0.50", "patched, 400 layers", "1.25"} {
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
