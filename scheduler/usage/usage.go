// Package usage has what is known of how much nodes use, by measurement: the mean and the
// standard deviation of what is free, and forecasts. The plugin Safe rates nodes by it.
package usage

import (
	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/scheduler/internal/decimal"
)

// Problem is why nothing is known of a resource of a node.
type Problem string

// The problems. None means that something is known.
const (
	None Problem = ""
	// Missing means that nobody states it.
	Missing Problem = "missing"
	// Invalid means that it is no number, negative, or larger than a number can be.
	Invalid Problem = "invalid"
	// NoCapacity means that the node has nothing of the resource.
	NoCapacity Problem = "capacity"
	// Unavailable means that the source does not answer, or its answer is too old.
	Unavailable Problem = "unavailable"
)

// Problems are all there are.
var Problems = []Problem{Missing, Invalid, NoCapacity, Unavailable}

// Statistics is what is known of a resource of a node: millicores or bytes.
type Statistics struct {
	// Free is how much is free on average.
	Free float64
	// Deviation is the standard deviation of that; 0 if it is not known.
	Deviation float64
	// Forecast is how much will be free, if Forecasts is true.
	Forecast  float64
	Forecasts bool
	// Problem is why nothing of this is known, and Of the name of what has the problem.
	Problem Problem
	Of      string
}

// Source has the statistics of nodes. Implementations are safe for concurrent use.
type Source interface {
	// Of returns what is known of a resource, CPU or memory, of a node.
	Of(node *v1.Node, resource v1.ResourceName) Statistics
	// Version returns a number that changes when Of may have another answer for the same Node
	// object. It is asked for once a pod, Of for each node when that has changed.
	Version() uint64
}

// Capacity returns how much pods may have of a resource, CPU or memory, of a node: millicores
// or bytes.
func Capacity(node *v1.Node, resource v1.ResourceName) float64 {
	quantity := node.Status.Allocatable[resource]
	if resource == v1.ResourceCPU {
		return float64(quantity.MilliValue())
	}
	return float64(quantity.Value())
}

// Annotations is the Source that reads the annotations of nodes. Their names are those of
// the kube-safe-scheduler (IBM, 2019), with its spelling.
type Annotations struct{}

// Version implements Source: what a Node states is in the Node.
func (Annotations) Version() uint64 { return 0 }

// names are those of the annotations about a resource.
type names struct{ mean, deviation, forecast string }

var annotations = map[v1.ResourceName]names{
	v1.ResourceCPU:    {"mean-free-cpu", "std-free-cpu", "forcasted-free-cpu"},
	v1.ResourceMemory: {"mean-free-memory", "std-free-memory", "forcasted-free-memory"},
}

// Of implements Source. A number that is wrong makes the others useless: without it they may
// mean the opposite.
func (Annotations) Of(node *v1.Node, resource v1.ResourceName) Statistics {
	var s Statistics
	is := annotations[resource]
	mean, ok := node.Annotations[is.mean]
	if !ok {
		return Statistics{Problem: Missing, Of: is.mean}
	}
	read := func(name, text string, value *float64) {
		if s.Problem != None {
			return
		}
		var err error
		if *value, err = decimal.Parse(text); err != nil {
			s = Statistics{Problem: Invalid, Of: name}
		}
	}
	read(is.mean, mean, &s.Free)
	if text, ok := node.Annotations[is.deviation]; ok {
		read(is.deviation, text, &s.Deviation)
	}
	if text, ok := node.Annotations[is.forecast]; ok {
		read(is.forecast, text, &s.Forecast)
		s.Forecasts = s.Problem == None
	}
	return s
}
