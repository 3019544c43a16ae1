// Package extender measures what kube-scheduler waits for layer-extender, and how often its
// scores lead to the plugin's choice. The program in the folder measure, which is built
// against the patched Kubernetes, does that. This package runs it and reads its results.
package extender

import (
	"context"
	"strconv"

	"github.com/layer-locality/layer-locality/lab/bench"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Nodes of the cluster. A tenth of them is measured, too.
	Nodes int
	// Pods to ask for.
	Pods int
}

// Result is everything that was measured, as the program reports it.
type Result = bench.Report

// Run builds and runs the program.
func Run(ctx context.Context, config Config) (*Result, error) {
	return bench.RunProgram(ctx, &config.Progress, "./lab/bench/extender/measure",
		"-nodes", strconv.Itoa(config.Nodes), "-pods", strconv.Itoa(config.Pods))
}
