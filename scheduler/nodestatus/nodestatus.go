// Package nodestatus reads from Nodes which images they have and how they pull them, and
// keeps the Node objects of an informer small.
//
// The layers of an image are a field of the patched API. Only the files layers_*.go use
// it; without the build tag imagelayers they compile against the stock API and find no
// layers.
package nodestatus

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/intern"
)

// NeedLayers returns nil in a build that sees the layers in NodeStatus, and otherwise an
// error that names such a build.
func NeedLayers() error {
	if Layers {
		return nil
	}
	return errors.New("this build does not see layers in NodeStatus: build it in the workspace that scripts/tree.sh workspace makes, with -tags imagelayers")
}

// Platform returns the platform that the images of a node are built for.
func Platform(node *v1.Node) index.Platform {
	info := &node.Status.NodeInfo
	return index.Platform{OS: info.OperatingSystem, Architecture: info.Architecture}
}

// JoinsDownloadsLabel is the label of a Node that states whether the node downloads a layer
// once although two images that are pulled at the same time need it: true or false.
const JoinsDownloadsLabel = "layerlocality.io/joins-downloads"

// containerdPrefix begins NodeInfo.ContainerRuntimeVersion of nodes with containerd, which
// downloads a blob once for all that want it: a second writer of the same content waits.
const containerdPrefix = "containerd://"

// crioPrefix begins that of nodes with CRI-O, which uses a layer again whatever is below it.
const crioPrefix = "cri-o://"

// MayUseChains reports whether the node's runtime is one that may use a layer again only above
// the same layers.
func MayUseChains(node *v1.Node) bool {
	return !strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, crioPrefix)
}

// JoinsDownloads returns whether a node joins downloads, from its label, from its agent
// (stated, nil if there is none or it does not state it), or because it has containerd; nil if
// that is not known. With CRI-O it depends on the kubelet (one pull after another needs no
// joining), and no Node shows that. The error is about a label with another value; then the
// node counts as one without.
func JoinsDownloads(node *v1.Node, stated *bool) (*bool, error) {
	var err error
	if value, ok := node.Labels[JoinsDownloadsLabel]; ok {
		joins, invalid := strconv.ParseBool(value)
		if invalid == nil {
			return &joins, nil
		}
		err = fmt.Errorf("label %s=%q of node %s: set it to true or false, or remove it", JoinsDownloadsLabel, value, node.Name)
	}
	if stated != nil {
		return stated, err
	}
	if strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, containerdPrefix) {
		return ptr.To(true), err
	}
	return nil, err
}

// Ready reports whether a node's kubelet works.
func Ready(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// StatesLayers reports whether a node states the layers of any image.
func StatesLayers(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Images, func(image v1.ContainerImage) bool { return len(appendLayers(nil, &image)) > 0 })
}

// Images returns the images a node reports. The names are shared with node. The size of an
// image is the sum of its blobs with containerd, and what it takes on the disk with CRI-O.
func Images(node *v1.Node) []index.Image {
	compressed := strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, containerdPrefix)
	images := make([]index.Image, len(node.Status.Images))
	var layers []index.Layer
	for i := range node.Status.Images {
		image := &node.Status.Images[i]
		first := len(layers)
		layers = appendLayers(layers, image)
		images[i] = index.Image{Names: image.Names, SizeBytes: image.SizeBytes, Compressed: compressed, Layers: layers[first:len(layers):len(layers)]}
	}
	return images
}

// SameImages reports whether two versions of a Node report the same images, in the same
// order. Transform lets both versions share memory, so that it costs next to nothing if
// they do.
func SameImages(a, b *v1.Node) bool {
	x, y := a.Status.Images, b.Status.Images
	if len(x) != len(y) {
		return false
	}
	return len(x) == 0 || &x[0] == &y[0] || slices.EqualFunc(x, y, func(a, b v1.ContainerImage) bool {
		return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names) && sameLayers(&a, &b)
	})
}

// Transform returns an informer transform that saves memory. A Node with unchanged
// images shares them with the version in the store. Otherwise nodes share the strings of
// names and digests, which are most of a Node.
func Transform(store cache.Store) cache.TransformFunc {
	var strings intern.Strings
	return func(obj any) (any, error) {
		node, ok := obj.(*v1.Node)
		if !ok {
			return obj, nil
		}
		node.ManagedFields = nil
		if known, exists, err := store.GetByKey(node.Name); err == nil && exists {
			if last, ok := known.(*v1.Node); ok && SameImages(last, node) {
				node.Status.Images = last.Status.Images
				return node, nil
			}
		}
		for i := range node.Status.Images {
			image := &node.Status.Images[i]
			for j := range image.Names {
				image.Names[j] = strings.Intern(image.Names[j])
			}
			internLayers(image, strings.Intern)
		}
		return node, nil
	}
}
