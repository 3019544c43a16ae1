package prototype

import (
	"context"
	"math"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

func TestScore(t *testing.T) {
	base, a, b := index.Layer{Digest: "base", Size: 60}, index.Layer{Digest: "a", Size: 40}, index.Layer{Digest: "b", Size: 140}
	held := map[string][]index.Image{
		"n1": {{Names: []string{"image-a:latest"}, Layers: []index.Layer{base, a}}},
		"n2": {{Names: []string{"image-b:v1"}, Layers: []index.Layer{base, b}}},
		// Another list of layers for a known name does not count.
		"n3": {{Names: []string{"image-a:latest"}, Layers: []index.Layer{b}}, {Names: []string{"bare:v1"}}},
	}
	var nodes []*v1.Node
	for _, name := range []string{"n1", "n2", "n3"} {
		nodes = append(nodes, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	pl := New(func(n *v1.Node) []index.Image { return held[n.Name] })
	for _, node := range nodes {
		pl.Set(node)
	}

	for _, test := range []struct {
		name   string
		images []string
		want   []int64
	}{
		{"share of bytes", []string{"image-a"}, []int64{100, 60, 0}},
		{"a tag", []string{"image-b:v1"}, []int64{30, 100, 70}},
		{"mean of containers", []string{"image-a", "image-b:v1"}, []int64{65, 80, 35}},
		{"unknown image", []string{"nobody:v1"}, []int64{0, 0, 0}},
		{"half unknown", []string{"image-a", "nobody:v1"}, []int64{50, 30, 0}},
		{"no container", nil, []int64{0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i, node := range nodes {
				info := framework.NewNodeInfo()
				info.SetNode(node)
				got, status := pl.Score(context.Background(), nil, podOf(test.images...), info)
				if !status.IsSuccess() || got != test.want[i] {
					t.Errorf("%s: got %d, %v, want %d", node.Name, got, status, test.want[i])
				}
			}
		})
	}
	if share := pl.share(podOf("bare:v1"), "n1"); !math.IsNaN(share) {
		t.Errorf("an image without layers: got the share %v; the prototype divides 0 by 0", share)
	}
}

// When nodes change, what they have now counts, but a name keeps its first layers.
func TestSet(t *testing.T) {
	a, b := index.Layer{Digest: "a", Size: 40}, index.Layer{Digest: "b", Size: 60}
	held := []index.Image{{Names: []string{"image:v1"}, Layers: []index.Layer{a}}}
	pl := New(func(*v1.Node) []index.Image { return held })
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	check := func(when string, want float64) {
		t.Helper()
		if got := pl.share(podOf("image:v1"), "n1"); got != want {
			t.Errorf("%s: share %v, want %v", when, got, want)
		}
	}
	check("no node", 0)
	pl.Set(node)
	check("first", 1)
	held = []index.Image{{Names: []string{"image:v1"}, Layers: []index.Layer{b}}}
	pl.Set(node)
	check("other layers of the same name", 0)
	held = []index.Image{{Names: []string{"other:v1"}, Layers: []index.Layer{a, b}}}
	pl.Set(node)
	check("nobody has the name", 0)
	held = append(held, index.Image{Names: []string{"image:v1"}})
	pl.Set(node)
	check("again", 1)
	pl.Delete("n1")
	check("gone", 0)
	if len(pl.nodes) != 0 {
		t.Errorf("%d nodes are left", len(pl.nodes))
	}
}

func podOf(images ...string) *v1.Pod {
	pod := &v1.Pod{}
	for _, image := range images {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Image: image})
	}
	return pod
}
