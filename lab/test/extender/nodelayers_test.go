//go:build e2e

package extender

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestNodeLayers has NodeLayers state that a node holds an image that no node has pulled: they
// count in place of its NodeStatus, and pods go there.
func TestNodeLayers(t *testing.T) {
	const reporter, pods = "n4", 4
	config, err := c.RESTConfig()
	must(t, err)
	scheme := runtime.NewScheme()
	must(t, v1alpha1.AddToScheme(scheme))
	objects, err := client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	node, err := lab.Client.CoreV1().Nodes().Get(t.Context(), reporter, metav1.GetOptions{})
	must(t, err)
	attempt := 0
	// As in TestFaults, an answer can be later than httpTimeout on a busy machine.
	livetest.Eventually(t, 2*time.Minute, "pods go where NodeLayers have their image", func(context.Context) error {
		attempt++
		name := fmt.Sprintf("reported-%d", attempt)
		image := livetest.HubImage(t, c, name+":v1", 100_000_000, 2)
		object := &v1alpha1.NodeLayers{
			ObjectMeta: metav1.ObjectMeta{Name: reporter, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: reporter, UID: node.UID}}},
			Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 3600, RenewTime: metav1.Now()},
		}
		places := ""
		for i, layer := range image.Layers {
			object.Spec.Layers = append(object.Spec.Layers, v1alpha1.ImageLayer{Digest: layer.Digest.String(), Size: layer.Size}.String())
			places += fmt.Sprintf(",%d", i)
		}
		slices.Sort(object.Spec.Layers)
		object.Spec.Images = []string{places[1:] + " " + hub + name + ":v1"}
		must(t, objects.Create(t.Context(), object))
		defer func() {
			if err := objects.Delete(context.Background(), object); err != nil {
				t.Error(err)
			}
		}()
		livetest.Eventually(t, time.Minute, "layer-extender has what "+reporter+" reports", func(ctx context.Context) error {
			ratings, err := lab.Rate(ctx, name+":v1")
			if err != nil {
				return err
			}
			if rating, _ := ratings.Node(reporter); rating.MissingBytes != 0 || len(rating.Has) != 1 || rating.Has[0].By != "layers" {
				return fmt.Errorf("%+v", rating)
			}
			return nil
		})
		names := submit(t, name, pods, scenario.Pod{Image: name + ":v1", Scheduler: scenario.Layers})
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		if per := scenario.PerNode(nodes); per[reporter] != pods {
			return fmt.Errorf("%s reports that it has the image, the pods went to %v", reporter, per)
		}
		return nil
	})
}
