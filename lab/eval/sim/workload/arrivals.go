package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Arrivals are pods that come one after another and end. Their images follow
// Zipf's law over an order of popularity that the seed decides.
type Arrivals struct {
	Cluster
	// Pods is the number of pods.
	Pods int
	// Exponent of Zipf's law: the k-th image in the order of popularity has the
	// weight 1/k^Exponent. 0: all images are equally popular.
	Exponent float64
	// Rate is how many pods come on average per second and per node at the start:
	// a larger cluster gets more pods. The times between them are exponential.
	Rate float64
	// Use is the share of the CPU of the nodes at the start that pods request once
	// as many pods end as come, after about three lifetimes. Lifetimes are
	// exponential; their mean follows from Use by Little's law. 0: pods stay.
	Use float64
	// Sizes of the pods.
	Sizes []Size
	// ReplicaSets means that the pods of one image belong to one application and
	// are alike, and that the scheduler's default topology spread applies to them.
	ReplicaSets bool
	// Joins is how many empty nodes join, spread evenly over the second and third
	// quarter of the time in which pods come.
	Joins int
}

// Zipf is 1,000 pods on DefaultCluster, one every 5 seconds, that request half of
// the CPU.
func Zipf(exponent float64) Arrivals {
	return Arrivals{Cluster: DefaultCluster(), Pods: 1000, Exponent: exponent, Rate: 0.02, Use: 0.5, Sizes: DefaultSizes()}
}

// Busy is Zipf(1), but pods request 85 % of the CPU. More pods come, so that this
// is so for more than half of the time.
func Busy() Arrivals {
	a := Zipf(1)
	a.Use, a.Pods = 0.85, 2000
	return a
}

// Joining is Zipf(1) while the cluster grows by half.
func Joining() Arrivals {
	a := Zipf(1)
	a.Joins = a.Nodes / 2
	return a
}

// LRScheduler resembles the evaluation of LRScheduler (Z. Tang et al., MSN 2024,
// arXiv:2506.03694): 3, 4 or 5 workers next to a control plane that takes no pods,
// links of up to 30 Mbit/s, and 20 pods that stay. The requests are from the
// example in its code (github.com/pwtttttt/Layer-Scheduler, test-pod.yaml). We
// assume nodes with 4 CPUs and 8 GiB, 20 GB for images, one pod per minute, and
// equally popular images.
func LRScheduler(workers int) Arrivals {
	return Arrivals{
		Cluster: Cluster{
			Nodes: workers,
			Node:  Node{MilliCPU: 4000, Memory: 8 << 30, Pods: 110, Disk: 20e9, Link: 30 * Mbit},
		},
		Pods:  20,
		Rate:  1 / (60 * float64(workers)),
		Sizes: []Size{{1, 400, 300 << 20}},
	}
}

// Plan draws the workload. It fails if there are no images, or if the nodes make
// no sense.
func (a Arrivals) Plan(r *rand.Rand, images []dataset.Image) (*Plan, error) {
	images = references(images)
	events, err := a.events(r, images)
	if err != nil {
		return nil, err
	}
	return newPlan(a.Cluster, images, events)
}

// events draws the events; the images come from references.
func (a Arrivals) events(r *rand.Rand, images []dataset.Image) ([]Event, error) {
	switch {
	case len(images) == 0:
		return nil, errors.New("no images to run")
	case a.Nodes <= 0 || !(a.Rate > 0):
		return nil, fmt.Errorf("%d nodes and a rate of %v pods a second and node: both have to be positive", a.Nodes, a.Rate)
	case a.Use < 0 || a.Pods < 0 || a.Joins < 0:
		return nil, fmt.Errorf("use %v, %d pods, %d joins: no negative numbers", a.Use, a.Pods, a.Joins)
	}
	sizes, err := newSizer(a.Sizes)
	if err != nil {
		return nil, err
	}
	order := r.Perm(len(images))
	popularity := distribute(len(order), func(k int) float64 { return math.Pow(float64(k+1), -a.Exponent) })
	size := func(int) Size { return sizes.draw(r) }
	meanCPU := sizes.mean(func(i int) float64 { return float64(sizes.sizes[i].MilliCPU) })
	if a.ReplicaSets {
		ofApp := make([]Size, len(order))
		for k := range ofApp {
			ofApp[k] = sizes.draw(r)
		}
		size = func(k int) Size { return ofApp[k] }
		meanCPU = popularity.mean(func(k int) float64 { return float64(ofApp[k].MilliCPU) })
	}
	rate := a.Rate * float64(a.Nodes)
	lifetime := a.Use * a.milliCPU() / (rate * meanCPU)

	events := make([]Event, 0, a.Pods+a.Joins)
	at := 0.0
	for range a.Pods {
		at += r.ExpFloat64() / rate
		k := popularity.draw(r)
		s := size(k)
		pod := &Pod{Image: images[order[k]].Image, MilliCPU: s.MilliCPU, Memory: s.Memory}
		if a.ReplicaSets {
			pod.App = fmt.Sprintf("app-%04d", k+1)
		}
		if lifetime > 0 {
			pod.Lifetime = max(time.Millisecond, seconds(r.ExpFloat64()*lifetime))
		}
		events = append(events, Event{At: seconds(at), Pod: pod})
	}
	for i := range a.Joins {
		node := a.Node
		node.Name = fmt.Sprintf("joined-%04d", i+1)
		events = append(events, Event{At: seconds(at * (0.25 + 0.5*(float64(i)+0.5)/float64(a.Joins))), Join: &node})
	}
	return events, nil
}

// seconds returns a duration rounded to milliseconds, because people read plans
// too.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}
