package fleet

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

func TestImages(t *testing.T) {
	stated := Images([]dataset.Image{{
		Image: "registry.example:5000/a:v1", Digest: "sha256:m",
		Layers: []dataset.Layer{{Digest: "sha256:2", Size: 20}, {Digest: "sha256:1", Size: 10}, {Digest: "sha256:1", Size: 10}},
	}})[0]
	if want := []string{"registry.example:5000/a@sha256:m", "registry.example:5000/a:v1"}; !slices.Equal(stated.Names, want) {
		t.Errorf("names %v, want %v", stated.Names, want)
	}
	nodes := Nodes(Images(dataset.Generate(rand.New(rand.NewPCG(1, 1)), 10)), 1, 10)
	for _, image := range nodestatus.Images(nodes[0]) {
		if got := len(image.Layers) > 0; got != nodestatus.Layers {
			t.Errorf("%v states layers: %t, want %t in this build", image.Names, got, nodestatus.Layers)
		}
	}
}

func TestNodes(t *testing.T) {
	images := Images(dataset.Generate(rand.New(rand.NewPCG(1, 1)), 200))
	nodes := Nodes(images, 300, 50)
	if !reflect.DeepEqual(nodes, Nodes(images, 300, 50)) {
		t.Error("equal arguments give different nodes")
	}
	count := map[string]int{}
	for _, node := range nodes {
		names := map[string]bool{}
		for i, image := range node.Status.Images {
			names[image.Names[0]] = true
			count[image.Names[0]]++
			if i > 0 && image.SizeBytes > node.Status.Images[i-1].SizeBytes {
				t.Fatalf("%s does not state the largest images first", node.Name)
			}
		}
		if len(names) != 50 {
			t.Fatalf("%s has %d different images, want 50", node.Name, len(names))
		}
	}
	if first, last := count[images[0].Names[0]], count[images[199].Names[0]]; first < 290 || last > 60 {
		t.Errorf("of 300 nodes %d have the first image and %d the last: want nearly all and few", first, last)
	}
}
