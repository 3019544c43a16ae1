package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Sandboxes are bursts of short pods, each with one of many images that are used a few times: those of a
// benchmark for coding agents, of tests in CI. An image is a base that all share, an environment that many
// share, and a little of its own.
type Sandboxes struct {
	Cluster
	// Images and Environments are how many there are. Environments differ in how many images use them,
	// by Zipf's law.
	Images, Environments int
	// BaseBytes, EnvironmentBytes and OwnBytes are the compressed sizes of the parts of an image.
	BaseBytes, EnvironmentBytes, OwnBytes int64
	// Minutes is how many bursts there are, one a minute, of LeastPods to MostPods pods.
	Minutes, LeastPods, MostPods int
	// Each is how many pods of a burst have the same image.
	Each int
	// Pods live for ShortLife to LongLife.
	ShortLife, LongLife time.Duration
	Size                Size
}

// DefaultSandboxes have images in the shape of SWE-bench's (https://github.com/SWE-bench/SWE-bench): 2,290 of
// them take 684 GiB as they are stored, and 67 GiB if each layer is stored once. 500 are used.
func DefaultSandboxes() Sandboxes {
	cluster := DefaultCluster()
	cluster.Nodes, cluster.Node.Disk = 40, 50e9
	return Sandboxes{
		Cluster: cluster, Images: 500, Environments: 60, BaseBytes: 150e6, EnvironmentBytes: 130e6, OwnBytes: 25e6,
		Minutes: 30, LeastPods: 50, MostPods: 200, Each: 8, ShortLife: 2 * time.Minute, LongLife: 10 * time.Minute,
		Size: Size{MilliCPU: 250, Memory: 512 << 20},
	}
}

// Plan draws the workload.
func (s Sandboxes) Plan(r *rand.Rand) (*Plan, error) {
	if s.Images < 1 || s.Environments < 1 || s.Each < 1 || s.LeastPods > s.MostPods || s.ShortLife > s.LongLife {
		return nil, fmt.Errorf("sandboxes: %+v", s)
	}
	images := s.images(r)
	var events []Event
	next := 0
	for minute := range s.Minutes {
		var image string
		for i := range s.LeastPods + r.IntN(s.MostPods-s.LeastPods+1) {
			if i%s.Each == 0 {
				image = images[next%len(images)].Image
				next++
			}
			life := s.ShortLife + time.Duration(r.Float64()*float64(s.LongLife-s.ShortLife))
			events = append(events, Event{At: time.Duration(minute+1) * time.Minute, Pod: &Pod{Image: image, MilliCPU: s.Size.MilliCPU, Memory: s.Size.Memory, Lifetime: life}})
		}
	}
	return newPlan(s.Cluster, images, events)
}

// images draws the images, in random order.
func (s Sandboxes) images(r *rand.Rand) []dataset.Image {
	id := 0
	layers := func(bytes int64, n int) (all []dataset.Layer) {
		for i := range n {
			id++
			size := bytes / 2 / int64(n)
			if i == 0 { // the packages that are installed
				size = bytes - size*int64(n-1)
			}
			size = int64(float64(size) * (0.8 + 0.4*r.Float64()))
			all = append(all, dataset.Layer{Digest: fmt.Sprintf("sha256:%064x", id), Size: size})
		}
		return all
	}
	base := layers(s.BaseBytes, 4)
	environments, weights, sum := make([][]dataset.Layer, s.Environments), make([]float64, s.Environments), 0.
	for i := range environments {
		environments[i] = layers(s.EnvironmentBytes, 3)
		weights[i] = 1 / float64(i+1)
		sum += weights[i]
	}
	images := make([]dataset.Image, s.Images)
	for i := range images {
		at, environment := r.Float64()*sum, 0
		for at > weights[environment] && environment < s.Environments-1 {
			at -= weights[environment]
			environment++
		}
		own := layers(int64(float64(s.OwnBytes)*math.Exp(0.5*r.NormFloat64())), 2)
		images[i] = dataset.Image{
			Image: fmt.Sprintf("registry.example/sandbox/%d:1", i), ImageID: fmt.Sprintf("sha256:%064x", 1<<40+i),
			Layers: slices.Concat(base, environments[environment], own),
		}
	}
	return images
}
