//go:build e2e

package agent

import (
	"context"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestModels: pods mount a model as an image volume, with CRI-O an OCI artifact, with containerd an image. A pod with another
// version of it goes to the node that has the weights, which are not pulled again.
func TestModels(t *testing.T) {
	app := push(t, "model-server:v1")
	for _, node := range runtimes() {
		t.Run(c.Node(node).Runtime().Name(), func(t *testing.T) {
			if containerds[node].runtime == cluster.Containerd17 {
				t.Skip("containerd 1.7 has no image volumes")
			}
			repository := "model-" + node
			model := func(tag string) *images.Pushed {
				t.Helper()
				files := []images.Layer{{Name: "weights of " + node, Size: 20_000_000}, {Name: "tokenizer of " + node + tag, Size: 2_000_000}}
				build := images.Model
				if containerds[node].runtime != "" {
					build = func(files ...images.Layer) (v1.Image, error) {
						return images.Build(images.Image{Entrypoint: []string{"/none"}, Layers: files})
					}
				}
				made, err := build(files...)
				must(t, err)
				pushed, err := images.Push(t.Context(), c.Registry().Address+"/"+repository+":"+tag, made)
				must(t, err)
				return pushed
			}
			first, second := model("v1"), model("v2")
			seed := scenario.Pod{Name: "seed-" + node, Image: app.Reference, Model: first.Reference, Node: node}
			next := scenario.Pod{Name: "next-" + node, Image: app.Reference, Model: second.Reference, Scheduler: onlyLayers}
			t.Cleanup(func() { must(t, lab.Remove(context.Background(), seed.Name, next.Name)) })
			must(t, lab.Submit(t.Context(), seed))
			must(t, lab.Ready(t.Context(), seed.Name))
			publishes(t, node, first)
			livetest.WithdrawAtEnd(t, lab, repository)
			must(t, lab.Announce(t.Context(), scenario.Pod{Name: repository, Image: app.Reference, Model: second.Reference}))
			must(t, lab.Present(t.Context(), second.Reference, node, 20_000_000))
			must(t, lab.Submit(t.Context(), next))
			placed, err := lab.Placed(t.Context(), next.Name)
			must(t, err)
			if placed[next.Name] != node {
				t.Errorf("the pod with the next version is on %s, want %s, which has the weights", placed[next.Name], node)
			}
			must(t, lab.Ready(t.Context(), next.Name))
			publishes(t, node, second)
			moved, err := scenario.Pulled(c, repository)
			must(t, err)
			if moved[node] > 25_000_000 {
				t.Errorf("%s pulled %s of models, want 24 MB and little more", node, moved)
			}
		})
	}
}
