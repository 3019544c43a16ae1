package layerlocality

import (
	"math"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

// load is how busy a node is. It is small, because a cycle keeps those of all nodes
// at hand.
type load struct {
	// cpu is the CPU that is requested, in percent.
	cpu float32
	// bare are the containers without a CPU request: kube-scheduler counts each of
	// them once with nothing and once with a default.
	bare float32
	// pods and their requests, with that default.
	pods, milliCPU uint32
}

func loadOf(n fwk.NodeInfo) load {
	requested, nonZero := n.GetRequested().GetMilliCPU(), n.GetNonZeroRequested().GetMilliCPU()
	l := load{
		bare:     float32(nonZero-requested) / float32(schedutil.DefaultMilliCPURequest),
		pods:     uint32(len(n.GetPods())),                            //nolint:gosec // far less
		milliCPU: uint32(min(max(0, nonZero), int64(math.MaxUint32))), //nolint:gosec // bounded
	}
	if allocatable := n.GetAllocatable().GetMilliCPU(); allocatable > 0 {
		l.cpu = 100 * float32(requested) / float32(allocatable)
	}
	return l
}

// balance rates the load of nodes for one pod.
type balance struct {
	cpuPenalty, noRequest float64
	// Means over the feasible nodes.
	meanCPU, meanBare float64
}

// loads adds up those of nodes.
type loads struct {
	nodes, cpu, bare, pods, milliCPU float64
}

func (s *loads) add(l load) {
	s.nodes++
	s.cpu += float64(l.cpu)
	s.bare += float64(l.bare)
	s.pods += float64(l.pods)
	s.milliCPU += float64(l.milliCPU)
}

// How much a pod pays for load, in proportion to one with the mean request.
// Small pods may follow their layers further: they unbalance less, and the bounds
// keep many of them from doing so together.
const (
	leastShare = 0.25
	mostShare  = 4
)

// balanceFor returns what load costs a pod with a CPU request (millicores, with
// kube-scheduler's default for containers without).
func (s *loads) balanceFor(milliCPU int64, args *config.LayerLocalityArgs) balance {
	share := 1.0
	if s.milliCPU > 0 {
		share = min(mostShare, max(leastShare, float64(milliCPU)*s.pods/s.milliCPU))
	}
	n := max(1, s.nodes)
	return balance{
		cpuPenalty: share * float64(args.CPUPenalty), noRequest: float64(args.NoRequestPenalty),
		meanCPU: s.cpu / n, meanBare: s.bare / n,
	}
}

// points are what a node loses because it is busier than the mean; at most 0.
func (b *balance) points(l load) float64 {
	return -max(0, b.cpuPenalty*(float64(l.cpu)-b.meanCPU)+b.noRequest*(float64(l.bare)-b.meanBare))
}

// requestOf is the CPU request of a pod in millicores, with kube-scheduler's default
// for containers without.
func requestOf(pod *v1.Pod) int64 {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{
		NonMissingContainerRequests: v1.ResourceList{v1.ResourceCPU: defaultRequest},
	})
	return requests.Cpu().MilliValue()
}

var defaultRequest = *apiresource.NewMilliQuantity(schedutil.DefaultMilliCPURequest, apiresource.DecimalSI)
