package safe

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/internal/pernode"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// known is what is known of a node, for each resource.
type known struct {
	capacity   [len(resources)]float64
	statistics [len(resources)]usage.Statistics
}

// memory remembers what is known of nodes: reading it takes longer than rating them, and it
// changes once a minute, not with every pod.
type memory struct{ nodes pernode.Memory[known] }

// of returns what is known of a node.
func (m *memory) of(info fwk.NodeInfo) *known {
	node := info.Node()
	return m.nodes.Of(node, func() (k known) {
		for i, resource := range resources {
			capacity := info.GetAllocatable()
			k.capacity[i] = float64(capacity.GetMilliCPU())
			if resource == v1.ResourceMemory {
				k.capacity[i] = float64(capacity.GetMemory())
			}
			k.statistics[i] = usage.Of(node, resource)
		}
		return k
	})
}
