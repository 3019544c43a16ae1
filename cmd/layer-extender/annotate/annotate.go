// Package annotate has nodes state what is used of them, by measurement, in their annotations: where the
// plugin Safe reads it, in a scheduler and behind an extender.
package annotate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/usage"
)

const (
	// Interval is how often nodes are measured.
	Interval = time.Minute
	// Valid is how long annotations count.
	Valid = 10 * time.Minute
	// refresh is how long before that they are written again, although nothing has changed.
	refresh = Valid / 2
	// notable is the share of a node's capacity by which a statistic changes before it is written.
	notable = .01
)

// Use is how much of a resource of a node is used: millicores or bytes.
type Use struct {
	// Mean is how much is used on average, Deviation the standard deviation of that.
	Mean, Deviation float64
	// Forecast is how much will be used; nil if nobody forecasts.
	Forecast *float64
}

// Uses have what is used of nodes, by name and resource. A node or a resource of which nothing is known
// is left out.
type Uses map[string]map[v1.ResourceName]Use

// Source measures nodes.
type Source interface {
	// Read returns what is used of all nodes now. With an error, nothing of it counts.
	Read(ctx context.Context) (Uses, error)
}

// Annotator annotates nodes.
type Annotator struct {
	client kubernetes.Interface
	source Source
	clock  clock.WithTicker
	// failed means that the last Update failed.
	failed bool
}

// New returns an Annotator. clock is for when to measure and how long that counts.
func New(client kubernetes.Interface, source Source, clock clock.WithTicker) *Annotator {
	return &Annotator{client: client, source: source, clock: clock}
}

// Run measures and annotates nodes from time to time, until the context is done. What fails is logged
// when it begins to fail.
func (a *Annotator) Run(ctx context.Context) {
	tick := a.clock.NewTicker(Interval)
	defer tick.Stop()
	logger := klog.FromContext(ctx)
	for {
		written, err := a.Update(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !a.failed:
			logger.Error(err, "Cannot annotate nodes with their usage: earlier annotations count until their time is over", "annotation", usage.Until)
		case err == nil && a.failed:
			logger.Info("Nodes are annotated again")
		}
		logger.V(4).Info("Annotated nodes", "nodes", written)
		a.failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
	}
}

// Update measures nodes once, and writes the annotations that have to change. It returns how many nodes
// were written. Nodes that are not measured keep theirs, which end to count. The error has all that failed;
// the other nodes are written all the same.
func (a *Annotator) Update(ctx context.Context) (written int, err error) {
	uses, err := a.source.Read(ctx)
	if err != nil {
		return 0, err
	}
	nodes, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"}) // from the apiserver's cache
	if err != nil {
		return 0, err
	}
	now := a.clock.Now()
	known := 0
	var errs []error
	for i := range nodes.Items {
		node := &nodes.Items[i]
		use, ok := uses[node.Name]
		if !ok {
			continue
		}
		known++
		statistics := statisticsOf(node, use)
		if !outdated(node, statistics, now) {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": usage.State(statistics, now.Add(Valid))}})
		if err == nil {
			_, err = a.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		switch {
		case err == nil:
			written++
		case !apierrors.IsNotFound(err): // it is gone
			errs = append(errs, fmt.Errorf("node %s: %w", node.Name, err))
		}
	}
	if known == 0 && len(nodes.Items) > 0 {
		errs = append(errs, fmt.Errorf("nothing is measured of %d nodes", len(nodes.Items)))
	}
	return written, errors.Join(errs...)
}

// statisticsOf returns what a node states: what is free is what it has less what is used.
func statisticsOf(node *v1.Node, uses map[v1.ResourceName]Use) map[v1.ResourceName]usage.Statistics {
	all := map[v1.ResourceName]usage.Statistics{}
	for resource, use := range uses {
		capacity := usage.Capacity(node, resource)
		s := usage.Statistics{Free: max(capacity-use.Mean, 0), Deviation: use.Deviation}
		if use.Forecast != nil {
			s.Forecast, s.Forecasts = max(capacity-*use.Forecast, 0), true
		}
		all[resource] = s
	}
	return all
}

// outdated reports whether a node has to be written: what it states differs notably, or ends soon.
func outdated(node *v1.Node, statistics map[v1.ResourceName]usage.Statistics, now time.Time) bool {
	for _, resource := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		stated := usage.Of(node, resource)
		s, ok := statistics[resource]
		if !ok {
			if stated.Problem != usage.Missing {
				return true
			}
			continue
		}
		if stated.Problem != usage.None || stated.Until.Before(now.Add(refresh)) || stated.Forecasts != s.Forecasts {
			return true
		}
		most := notable * usage.Capacity(node, resource)
		for _, difference := range []float64{stated.Free - s.Free, stated.Deviation - s.Deviation, stated.Forecast - s.Forecast} {
			if math.Abs(difference) > most {
				return true
			}
		}
	}
	return false
}
