// Package scheduler compares LayerLocality with other plugins: time per pod,
// memory of the index, updates of Nodes. The program in the folder measure,
// which is built against the patched Kubernetes, does the measurement. This
// package runs it and reads its results.
package scheduler

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/layer-locality/layer-locality/lab/bench"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Nodes of the cluster. Scoring is measured with all of them and with a tenth.
	Nodes int
	// Rounds of scoring. In one round, each plugin is measured once.
	Rounds int
	// NodeLayers has them state what nodes hold, and not NodeStatus. Then only scores are measured.
	NodeLayers bool
	// ProfileDir, if set, gets CPU profiles (pprof), made after the measurement.
	ProfileDir string
}

// Result is everything that was measured, as the program reports it.
type Result = bench.Report

// Run builds and runs the program. It fails as the program does: if the patched
// Kubernetes has no layers in NodeStatus, or a plugin scores nodes with the image no
// higher than the others.
func Run(ctx context.Context, config Config) (*Result, error) {
	args := []string{"-nodes", strconv.Itoa(config.Nodes), "-rounds", strconv.Itoa(config.Rounds)}
	if config.NodeLayers {
		args = append(args, "-node-layers")
	}
	if config.ProfileDir != "" {
		profiles, err := filepath.Abs(config.ProfileDir)
		if err != nil {
			return nil, err
		}
		args = append(args, "-profile-dir", profiles)
	}
	return bench.RunProgram(ctx, &config.Progress, "./lab/bench/scheduler/measure", args...)
}
