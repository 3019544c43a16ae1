// Package fleet makes Nodes with images, for benchmarks.
package fleet

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// Images returns images as nodes report them, most popular first (see Draw).
func Images(images []dataset.Image) []v1.ContainerImage {
	stated := make([]v1.ContainerImage, len(images))
	for i, image := range images {
		stated[i] = containerImage(image)
	}
	return stated
}

// expansion is the ratio of an image's size on disk to that in the registry.
// For most images it is between two and three.
const expansion = 2.5

func containerImage(image dataset.Image) v1.ContainerImage {
	layers := make([]index.Layer, len(image.Layers))
	var compressed int64
	for i, l := range image.Layers {
		layers[i] = index.Layer{Digest: l.Digest, Size: l.Size}
		compressed += l.Size
	}
	slices.SortFunc(layers, func(a, b index.Layer) int { return cmp.Compare(a.Digest, b.Digest) })
	layers = slices.CompactFunc(layers, func(a, b index.Layer) bool { return a.Digest == b.Digest })

	manifest := image.Digest
	if manifest == "" {
		manifest = digest.FromString(image.Image).String()
	}
	repository := image.Image
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	stated := v1.ContainerImage{
		Names:     []string{repository + "@" + manifest, image.Image},
		SizeBytes: int64(expansion * float64(compressed)),
	}
	nodestatus.SetLayers(&stated, layers)
	return stated
}

// Nodes returns n Nodes with perNode images each. They share the memory of the
// images. Equal arguments give equal Nodes.
func Nodes(images []v1.ContainerImage, n, perNode int) []*v1.Node {
	nodes := make([]*v1.Node, n)
	for i := range nodes {
		r := rand.New(rand.NewPCG(uint64(i), 0))
		name := fmt.Sprintf("node-%05d", i)
		capacity := v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse("16"),
			v1.ResourceMemory: resource.MustParse("64Gi"),
			v1.ResourcePods:   resource.MustParse("110"),
		}
		nodes[i] = &v1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, UID: types.UID(name), ResourceVersion: "1",
				Labels: map[string]string{v1.LabelHostname: name, v1.LabelOSStable: "linux", v1.LabelArchStable: "amd64"},
			},
			Status: v1.NodeStatus{
				Capacity: capacity, Allocatable: capacity,
				NodeInfo: v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"},
				Images:   Draw(r, images, perNode),
			},
		}
	}
	return nodes
}

// Draw returns n different images, or all if there are fewer, largest first as
// the kubelet reports them. The image at position i is drawn with a weight of
// 1/(i+1): in a cluster a few images are nearly everywhere and most are on few
// nodes.
func Draw(r *rand.Rand, images []v1.ContainerImage, n int) []v1.ContainerImage {
	// The images whose exponentially distributed clocks ring first.
	type clock struct {
		rings float64
		image int
	}
	clocks := make([]clock, len(images))
	for i := range clocks {
		clocks[i] = clock{rings: -math.Log(1-r.Float64()) * float64(i+1), image: i}
	}
	slices.SortFunc(clocks, func(a, b clock) int { return cmp.Compare(a.rings, b.rings) })
	drawn := make([]v1.ContainerImage, min(n, len(images)))
	for i := range drawn {
		drawn[i] = images[clocks[i].image]
	}
	slices.SortStableFunc(drawn, func(a, b v1.ContainerImage) int { return cmp.Compare(b.SizeBytes, a.SizeBytes) })
	return drawn
}
