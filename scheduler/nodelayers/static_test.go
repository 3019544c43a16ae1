package nodelayers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// Reports stay as they are, and images that are equal are in memory once.
func TestStaticShares(t *testing.T) {
	s := NewStatic()
	var texts []string
	var layers []string
	const images = maxCompared + 4
	for i := range images { // the same fingerprint: name, number of layers and the last one
		layers = append(layers, line(fmt.Sprint(i), 5))
		texts = append(texts, v1alpha1.NodeImage{Names: []string{"quay.io/a:1"}, Layers: []int{i, images}}.String())
	}
	layers = append(layers, line("last", 9))
	for _, name := range []string{"n1", "n2"} {
		if err := s.Add(object(name, func(o *v1alpha1.NodeLayers) {
			o.Spec.Layers, o.Spec.Images = slices.Clone(layers), slices.Clone(texts)
		}), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	recorder := &sink{reports: map[string]*locality.NodeReport{}}
	s.Report(recorder)
	first, second := recorder.reports["n1"].Images, recorder.reports["n2"].Images
	shared := 0
	for i := range images {
		want := []index.Layer{{Digest: digest(fmt.Sprint(i)), Size: 5}, {Digest: digest("last"), Size: 9}}
		if !slices.Equal(first[i].Layers, want) || !slices.Equal(second[i].Layers, want) {
			t.Errorf("%d: %v, %v", i, first[i], second[i])
		}
		if &first[i].Layers[0] == &second[i].Layers[0] {
			shared++
		}
	}
	if shared != maxCompared {
		t.Errorf("%d are shared, want %d", shared, maxCompared)
	}
}
