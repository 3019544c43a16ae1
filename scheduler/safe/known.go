package safe

import (
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// known is what is known of a node, for each resource. It stays as it is.
type known struct {
	// node and version tell whether it is still true.
	node       *v1.Node
	version    uint64
	capacity   [len(resources)]float64
	statistics [len(resources)]usage.Statistics
}

// memory remembers what is known of nodes: reading it takes longer than rating them, and it
// changes once a minute, not with every pod.
type memory struct {
	source usage.Source
	nodes  sync.Map // *known by the name of the node
	count  atomic.Int64
}

// spare is how many nodes are remembered beyond those of a pod, which may be a part of all:
// twice as many as a cluster has at most (kubernetes.io/docs/setup/best-practices/cluster-large).
const spare = 10_000

// of returns what is known of a node.
func (m *memory) of(info fwk.NodeInfo) *known {
	node, version := info.Node(), m.source.Version()
	if found, ok := m.nodes.Load(node.Name); ok {
		// An object of an informer is replaced when it changes.
		if k := found.(*known); k.node == node && k.version == version {
			return k
		}
	}
	k := &known{node: node, version: version}
	for i, resource := range resources {
		capacity := info.GetAllocatable()
		k.capacity[i] = float64(capacity.GetMilliCPU())
		if resource == v1.ResourceMemory {
			k.capacity[i] = float64(capacity.GetMemory())
		}
		k.statistics[i] = m.source.Of(node, resource)
	}
	if _, before := m.nodes.Swap(node.Name, k); !before {
		m.count.Add(1)
	}
	return k
}

// forget begins anew if there are so few nodes that many of those it remembers must be gone.
func (m *memory) forget(nodes int) {
	if m.count.Load() > int64(2*nodes+spare) {
		m.nodes.Clear()
		m.count.Store(0)
	}
}
