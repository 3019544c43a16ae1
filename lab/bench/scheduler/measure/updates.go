package main

import (
	"fmt"
	"runtime"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// updates is the cost of an update of a Node, in microseconds of processor
// time.
type updates struct {
	// Unchanged is an update with the same images, such as a heartbeat.
	Unchanged update `json:"unchanged"`
	// Changed is an update in which one image is replaced by another.
	Changed update `json:"changed"`
}

type update struct {
	// Transform is called with every decoded Node.
	Transform float64 `json:"transformMicros"`
	// Handler is the plugin's event handler, including the index.
	Handler float64 `json:"handlerMicros"`
	// Decode is the cost of decoding the Node, which is the same with and without
	// the plugin.
	Decode float64 `json:"decodeMicros"`
}

func (u updates) String() string {
	return fmt.Sprintf("node_update unchanged_us=%.2f unchanged_transform_us=%.1f changed_us=%.1f changed_transform_us=%.1f decode_us=%.1f",
		u.Unchanged.Handler, u.Unchanged.Transform, u.Changed.Handler, u.Changed.Transform, u.Unchanged.Decode)
}

// measureUpdates sends updates of Nodes through the transform and the handler
// that the plugin registered; each figure is a median of rounds.
func measureUpdates(c *cluster, wire [][]byte, rounds int) (updates, error) {
	var u updates
	if len(c.informer.handlers) != 1 || c.informer.transform == nil {
		return u, fmt.Errorf("the plugin registered %d handlers and transform=%t at the informer of nodes, want one of each",
			len(c.informer.handlers), c.informer.transform != nil)
	}
	nodes := min(1000, len(wire))
	changed, err := replaceImages(wire[:nodes], wire[len(wire)-1])
	if err != nil {
		return u, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var plain, other []update
	for range rounds {
		m, err := c.update(wire[:nodes], false)
		if err != nil {
			return u, err
		}
		plain = append(plain, m)
		if m, err = c.update(changed, true); err != nil {
			return u, err
		}
		other = append(other, m)
	}
	u.Unchanged, u.Changed = medianUpdate(plain), medianUpdate(other)
	return u, nil
}

// update decodes Nodes and passes them to transform and handler. At the end the
// index has the images that the informer has.
func (c *cluster) update(wire [][]byte, changed bool) (update, error) {
	n := float64(len(wire))
	nodes := make([]*v1.Node, len(wire))
	start := timing.Thread()
	for i := range wire {
		var err error
		if nodes[i], err = decode(wire[i]); err != nil {
			return update{}, err
		}
	}
	m := update{Decode: timing.Micros(timing.Thread()-start) / n}

	start = timing.Thread()
	for _, node := range nodes {
		if _, err := c.informer.transform(node); err != nil {
			return m, err
		}
	}
	m.Transform = timing.Micros(timing.Thread()-start) / n

	old := make([]*v1.Node, len(nodes))
	for i, node := range nodes {
		known, _, err := c.informer.GetStore().GetByKey(node.Name)
		if err != nil {
			return m, err
		}
		old[i] = known.(*v1.Node)
		if nodestatus.SameImages(old[i], node) == changed {
			return m, fmt.Errorf("%s: the images of the update differ from the known ones: %t, want %t", node.Name, !changed, changed)
		}
	}
	handler := c.informer.handlers[0]
	start = timing.Thread()
	for i := range nodes {
		handler.OnUpdate(old[i], nodes[i])
	}
	m.Handler = timing.Micros(timing.Thread()-start) / n
	if changed {
		for i := range nodes {
			handler.OnUpdate(nodes[i], old[i])
		}
	}
	return m, nil
}

// replaceImages replaces the smallest image of each Node by one that the Node
// does not have. The new image comes from the Node before it, or else from
// last.
func replaceImages(wire [][]byte, last []byte) ([][]byte, error) {
	changed := make([][]byte, len(wire))
	for i := range wire {
		node, err := decode(wire[i])
		if err != nil {
			return nil, err
		}
		donors := [][]byte{last}
		if i > 0 {
			donors = append([][]byte{wire[i-1]}, donors...)
		}
		if err := replaceImage(node, donors); err != nil {
			return nil, err
		}
		if changed[i], err = node.Marshal(); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

func replaceImage(node *v1.Node, donors [][]byte) error {
	has := map[string]bool{}
	for _, image := range node.Status.Images {
		has[image.Names[0]] = true
	}
	for _, wire := range donors {
		donor, err := decode(wire)
		if err != nil {
			return err
		}
		for _, image := range donor.Status.Images {
			if !has[image.Names[0]] {
				node.Status.Images[len(node.Status.Images)-1] = image
				return nil
			}
		}
	}
	return fmt.Errorf("%s has all images that other nodes have: nothing to replace one with; more images or fewer a node are needed", node.Name)
}

func medianUpdate(measured []update) update {
	of := func(field func(update) float64) float64 {
		values := make([]float64, len(measured))
		for i, m := range measured {
			values[i] = field(m)
		}
		return timing.Median(values)
	}
	return update{
		Transform: of(func(u update) float64 { return u.Transform }),
		Handler:   of(func(u update) float64 { return u.Handler }),
		Decode:    of(func(u update) float64 { return u.Decode }),
	}
}
