package main

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// told is what NodeLayers say of nodes.
type told struct {
	objects []*v1alpha1.NodeLayers
	// images are the same for the prototype, which knows no NodeLayers; by node.
	images map[string][]index.Image
}

// tell returns Nodes that state no layers, and what agents say in place of that.
func tell(wire [][]byte) (plain [][]byte, t *told, err error) {
	t = &told{images: map[string][]index.Image{}}
	for i := range wire {
		node, err := decode(wire[i])
		if err != nil {
			return nil, nil, err
		}
		node.UID = types.UID("uid-" + node.Name)
		o := &v1alpha1.NodeLayers{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
			Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.Now()},
		}
		images := nodestatus.Images(node)
		t.images[node.Name] = images
		for _, image := range images {
			for _, l := range image.Layers {
				o.Spec.Layers = append(o.Spec.Layers, v1alpha1.ImageLayer(l).String())
			}
		}
		slices.Sort(o.Spec.Layers)
		o.Spec.Layers = slices.Compact(o.Spec.Layers)
		for j, image := range images {
			said := v1alpha1.NodeImage{Names: image.Names}
			for _, l := range image.Layers {
				place, _ := slices.BinarySearch(o.Spec.Layers, v1alpha1.ImageLayer(l).String())
				said.Layers = append(said.Layers, place)
			}
			o.Spec.Images = append(o.Spec.Images, said.String())
			node.Status.Images[j] = v1.ContainerImage{Names: image.Names, SizeBytes: image.SizeBytes}
		}
		text, err := node.Marshal()
		if err != nil {
			return nil, nil, err
		}
		plain, t.objects = append(plain, text), append(t.objects, o)
	}
	return plain, t, nil
}
