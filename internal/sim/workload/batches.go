package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/layer-locality/layer-locality/internal/dataset"
)

// Batches are many pods of one image at the same moment, as a parallel Job makes
// them; each batch has an image that no node has seen.
type Batches struct {
	// Before warms the nodes up.
	Before Arrivals
	// Batches is how many there are.
	Batches int
	// Pods of each batch.
	Pods int
	// Gap is the time between the last arrival and the first batch, and between two
	// batches.
	Gap time.Duration
	// Lifetime of the pods; 0: they stay.
	Lifetime time.Duration
	// Size of the pods; its weight does not count.
	Size Size
	// ReplicaSets: the pods of a batch are those of one application, and the
	// default topology spread of the scheduler acts on them.
	ReplicaSets bool
}

// Bursts are 10 batches of so many pods of 250m CPU and 256 MiB on 20 nodes, 10
// minutes apart, that run for 5 minutes. Before them come 400 pods as of Zipf(1)
// that request 30 % of the CPU.
func Bursts(pods int) Batches {
	before := Zipf(1)
	before.Nodes, before.Pods, before.Use = 20, 400, 0.3
	return Batches{
		Before: before, Batches: 10, Pods: pods, Gap: 10 * time.Minute, Lifetime: 5 * time.Minute,
		Size: Size{MilliCPU: 250, Memory: 256 << 20},
	}
}

// Plan draws the workload. It fails if there are not more images than batches.
func (b Batches) Plan(r *rand.Rand, images []dataset.Image) (*Plan, error) {
	images = references(images)
	if len(images) <= b.Batches || b.Batches < 0 {
		return nil, fmt.Errorf("%d batches need more than the %d images: give more images or less batches", b.Batches, len(images))
	}
	fresh := dataset.Draw(r, images, len(images))
	fresh, known := fresh[:b.Batches], fresh[b.Batches:]
	events, err := b.Before.events(r, known)
	if err != nil {
		return nil, err
	}
	at := end(events)
	for i, image := range fresh {
		at += b.Gap
		pod := Pod{Image: image.Image, MilliCPU: b.Size.MilliCPU, Memory: b.Size.Memory, Lifetime: b.Lifetime}
		if b.ReplicaSets {
			pod.App = fmt.Sprintf("batch-%02d", i+1)
		}
		for range b.Pods {
			events = append(events, Event{At: at, Pod: new(pod)})
		}
	}
	return newPlan(b.Before.Cluster, images, events)
}

// end is the time of the last event.
func end(events []Event) time.Duration {
	var last time.Duration
	for _, e := range events {
		last = max(last, e.At)
	}
	return last
}

// ScaleOut is one service that grows in a cluster that runs other things.
type ScaleOut struct {
	// Others are the other things.
	Others Arrivals
	// Steps are the numbers of replicas, one after another, from the middle of the
	// time in which the others come.
	Steps []int
	// Gap is the time between two steps.
	Gap time.Duration
	// Size of a replica; its weight does not count.
	Size Size
}

// Service grows from 1 to 40 replicas of 250m CPU and 256 MiB in 6 steps, 2 minutes
// apart, among the pods of Zipf(1).
func Service() ScaleOut {
	return ScaleOut{
		Others: Zipf(1), Steps: []int{1, 2, 5, 10, 20, 40}, Gap: 2 * time.Minute,
		Size: Size{MilliCPU: 250, Memory: 256 << 20},
	}
}

// Plan draws the workload. The service has an image that the others do not have.
func (s ScaleOut) Plan(r *rand.Rand, images []dataset.Image) (*Plan, error) {
	images = references(images)
	if len(images) < 2 {
		return nil, fmt.Errorf("%d images: a service and others need 2", len(images))
	}
	i := r.IntN(len(images))
	events, err := s.Others.events(r, slices.Concat(images[:i], images[i+1:]))
	if err != nil {
		return nil, err
	}
	start := end(events) / 2
	for step, replicas := range s.Steps {
		events = append(events, Event{At: start + time.Duration(step)*s.Gap, Deploy: &Deployment{
			Name: "service", Image: images[i].Image, Replicas: replicas, MilliCPU: s.Size.MilliCPU, Memory: s.Size.Memory,
		}})
	}
	return newPlan(s.Others.Cluster, images, events)
}
