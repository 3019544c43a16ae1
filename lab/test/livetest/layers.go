package livetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
)

// AnnotationPrefix starts the key of an annotation that describes a layer.
const AnnotationPrefix = "imageLayer."

// Layers are the layers of one image: compressed sizes in bytes by digest.
type Layers map[string]int64

// FromRegistry reads the layers of the image with that tag or digest from its
// manifest. For an index, it reads the manifest for this machine.
func FromRegistry(ctx context.Context, reference string) (Layers, error) {
	pushed, err := images.Fetch(ctx, reference)
	if err != nil {
		return nil, err
	}
	layers := Layers{}
	for _, layer := range pushed.Layers {
		digest := layer.Digest.String()
		if size, known := layers[digest]; known && size != layer.Size {
			return nil, fmt.Errorf("%s: the registry's manifest gives layer %s %d and %d bytes", reference, digest, size, layer.Size)
		}
		layers[digest] = layer.Size
	}
	return layers, nil
}

// FromCRI reads the layers from the annotations of an image, and the other
// annotations. An annotation that looks like a layer but is not in the
// documented form is an error: nothing else may have the reserved prefix, in
// upper or lower case.
func FromCRI(image *runtimeapi.Image) (layers Layers, others map[string]string, err error) {
	layers, others = Layers{}, map[string]string{}
	for key, value := range image.GetSpec().GetAnnotations() {
		if !strings.HasPrefix(strings.ToLower(key), strings.ToLower(AnnotationPrefix)) {
			others[key] = value
			continue
		}
		digest, err := v1.NewHash(strings.TrimPrefix(key, AnnotationPrefix))
		if err != nil {
			return nil, nil, fmt.Errorf("%v: annotation %s=%s: %w", image.GetRepoTags(), key, value, err)
		}
		size, err := strconv.ParseUint(value, 10, 63)
		if err != nil || strconv.FormatUint(size, 10) != value {
			return nil, nil, fmt.Errorf("%v: annotation %s=%s: not a decimal number without sign", image.GetRepoTags(), key, value)
		}
		layers[digest.String()] = int64(size)
	}
	return layers, others, nil
}

// FromNode returns the layers that an entry of NodeStatus.images reports. They
// must be sorted by digest, without duplicates.
func FromNode(image nodeimages.Image) (Layers, error) {
	layers := Layers{}
	previous := ""
	for _, layer := range image.Layers {
		if layer.Digest <= previous {
			return nil, fmt.Errorf("%v: layer %q follows %q: not sorted by digest", image.Names, layer.Digest, previous)
		}
		previous = layer.Digest
		layers[layer.Digest] = layer.SizeBytes
	}
	return layers, nil
}

// Diff describes in which layers got differs from want. It returns "" if there
// is no difference.
func Diff(got, want Layers) string {
	var text strings.Builder
	all := maps.Clone(want)
	if all == nil {
		all = Layers{}
	}
	maps.Copy(all, got)
	for _, digest := range slices.Sorted(maps.Keys(all)) {
		g, isGot := got[digest]
		w, isWanted := want[digest]
		switch {
		case !isGot:
			fmt.Fprintf(&text, "\n  missing %s, %d bytes", digest, w)
		case !isWanted:
			fmt.Fprintf(&text, "\n  unwanted %s, %d bytes", digest, g)
		case g != w:
			fmt.Fprintf(&text, "\n  %s has %d bytes instead of %d", digest, g, w)
		}
	}
	return text.String()
}

// FindCRI returns the image that has the tag or digest among its names.
func FindCRI(list []*runtimeapi.Image, reference string) *runtimeapi.Image {
	for _, image := range list {
		if slices.Contains(image.GetRepoTags(), reference) || slices.Contains(image.GetRepoDigests(), reference) {
			return image
		}
	}
	return nil
}

// FindNode returns the entry that has the tag or digest among its names.
func FindNode(list []nodeimages.Image, reference string) (nodeimages.Image, bool) {
	i := slices.IndexFunc(list, func(image nodeimages.Image) bool { return slices.Contains(image.Names, reference) })
	if i < 0 {
		return nodeimages.Image{}, false
	}
	return list[i], true
}

// Growth measures by how many bytes layers enlarge the named Node in protobuf,
// the encoding in which etcd stores it. It gets that encoding from the
// apiserver, and compares it with one without layers.
func Growth(ctx context.Context, client kubernetes.Interface, node string) (int, error) {
	data, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).
		SetHeader("Accept", kruntime.ContentTypeProtobuf).DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("node %s: %w", node, err)
	}
	const magic = "k8s\x00"
	if !strings.HasPrefix(string(data), magic) {
		return 0, fmt.Errorf("node %s: the apiserver's answer is not in protobuf", node)
	}
	var envelope kruntime.Unknown
	if err := envelope.Unmarshal(data[len(magic):]); err != nil {
		return 0, fmt.Errorf("node %s: %w", node, err)
	}
	// The stock type has no layers and drops fields that it does not have.
	var stock corev1.Node
	if err := stock.Unmarshal(envelope.Raw); err != nil {
		return 0, fmt.Errorf("node %s: %w", node, err)
	}
	if stock.Name != node {
		return 0, errors.New("the apiserver answered with node " + stock.Name + " instead of " + node)
	}
	return len(envelope.Raw) - stock.Size(), nil
}

// FromNodeLayers returns the layers of an image from the texts of a NodeLayers.
func FromNodeLayers(spec *v1alpha1.NodeLayersSpec, name string) (Layers, error) {
	for _, text := range spec.Images {
		image, err := v1alpha1.ParseNodeImage(text, len(spec.Layers))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(image.Names, name) {
			continue
		}
		layers := Layers{}
		for _, place := range image.Layers {
			layer, err := v1alpha1.ParseLayer(spec.Layers[place])
			if err != nil {
				return nil, err
			}
			layers[layer.Digest] = layer.Size
		}
		return layers, nil
	}
	return nil, fmt.Errorf("%s is not among the %d images %.2000q", name, len(spec.Images), spec.Images)
}
