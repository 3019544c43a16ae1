// Package prototype is the score of the ImageLayersLocality prototype of 2022,
// the ancestor of LayerLocality. It was rewritten from its description, for
// comparison. Do not use it: its mistakes are kept, and marked below.
package prototype

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// Name is the name of the plugin.
const Name = "ImageLayersLocality"

// ImageLayersLocality scores nodes by the share of the bytes of each container's
// image that they have, averaged over the containers. Set and Delete must not run
// while it scores.
type ImageLayersLocality struct {
	// images returns the images that a Node reports.
	images func(*v1.Node) []index.Image
	nodes  []*node
	byName map[string]*node
	// first has the layers of each name as the first node with that name reported
	// them.
	first map[string]layers
}

var _ fwk.ScorePlugin = &ImageLayersLocality{}

// node has what the prototype keeps in the NodeInfo of the scheduler's snapshot.
type node struct {
	name string
	// images has the layers of each image under all of its names.
	images map[string]layers
	// layers has the layers of all images on the node.
	layers map[string]struct{}
}

// layers are the sizes of an image's layers by digest, in compressed bytes.
type layers map[string]int64

// New returns the plugin without nodes; images returns the images that a Node reports.
func New(images func(*v1.Node) []index.Image) *ImageLayersLocality {
	return &ImageLayersLocality{images: images, byName: map[string]*node{}, first: map[string]layers{}}
}

// Set adds a node, or updates the one of that name. The first node with an image
// decides for ever, for all nodes, which layers the image has.
func (pl *ImageLayersLocality) Set(object *v1.Node) {
	n := pl.byName[object.Name]
	if n == nil {
		n = &node{name: object.Name}
		pl.nodes = append(pl.nodes, n)
		pl.byName[object.Name] = n
	}
	n.images, n.layers = map[string]layers{}, map[string]struct{}{}
	for _, image := range pl.images(object) {
		for _, name := range image.Names {
			known, ok := pl.first[name]
			if !ok {
				known = layers{}
				for _, l := range image.Layers {
					known[l.Digest] = l.Size
				}
				pl.first[name] = known
			}
			n.images[name] = known
		}
		for _, l := range image.Layers {
			n.layers[l.Digest] = struct{}{}
		}
	}
}

// Delete removes the node of that name.
func (pl *ImageLayersLocality) Delete(name string) {
	delete(pl.byName, name)
	pl.nodes = slices.DeleteFunc(pl.nodes, func(n *node) bool { return n.name == name })
}

// Name returns the name of the plugin.
func (pl *ImageLayersLocality) Name() string { return Name }

// Score searches all nodes for one that has the image, for each node and
// container. For an image that is known without layers, it converts NaN to an
// integer: the result is out of bounds on some processors.
func (pl *ImageLayersLocality) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	return int64(100 * pl.share(pod, info.Node().Name)), nil
}

// ScoreExtensions returns nil: scores are not normalized.
func (pl *ImageLayersLocality) ScoreExtensions() fwk.ScoreExtensions { return nil }

func (pl *ImageLayersLocality) share(pod *v1.Pod, nodeName string) float64 {
	scored := pl.byName[nodeName]
	if scored == nil || len(pod.Spec.Containers) == 0 {
		return 0
	}
	var sum float64
	for i := range pod.Spec.Containers { // layers of two containers count twice
		image := pl.find(pod.Spec.Containers[i].Image)
		if image == nil {
			continue // nothing is known: 0 on every node
		}
		var present, total int64
		for digest, size := range image {
			total += size
			if _, ok := scored.layers[digest]; ok {
				present += size
			}
		}
		sum += float64(present) / float64(total)
	}
	return sum / float64(len(pod.Spec.Containers))
}

func (pl *ImageLayersLocality) find(image string) layers {
	name := image
	if strings.LastIndexByte(name, ':') <= strings.LastIndexByte(name, '/') {
		name += ":latest"
	}
	for _, n := range pl.nodes {
		if known, ok := n.images[name]; ok {
			return known
		}
	}
	return nil
}
