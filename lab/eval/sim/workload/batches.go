package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Batches are many pods with one image at the same moment, as from a parallel Job.
// Each batch has an image that no node has seen.
type Batches struct {
	// Before warms the nodes up.
	Before Arrivals
	// Batches is the number of batches.
	Batches int
	// Pods of each batch.
	Pods int
	// Gap is the time before the first batch (after the last arrival), and between
	// two batches.
	Gap time.Duration
	// Lifetime of the pods; 0: they stay.
	Lifetime time.Duration
	// Size of the pods; its weight is ignored.
	Size Size
	// ReplicaSets means that the pods of a batch belong to one application, and
	// that the scheduler's default topology spread applies to them.
	ReplicaSets bool
	// Groups means that the pods of a batch are a group, which is placed in one rack.
	Groups bool
	// Only means that metrics count from the first batch on: what was before is history.
	Only bool
}

// Bursts are 10 batches, 10 minutes apart, on 20 nodes. The pods of a batch request
// 250m CPU and 256 MiB each and run for 5 minutes. Before the batches, 400 pods
// come as in Zipf(1) and request 30 % of the CPU.
func Bursts(pods int) Batches {
	before := Zipf(1)
	before.Nodes, before.Pods, before.Use = 20, 400, 0.3
	return Batches{
		Before: before, Batches: 10, Pods: pods, Gap: 10 * time.Minute, Lifetime: 5 * time.Minute,
		Size: Size{MilliCPU: 250, Memory: 256 << 20},
	}
}

// LateBursts are Bursts on nodes that live long: 4,000 pods come before, and only the
// batches count.
func LateBursts(pods int) Batches {
	b := Bursts(pods)
	b.Before.Pods, b.Only = 4000, true
	return b
}

// Groups are LateBursts of 16 pods, each a group, on 40 nodes in five racks.
func Groups() Batches {
	b := LateBursts(16)
	b.Before.Nodes, b.Before.Racks, b.Groups = 40, 5, true
	return b
}

// Plan draws the workload. It fails unless there are more images than batches.
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
	history := at + b.Gap
	for i, image := range fresh {
		at += b.Gap
		pod := Pod{Image: image.Image, MilliCPU: b.Size.MilliCPU, Memory: b.Size.Memory, Lifetime: b.Lifetime}
		if b.ReplicaSets {
			pod.App = fmt.Sprintf("batch-%02d", i+1)
		}
		if b.Groups {
			pod.Group = fmt.Sprintf("batch-%02d", i+1)
		}
		for range b.Pods {
			events = append(events, Event{At: at, Pod: new(pod)})
		}
	}
	p, err := newPlan(b.Before.Cluster, images, events)
	if err == nil && b.Only {
		p.History = history
	}
	return p, err
}

// end returns the time of the last event.
func end(events []Event) time.Duration {
	var last time.Duration
	for _, e := range events {
		last = max(last, e.At)
	}
	return last
}

// ScaleOut is a service that grows in a cluster that also runs other pods.
type ScaleOut struct {
	// Others are the other pods.
	Others Arrivals
	// Steps are the successive numbers of replicas. They start in the middle of the
	// time in which the others come.
	Steps []int
	// Gap is the time between two steps.
	Gap time.Duration
	// Size of a replica; its weight is ignored.
	Size Size
}

// Service grows from 1 to 40 replicas with 250m CPU and 256 MiB in 6 steps, 2
// minutes apart, among the pods of Zipf(1).
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
