package qos

import (
	"context"
	"encoding/json"

	"github.com/layer-locality/layer-locality/lab/bench"
)

// Costs is what the plugin costs the scheduler, as the program in measure reports it.
type Costs struct {
	// SortMicros is the processor time, in microseconds, in which kube-scheduler's queue takes
	// a pod and hands it out again with PrioritySort, and AddedMicros what QosAware adds to
	// it, for pods without SLO and with: medians over rounds.
	SortMicros     float64 `json:"sortMicros"`
	AddedMicros    float64 `json:"addedMicros"`
	AddedSLOMicros float64 `json:"addedSLOMicros"`
	// HeapMiB is by how much the heap grows when the plugin follows HeapPods pods of
	// HeapWorkloads workloads, and all of them are in the queue.
	HeapMiB       float64 `json:"heapMiB"`
	HeapPods      int     `json:"heapPods"`
	HeapWorkloads int     `json:"heapWorkloads"`
}

// measureCost builds and runs the program.
func measureCost(ctx context.Context, progress *bench.Progress) (*Costs, error) {
	report, err := bench.RunProgram(ctx, progress, "./lab/bench/qos/measure")
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(report)
	if err != nil {
		return nil, err
	}
	costs := &Costs{}
	return costs, json.Unmarshal(data, costs)
}
