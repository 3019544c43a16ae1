package main

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// nodeReports are the NodeLayers of nodes.
type nodeReports struct {
	objects []*v1alpha1.NodeLayers
	// images are the same for the prototype, which reads no NodeLayers; by node.
	images map[string][]index.Image
}

// reportByAgents returns Nodes that state no layers, and the reports of agents in place of that.
func reportByAgents(wire [][]byte) (plain [][]byte, r *nodeReports, err error) {
	r = &nodeReports{images: map[string][]index.Image{}}
	for i := range wire {
		node, err := decode(wire[i])
		if err != nil {
			return nil, nil, err
		}
		node.UID = types.UID("uid-" + node.Name)
		images := nodestatus.Images(node)
		r.images[node.Name] = images
		var holds contents.Contents
		for j, image := range images {
			held := contents.Image{Names: image.Names}
			for _, l := range image.Layers {
				held.Layers = append(held.Layers, v1alpha1.ImageLayer(l))
			}
			holds.Images = append(holds.Images, held)
			node.Status.Images[j] = v1.ContainerImage{Names: image.Names, SizeBytes: image.SizeBytes}
		}
		o := &v1alpha1.NodeLayers{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
			Spec:       *holds.Spec(0, v1alpha1.MaxNodeListBytes),
		}
		o.Spec.RenewSeconds, o.Spec.RenewTime = 600, metav1.Now()
		text, err := node.Marshal()
		if err != nil {
			return nil, nil, err
		}
		plain, r.objects = append(plain, text), append(r.objects, o)
	}
	return plain, r, nil
}
