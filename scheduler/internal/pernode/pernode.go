// Package pernode remembers what a plugin computed from a Node, until the Node changes: that
// takes longer than looking it up, and there are many pods between two changes.
//
// A Node must never be changed in place: its informer replaces the object when it changes, and
// another object is what shows the change.
package pernode

import (
	"sync"
	"sync/atomic"
	"weak"

	v1 "k8s.io/api/core/v1"
)

// Most is of how many nodes something is remembered. Then it begins anew: many of them must be
// gone, since a cluster has 5,000 at most (kubernetes.io/docs/setup/best-practices/cluster-large).
const Most = 20_000

// Memory has values by the name of a node. The zero value is empty. It may be used by several
// goroutines at once.
type Memory[T any] struct {
	nodes sync.Map // *entry[T] by the name of the node
	count atomic.Int64
}

// entry is what was computed. It stays as it is.
type entry[T any] struct {
	// node is the object that it was computed from. It does not keep a node in memory that is
	// gone.
	node  weak.Pointer[v1.Node]
	value T
}

// Of returns what is remembered of a node, or else what compute returns, and remembers that.
func (m *Memory[T]) Of(node *v1.Node, compute func() T) *T {
	if found, ok := m.nodes.Load(node.Name); ok {
		if e := found.(*entry[T]); e.node.Value() == node {
			return &e.value
		}
	}
	e := &entry[T]{node: weak.Make(node), value: compute()}
	if m.count.Load() >= Most {
		m.nodes.Clear()
		m.count.Store(0)
	}
	if _, before := m.nodes.Swap(node.Name, e); !before {
		m.count.Add(1)
	}
	return &e.value
}

// Len returns of how many nodes something is remembered.
func (m *Memory[T]) Len() int { return int(m.count.Load()) }
