package main

import (
	"fmt"
	"runtime"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// memory is the heap that decoded Nodes and the index of their layers use.
type memory struct {
	// Plain is for Nodes as an informer without transform keeps them.
	Plain heap `json:"nodesPlain"`
	// Transformed is for Nodes with the transform.
	Transformed heap `json:"nodesTransformed"`
	// Index is what the index adds to transformed Nodes, with which it shares
	// strings.
	Index heap `json:"index"`
}

// heap is part of the heap after a garbage collection, in bytes.
type heap struct {
	// Live is the size of the objects.
	Live int64 `json:"live"`
	// InUse is the size of the pages that hold them.
	InUse int64 `json:"inUse"`
}

func (h heap) mib() float64 { return float64(h.InUse) / (1 << 20) }

func (m memory) String() string {
	return fmt.Sprintf("memory index_mib=%.1f nodes_plain_mib=%.1f nodes_transformed_mib=%.1f", m.Index.mib(), m.Plain.mib(), m.Transformed.mib())
}

// grown calls build. It returns by how much the heap grew, and build's result.
func grown[T any](build func() (T, error)) (heap, T, error) {
	before := now()
	built, err := build()
	after := now()
	return heap{Live: after.Live - before.Live, InUse: after.InUse - before.InUse}, built, err
}

func now() heap {
	var stats runtime.MemStats
	runtime.GC() // the second one frees what finalizers and pools held during the first
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return heap{Live: int64(stats.HeapAlloc), InUse: int64(stats.HeapInuse)} //nolint:gosec // far below the limit
}

func measureMemory(wire [][]byte) (memory, error) {
	var m memory
	var err error
	if m.Plain, _, err = grown(func() (cache.Store, error) { return keep(wire, false) }); err != nil {
		return m, err
	}
	var store cache.Store
	if m.Transformed, store, err = grown(func() (cache.Store, error) { return keep(wire, true) }); err != nil {
		return m, err
	}
	m.Index, _, err = grown(func() (*index.Index, error) {
		x := index.New()
		for _, object := range store.List() {
			node := object.(*v1.Node)
			x.SetNode(node.Name, nodestatus.Platform(node))
			x.SetImages("NodeStatus", node.Name, nodestatus.Images(node))
		}
		return x, nil
	})
	runtime.KeepAlive(store)
	return m, err
}

// keep decodes Nodes into a store, as an informer does.
func keep(wire [][]byte, transformed bool) (cache.Store, error) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	transform := nodestatus.Transform(store)
	for i := range wire {
		node, err := decode(wire[i])
		if err != nil {
			return nil, err
		}
		var object any = node
		if transformed {
			if object, err = transform(node); err != nil {
				return nil, err
			}
		}
		if err := store.Add(object); err != nil {
			return nil, err
		}
	}
	return store, nil
}
