//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/lab/nodeimages"
)

// TestAPI writes layers as a kubelet does, to a Node that has none. Valid
// layers stay as they are; invalid ones are refused, and nothing is lost.
func TestAPI(t *testing.T) {
	t.Parallel()
	const name = "without-kubelet"
	nodes := client.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, nodes.Delete(context.Background(), name, metav1.DeleteOptions{}))
	})

	digest := func(n int) string { return fmt.Sprintf("sha256:%064x", n) }
	status := func(layers ...nodeimages.Layer) []byte {
		data, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name},
			"status": map[string]any{"images": []nodeimages.Image{
				{Names: []string{"example.com/first:v1"}, SizeBytes: 5, Layers: layers},
				{Names: []string{"example.com/second:v1"}, SizeBytes: 6, Layers: []nodeimages.Layer{{Digest: digest(7), SizeBytes: 7}}},
			}},
		})
		must(t, err)
		return data
	}
	valid := []nodeimages.Layer{{Digest: digest(1), SizeBytes: 1 << 40}, {Digest: digest(2)}}
	check := func(t *testing.T) {
		t.Helper()
		got, err := nodeimages.Get(t.Context(), client, name)
		must(t, err)
		if len(got) != 2 || fmt.Sprint(got[0].Layers) != fmt.Sprint(valid) || len(got[1].Layers) != 1 || got[1].Names[0] != "example.com/second:v1" {
			t.Errorf("stored: %+v", got)
		}
	}
	t.Run("valid", func(t *testing.T) {
		_, err := nodes.Patch(t.Context(), name, types.StrategicMergePatchType, status(valid...), metav1.PatchOptions{FieldManager: "patch"}, "status")
		must(t, err)
		check(t)
	})
	t.Run("server-side apply", func(t *testing.T) {
		force := true
		node, err := nodes.Patch(t.Context(), name, types.ApplyPatchType, status(valid...), metav1.PatchOptions{FieldManager: "apply", Force: &force}, "status")
		must(t, err)
		check(t)
		owned := false
		for _, entry := range node.ManagedFields {
			owned = owned || entry.Manager == "apply" && strings.Contains(entry.FieldsV1.GetRawString(), `"f:images":{}`)
		}
		if !owned {
			t.Errorf("managed fields: %v", node.ManagedFields)
		}
	})
	t.Run("typed client", func(t *testing.T) {
		// Read by a protobuf client whose types lack the field: names and
		// sizes still belong to the same image.
		node, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		for i, want := range []string{"[example.com/first:v1] 5", "[example.com/second:v1] 6"} {
			if got := fmt.Sprint(node.Status.Images[i].Names, node.Status.Images[i].SizeBytes); got != want {
				t.Errorf("image %d: %s, want %s", i, got, want)
			}
		}
	})
	many := make([]nodeimages.Layer, 513)
	for i := range many {
		many[i] = nodeimages.Layer{Digest: digest(i), SizeBytes: 1}
	}
	for _, test := range []struct {
		name   string
		layers []nodeimages.Layer
		field  string
	}{
		{"no digest", []nodeimages.Layer{{SizeBytes: 1}}, "status.images[0].layers[0].digest"},
		{"no digest at all", []nodeimages.Layer{{Digest: "latest", SizeBytes: 1}}, "status.images[0].layers[0].digest"},
		{"a long digest", []nodeimages.Layer{{Digest: digest(1)}, {Digest: "sha256:" + strings.Repeat("a", 10_000)}}, "status.images[0].layers[1].digest"},
		{"a negative size", []nodeimages.Layer{{Digest: digest(1), SizeBytes: -1}}, "status.images[0].layers[0].sizeBytes"},
		{"too many layers", many, "status.images[0].layers"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := nodes.Patch(t.Context(), name, types.StrategicMergePatchType, status(test.layers...), metav1.PatchOptions{}, "status")
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.field) {
				t.Errorf("got %v, want a refusal that names %s", err, test.field)
			}
			check(t)
		})
	}
}
