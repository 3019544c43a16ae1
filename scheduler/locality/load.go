package locality

import (
	"math"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

// Resources are what pods request or a node can allocate.
type Resources struct {
	MilliCPU int64
	// Memory in bytes.
	Memory int64
	Pods   int64
}

// Load is how busy a node is. It is small, because a scheduling cycle keeps the
// loads of all nodes in memory.
type Load struct {
	// Percent is what is requested of what the node can allocate, of CPU or of memory,
	// whichever is more.
	Percent float32
	// PodPercent is how many of the pods that it can hold a node has.
	PodPercent float32
	// WithoutRequest is the number of containers without a CPU request.
	WithoutRequest float32

	// pods and their requests. CPU (millicores) is with kube-scheduler's default for
	// containers without a request, memory (MiB) is not: many pods request none.
	pods, milliCPU, mebibytes uint32
}

// NewLoad returns the load of a node. requested is the sum of the requests of its pods;
// milliCPU that of CPU with kube-scheduler's default for each container without a request.
func NewLoad(requested Resources, milliCPU int64, allocatable Resources) Load {
	return Load{
		Percent:        max(percent(requested.MilliCPU, allocatable.MilliCPU), percent(requested.Memory, allocatable.Memory)),
		PodPercent:     percent(requested.Pods, allocatable.Pods),
		WithoutRequest: float32(milliCPU-requested.MilliCPU) / float32(schedutil.DefaultMilliCPURequest),
		pods:           small(requested.Pods),
		milliCPU:       small(milliCPU),
		mebibytes:      small(requested.Memory >> 20),
	}
}

// Of reports whether it is the load of a node with so many pods that request so much CPU and memory, as NewLoad takes them.
func (l *Load) Of(pods int, milliCPU, memory int64) bool {
	return l.pods == small(int64(pods)) && l.milliCPU == small(milliCPU) && l.mebibytes == small(memory>>20)
}

// percent is 0 for a node that does not state the resource.
func percent(requested, allocatable int64) float32 {
	if allocatable <= 0 {
		return 0
	}
	return 100 * float32(requested) / float32(allocatable)
}

func small(n int64) uint32 { return uint32(min(max(0, n), math.MaxUint32)) } //nolint:gosec // bounded

// Loads adds up the loads of nodes. The zero value has no nodes.
type Loads struct {
	nodes, percent, podPercent, withoutRequest, pods, milliCPU, mebibytes float64
}

// Add adds a node.
func (s *Loads) Add(l Load) {
	s.nodes++
	s.percent += float64(l.Percent)
	s.podPercent += float64(l.PodPercent)
	s.withoutRequest += float64(l.WithoutRequest)
	s.pods += float64(l.pods)
	s.milliCPU += float64(l.milliCPU)
	s.mebibytes += float64(l.mebibytes)
}

// How much a pod pays for load, relative to a pod with the mean request. Small pods
// pay less, because they unbalance the cluster less; the lower bound keeps many
// small pods from unbalancing it together.
const (
	leastShare = 0.25
	mostShare  = 4
)

// leastForBytes bounds how little load costs a pod of large images.
const leastForBytes = 0.1

// Balance is how much the load of nodes costs a pod: docs/scheduler.md#the-score has the formula. A new property of pods that
// it reads has to be in SignPod as well; one of nodes is measured in Load.Of.
type Balance struct {
	// LoadPenalty is the points for each percent above MeanPercent, the mean over the
	// nodes; NoRequestPenalty for each container without a CPU request above
	// MeanWithoutRequest.
	LoadPenalty, MeanPercent             float64
	NoRequestPenalty, MeanWithoutRequest float64
	// PodPenalty is the points for each percent of pods above MeanPodPercent, if that is
	// more than those for requests.
	PodPenalty, MeanPodPercent float64
}

// BalanceFor returns how much load costs a pod with the given requests (see RequestOf) and images
// of so many compressed bytes. Load costs as many bytes to pull whatever the size of the images: points
// are shares of that size, so load costs fewer of them.
func (s *Loads) BalanceFor(request Resources, images float64, args *config.LayerLocalityArgs) Balance {
	n := max(1, s.nodes)
	least := float64(args.MinImageBytes)
	forBytes := max(leastForBytes, least/max(1, least, images))
	return Balance{
		LoadPenalty: forBytes * s.share(request) * float64(args.LoadPenalty), MeanPercent: s.percent / n,
		PodPenalty: forBytes * float64(args.LoadPenalty), MeanPodPercent: s.podPercent / n, // a pod is one pod, whatever it requests
		NoRequestPenalty: forBytes * float64(args.NoRequestPenalty), MeanWithoutRequest: s.withoutRequest / n,
	}
}

// share returns what a pod requests relative to the mean over the pods on the nodes, of CPU
// or of memory, whichever is more.
func (s *Loads) share(request Resources) float64 {
	if s.milliCPU == 0 && s.mebibytes == 0 {
		return 1
	}
	relative := func(requested, all float64) float64 {
		if all == 0 {
			return 0
		}
		return requested * s.pods / all
	}
	share := max(relative(float64(request.MilliCPU), s.milliCPU), relative(float64(request.Memory)/(1<<20), s.mebibytes))
	return min(mostShare, max(leastShare, share))
}

// LoadPoints returns what a node loses because it is busier than the mean; at most 0.
func (b *Balance) LoadPoints(l Load) float64 {
	requested := b.LoadPenalty*(float64(l.Percent)-b.MeanPercent) + b.NoRequestPenalty*(float64(l.WithoutRequest)-b.MeanWithoutRequest)
	pods := b.PodPenalty * (float64(l.PodPercent) - b.MeanPodPercent)
	return -max(0, requested, pods)
}

// RequestOf returns what a pod requests, with kube-scheduler's default for containers
// without a CPU request.
func RequestOf(pod *v1.Pod) Resources {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{NonMissingContainerRequests: defaultRequests})
	return Resources{MilliCPU: requests.Cpu().MilliValue(), Memory: requests.Memory().Value()}
}

var defaultRequests = v1.ResourceList{
	v1.ResourceCPU: *apiresource.NewMilliQuantity(schedutil.DefaultMilliCPURequest, apiresource.DecimalSI),
}
