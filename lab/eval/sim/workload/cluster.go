package workload

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Mbit is a link of one Mbit/s, in bytes per second.
const Mbit = 1e6 / 8

// Cluster is what a workload runs on: identical nodes.
type Cluster struct {
	// Nodes is the number of nodes at the start.
	Nodes int
	// Racks is how many racks they stand in; 0: in none.
	Racks int
	// Node describes each of them; its name is ignored.
	Node Node
}

// DefaultCluster has 10 nodes, each with 8 CPUs, 16 GiB of memory, room for 110
// pods (the kubelet's default), 20 GB for images and a link of 400 Mbit/s (50
// MB/s).
func DefaultCluster() Cluster {
	return Cluster{
		Nodes: 10,
		Node:  Node{MilliCPU: 8000, Memory: 16 << 30, Pods: 110, Disk: 20e9, Link: 400 * Mbit},
	}
}

// nodes returns the nodes at the start.
func (c Cluster) nodes() []Node {
	nodes := make([]Node, c.Nodes)
	for i := range nodes {
		nodes[i] = c.Node
		nodes[i].Name = fmt.Sprintf("node-%04d", i+1)
		if c.Racks > 0 {
			nodes[i].Rack = fmt.Sprintf("rack-%02d", i%c.Racks+1)
		}
	}
	return nodes
}

// milliCPU returns the CPU of all nodes together.
func (c Cluster) milliCPU() float64 { return float64(c.Nodes) * float64(c.Node.MilliCPU) }

// Size is what one kind of pod requests.
type Size struct {
	// Weight is how many pods are of this kind, relative to other kinds.
	Weight   float64
	MilliCPU int64
	Memory   int64
}

// DefaultSizes are mostly small pods, as in most clusters: 315m of CPU and 512
// MiB of memory on average.
func DefaultSizes() []Size {
	return []Size{
		{40, 100, 128 << 20},
		{30, 250, 512 << 20},
		{20, 500, 512 << 20},
		{10, 1000, 2 << 30},
	}
}

// distribution draws indices by their weights.
type distribution []float64 // sums of the weights up to each index

func distribute(n int, weight func(int) float64) distribution {
	sums, sum := make(distribution, n), 0.0
	for i := range sums {
		sum += weight(i)
		sums[i] = sum
	}
	return sums
}

func (d distribution) draw(r *rand.Rand) int {
	return min(sort.SearchFloat64s(d, r.Float64()*d[len(d)-1]), len(d)-1)
}

// mean returns the mean of a value over the distribution.
func (d distribution) mean(value func(int) float64) float64 {
	sum, before := 0.0, 0.0
	for i, until := range d {
		sum += value(i) * (until - before)
		before = until
	}
	return sum / before
}

// sizer draws sizes.
type sizer struct {
	sizes []Size
	distribution
}

func newSizer(sizes []Size) (sizer, error) {
	s := sizer{sizes, distribute(len(sizes), func(i int) float64 { return sizes[i].Weight })}
	if len(sizes) == 0 || !(s.distribution[len(sizes)-1] > 0) {
		return s, fmt.Errorf("%d sizes of pods, and no weight: give sizes", len(sizes))
	}
	return s, nil
}

func (s sizer) draw(r *rand.Rand) Size { return s.sizes[s.distribution.draw(r)] }

// references gives every image exactly one unique name, because pods name an
// image by one reference. If an earlier image has the name, the reference uses
// the ImageID or digest instead; images without these are left out.
func references(images []dataset.Image) []dataset.Image {
	taken := make(map[string]bool, len(images))
	named := make([]dataset.Image, 0, len(images))
	for _, image := range images {
		image.Aliases = nil
		if id := cmp.Or(image.ImageID, image.Digest); taken[image.Image] && id != "" {
			image.Image = reference(image.Image, id)
		}
		if !taken[image.Image] {
			taken[image.Image] = true
			named = append(named, image)
		}
	}
	return named
}

// reference returns the reference of one version of an image: the repository of
// its name, with an ID.
func reference(name, id string) string {
	name, _, _ = strings.Cut(name, "@")
	if tag := strings.LastIndexByte(name, ':'); tag > strings.LastIndexByte(name, '/') {
		name = name[:tag]
	}
	return name + "@" + id
}

// newPlan sorts events by time; events of the same moment keep their order.
// Unused images are left out.
func newPlan(c Cluster, images []dataset.Image, events []Event) (*Plan, error) {
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	p := &Plan{Nodes: c.nodes(), Events: events}
	used := map[string]bool{}
	hold := func(n *Node) {
		for _, image := range n.Holds {
			used[image] = true
		}
	}
	for i := range p.Nodes {
		hold(&p.Nodes[i])
	}
	for _, e := range events {
		if e.Join != nil {
			hold(e.Join)
		}
		if e.Pod != nil {
			used[e.Pod.Image] = true
		}
		if e.Deploy != nil {
			used[e.Deploy.Image] = true
		}
	}
	for _, image := range images {
		if used[image.Image] {
			p.Images = append(p.Images, image)
		}
	}
	return p, p.Validate()
}
