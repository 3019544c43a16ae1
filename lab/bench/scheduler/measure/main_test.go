package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// TestRun runs the whole benchmark, as small as possible.
func TestRun(t *testing.T) { run(t, false) }

// TestRunNodeLayers has NodeLayers state what nodes hold: the run fails if that does not count.
func TestRunNodeLayers(t *testing.T) { run(t, true) }

func run(t *testing.T, nodeLayers bool) {
	t.Helper()
	t.Setenv(dataset.Env, "")
	out := filepath.Join(t.TempDir(), "report.json")
	o := options{nodes: 60, images: 20, layers: 12, rounds: 1, kinds: "popular,unknown", out: out, nodeLayers: nodeLayers}
	err := o.run(context.Background())
	if !nodestatus.Layers {
		if err == nil {
			t.Fatal("no error, though this build sees no layers")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.LayersPerNode != 20*12 {
		t.Errorf("%v layers a node, want 20 images of 12 layers", r.LayersPerNode)
	}
	if got, want := len(r.Scores), 2*2*2; got != want {
		t.Fatalf("%d scores, want %d: kinds of images, containers, nodes scored", got, want)
	}
	for _, s := range r.Scores {
		for name, c := range map[string]cost{"LayerLocality": s.LayerLocality, "ImageLocality": s.ImageLocality, "prototype": s.Prototype} {
			if c.Micros <= 0 || c.FrameworkMicros <= 0 {
				t.Errorf("%s, image=%s containers=%d scored=%d: not measured: %+v", name, s.Image, s.Containers, s.Scored, c)
			}
		}
	}
	if nodeLayers {
		return
	}
	if r.Joined.Layers.Milliseconds <= 0 || r.Joined.Names.Milliseconds <= 0 || r.Joined.Names.Heap.Live <= 0 {
		t.Errorf("an index of names and manifests: not measured: %+v", r.Joined)
	}
	if r.Updates.Changed.Handler <= 0 || r.Updates.Unchanged.Transform <= 0 || r.Memory.Plain.Live <= r.Memory.Transformed.Live {
		t.Errorf("updates %+v and memory %+v: not measured", r.Updates, r.Memory)
	}
}

func TestRunRefuses(t *testing.T) {
	if !nodestatus.Layers {
		t.Skip("this build sees no layers: the benchmark refuses everything")
	}
	for name, o := range map[string]options{
		"too few nodes": {nodes: 1, images: 50, layers: 12, rounds: 1},
		"no round":      {nodes: 60, images: 50, layers: 12},
	} {
		if err := o.run(context.Background()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWithLayers(t *testing.T) {
	images := withLayers([]dataset.Image{
		{Image: "few", Layers: []dataset.Layer{{Digest: "a", Size: 5}}},
		{Image: "many", Layers: []dataset.Layer{{Digest: "a", Size: 5}, {Digest: "b", Size: 1}, {Digest: "c", Size: 7}, {Digest: "d", Size: 3}}},
	}, 3)
	for _, image := range images {
		if len(image.Layers) != 3 {
			t.Errorf("%s has %d layers, want 3", image.Image, len(image.Layers))
		}
	}
	for i, want := range []string{"a", "c", "d"} {
		if got := images[1].Layers[i].Digest; got != want {
			t.Errorf("layer %d is %s, want %s: the smallest goes", i, got, want)
		}
	}
	if images[0].Layers[1].Digest == images[0].Layers[2].Digest {
		t.Error("added layers are the same")
	}
}
