//go:build e2e

package resolver

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestModel: pods mount a model, an OCI artifact, as an image volume. A pod with another version of it goes to the node
// that has the weights, which are not pulled again.
func TestModel(t *testing.T) {
	weights := images.Layer{Name: "weights", Size: baseBytes}
	model := func(tag string) *images.Pushed {
		t.Helper()
		made, err := images.Model(weights, images.Layer{Name: "tokenizer of " + tag, Size: ownBytes})
		must(t, err)
		pushed, err := images.Push(t.Context(), c.Registry().Address+"/model:"+tag, made)
		must(t, err)
		return pushed
	}
	first, second := model("v1"), model("v2")
	app, err := scenario.PushOnBase(t.Context(), c, "model-server:v1", images.Layer{}, ownBytes)
	must(t, err)
	seed := scenario.Pod{Name: "model-seed", Image: app.Reference, Model: first.Reference, Node: "n2"}
	next := scenario.Pod{Name: "model-next", Image: app.Reference, Model: second.Reference, Scheduler: scenario.Layers}
	t.Cleanup(func() { must(t, lab.Remove(context.Background(), seed.Name, next.Name)) })
	for name, of := range map[string]*images.Pushed{"models-1": first, "models-2": second} {
		announce(t, scenario.Pod{Name: name, Image: app.Reference, Model: of.Reference})
	}
	must(t, lab.Resolved(t.Context(), first.Reference, second.Reference))
	must(t, lab.Submit(t.Context(), seed))
	must(t, lab.Ready(t.Context(), seed.Name))
	if livetest.Flavour() == cluster.Patched {
		livetest.Eventually(t, time.Minute, "Node n2 lists the blobs of the model", func(ctx context.Context) error {
			all, err := nodeimages.Get(ctx, lab.Client, "n2")
			if err != nil {
				return err
			}
			listed, ok := livetest.FindNode(all, first.Reference)
			if !ok || len(listed.Layers) != len(first.Layers) {
				return fmt.Errorf("%+v", listed)
			}
			return nil
		})
	}
	must(t, lab.Present(t.Context(), second.Reference, "n2", baseBytes))
	must(t, lab.Submit(t.Context(), next))
	placed, err := lab.Placed(t.Context(), next.Name)
	must(t, err)
	if placed[next.Name] != "n2" {
		t.Errorf("the pod with the next version is on %s, want n2, which has the weights", placed[next.Name])
	}
	must(t, lab.Ready(t.Context(), next.Name))
	moved, err := scenario.Pulled(c, "model")
	must(t, err)
	if most := int64(baseBytes + 2*ownBytes + tolerance); moved.Total() > most {
		t.Errorf("nodes pulled %s of models, want at most %d bytes", moved, most)
	}
}
