package locality

import (
	"math"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

// Load is how busy a node is. It is small, because a scheduling cycle keeps the
// loads of all nodes in memory.
type Load struct {
	// CPUPercent is the requested CPU in percent of what the node can allocate.
	CPUPercent float32
	// WithoutRequest is the number of containers without a CPU request.
	WithoutRequest float32

	// pods and their requests (millicores), with kube-scheduler's default for
	// containers without a request.
	pods, milliCPU uint32
}

// NewLoad returns the load of a node with a number of pods. requested is the sum of
// their CPU requests in millicores; withDefaults adds kube-scheduler's default for
// each container without a request.
func NewLoad(requested, withDefaults, allocatable int64, pods int) Load {
	l := Load{
		WithoutRequest: float32(withDefaults-requested) / float32(schedutil.DefaultMilliCPURequest),
		pods:           uint32(pods),                                             //nolint:gosec // far less
		milliCPU:       uint32(min(max(0, withDefaults), int64(math.MaxUint32))), //nolint:gosec // bounded
	}
	if allocatable > 0 {
		l.CPUPercent = 100 * float32(requested) / float32(allocatable)
	}
	return l
}

// Loads adds up the loads of nodes. The zero value has no nodes.
type Loads struct {
	nodes, cpuPercent, withoutRequest, pods, milliCPU float64
}

// Add adds a node.
func (s *Loads) Add(l Load) {
	s.nodes++
	s.cpuPercent += float64(l.CPUPercent)
	s.withoutRequest += float64(l.WithoutRequest)
	s.pods += float64(l.pods)
	s.milliCPU += float64(l.milliCPU)
}

// How much a pod pays for load, relative to a pod with the mean request. Small pods
// pay less, because they unbalance the cluster less; the lower bound keeps many
// small pods from unbalancing it together.
const (
	leastShare = 0.25
	mostShare  = 4
)

// Balance is how much the load of nodes costs a pod.
type Balance struct {
	// CPUPenalty is the points for each percent of CPU above MeanCPUPercent, the
	// mean over the nodes. NoRequestPenalty is the points for each container without
	// a request above MeanWithoutRequest.
	CPUPenalty, NoRequestPenalty       float64
	MeanCPUPercent, MeanWithoutRequest float64
}

// BalanceFor returns how much load costs a pod with the given CPU request (see
// RequestOf).
func (s *Loads) BalanceFor(milliCPU int64, args *config.LayerLocalityArgs) Balance {
	share := 1.0
	if s.milliCPU > 0 {
		share = min(mostShare, max(leastShare, float64(milliCPU)*s.pods/s.milliCPU))
	}
	n := max(1, s.nodes)
	return Balance{
		CPUPenalty: share * float64(args.CPUPenalty), NoRequestPenalty: float64(args.NoRequestPenalty),
		MeanCPUPercent: s.cpuPercent / n, MeanWithoutRequest: s.withoutRequest / n,
	}
}

// LoadPoints returns what a node loses because it is busier than the mean; at most 0.
func (b *Balance) LoadPoints(l Load) float64 {
	return -max(0, b.CPUPenalty*(float64(l.CPUPercent)-b.MeanCPUPercent)+b.NoRequestPenalty*(float64(l.WithoutRequest)-b.MeanWithoutRequest))
}

// RequestOf returns the CPU request of a pod in millicores, with kube-scheduler's
// default for containers without a request.
func RequestOf(pod *v1.Pod) int64 {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{
		NonMissingContainerRequests: v1.ResourceList{v1.ResourceCPU: defaultRequest},
	})
	return requests.Cpu().MilliValue()
}

var defaultRequest = *apiresource.NewMilliQuantity(schedutil.DefaultMilliCPURequest, apiresource.DecimalSI)
