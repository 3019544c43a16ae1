// Package usage has what is known of how much nodes use, by measurement: the mean and the
// standard deviation of what is free, and forecasts, as annotations of nodes state them. The plugin Safe
// rates nodes by it.
package usage

import (
	"math"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/internal/decimal"
)

// Problem is why nothing is known of a resource of a node.
type Problem string

// The problems. None means that something is known.
const (
	None Problem = ""
	// Missing means that nobody states it.
	Missing Problem = "missing"
	// Invalid means that it is no number, or larger than a number can be.
	Invalid Problem = "invalid"
	// NoCapacity means that the node has nothing of the resource.
	NoCapacity Problem = "capacity"
	// Unavailable means that nobody has stated it anew for too long.
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
	// Until is when this ends to count; zero: never.
	Until time.Time
	// Problem is why nothing of this is known, and Of the name of what has the problem.
	Problem Problem
	Of      string
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

// Until is the annotation with the time, in RFC 3339, until which the statistics of a node count. Without,
// they always do.
const Until = "layerlocality.io/statistics-until"

// names are those of the annotations about a resource.
type names struct{ mean, deviation, forecast string }

// annotations have the names that the kube-safe-scheduler (IBM, 2019) has, with its spelling.
var annotations = map[v1.ResourceName]names{
	v1.ResourceCPU:    {"mean-free-cpu", "std-free-cpu", "forcasted-free-cpu"},
	v1.ResourceMemory: {"mean-free-memory", "std-free-memory", "forcasted-free-memory"},
}

// Of returns what the annotations of a node state of a resource, CPU or memory. It reads what the
// annotators of the kube-safe-scheduler write as its agent reads it: a mean that is no number is none,
// so is a forecast, such as the "N/A" of an annotator that does not forecast, and a deviation that is no
// number is 0. Less than nothing is nothing: a node may use more than pods may have of it.
func Of(node *v1.Node, resource v1.ResourceName) Statistics {
	is := annotations[resource]
	mean, ok := node.Annotations[is.mean]
	if !ok {
		return Statistics{Problem: Missing, Of: is.mean}
	}
	free, err := amount(mean)
	if err != nil {
		return Statistics{Problem: Invalid, Of: is.mean}
	}
	s := Statistics{Free: free}
	s.Deviation, _ = amount(node.Annotations[is.deviation])
	s.Forecast, err = amount(node.Annotations[is.forecast])
	s.Forecasts = err == nil
	if text, ok := node.Annotations[Until]; ok {
		if s.Until, err = time.Parse(time.RFC3339, text); err != nil {
			return Statistics{Problem: Invalid, Of: Until}
		}
	}
	return s
}

// amount reads an annotation: 0 for a negative number, and with an error.
func amount(text string) (float64, error) {
	value, err := decimal.Parse(text)
	return max(value, 0), err
}

// State returns the annotations by which a node states statistics until a time: what Of reads. A nil text
// means that the annotation is to be removed.
func State(statistics map[v1.ResourceName]Statistics, until time.Time) map[string]*string {
	text := func(value float64) *string { return ptr.To(strconv.FormatFloat(math.Round(value), 'f', -1, 64)) }
	all := map[string]*string{Until: ptr.To(until.UTC().Format(time.RFC3339))}
	for resource, is := range annotations {
		all[is.mean], all[is.deviation], all[is.forecast] = nil, nil, nil
		s, ok := statistics[resource]
		if !ok {
			continue
		}
		if all[is.mean], all[is.deviation] = text(s.Free), text(s.Deviation); s.Forecasts {
			all[is.forecast] = text(s.Forecast)
		}
	}
	return all
}
