package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/cluster"
	"github.com/layer-locality/layer-locality/internal/benchstartup"
	"github.com/layer-locality/layer-locality/internal/dataset"
	"github.com/layer-locality/layer-locality/internal/evaluation"
	"github.com/layer-locality/layer-locality/internal/sim/workload"
)

// startupCommand measures the start of pods on a real cluster, and has the
// simulator predict it.
func startupCommand() *cobra.Command {
	var config benchstartup.Config
	var bandwidth, out string
	var megabytes int64
	var simulations int
	c := &cobra.Command{
		Use:   "startup",
		Short: "Start-up of pods, bytes pulled and balance on a real cluster, default profile and LayerLocality",
		Long: `Plays one workload on nodes with slow links, in turns with kube-scheduler's default
profile and with the recommended one and layer-resolver, each time on a new cluster.
The images have the layers, in number, sharing and proportion, of real ones, drawn from
the file that ` + dataset.Env + ` names, or of generated ones. Then the simulator plays the
same workload.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			begin := time.Now()
			config.Logf = func(format string, args ...any) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%6.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
			}
			config.Bytes = megabytes * 1_000_000
			if config.Bandwidth, err = cluster.ParseBandwidth(bandwidth); err != nil {
				return err
			}
			result, err := config.Run(cmd.Context())
			if err != nil {
				return err
			}
			if err := writeJSON(out, result); err != nil {
				return err
			}
			if simulations > 0 {
				config.Logf("simulating the same plan with %d seeds", simulations)
				if result.Simulated, err = simulate(cmd.Context(), result.Plan, benchstartup.Sides, simulations); err != nil {
					return fmt.Errorf("simulate: %w (what was measured is in %s)", err, out)
				}
				if err := writeJSON(out, result); err != nil {
					return err
				}
			}
			config.Logf("raw numbers: %s", out)
			return result.Write(cmd.OutOrStdout())
		},
	}
	f := c.Flags()
	f.IntVar(&config.Rounds, "rounds", 2, "how often each side plays the workload")
	f.Uint64Var(&config.Seed, "seed", 1, "seed of the workload and of the choice of images")
	f.IntVar(&config.Nodes, "nodes", 4, "nodes of the cluster")
	f.StringVar(&bandwidth, "bandwidth", "50mbit", "of each node's link")
	f.IntVar(&config.Images, "images", 24, "images that pods have")
	f.Int64Var(&megabytes, "megabytes", 400, "compressed size of all their layers, each counted once, to which the images are scaled")
	f.IntVar(&config.Pods, "pods", 60, "pods, which come one by one and stay")
	f.DurationVar(&config.Interval, "interval", 1500*time.Millisecond, "mean time between two pods")
	f.Float64Var(&config.Exponent, "zipf", 1, "exponent of Zipf's law, which the popularity of images follows")
	f.IntVar(&simulations, "simulations", 50, "seeds of the simulator; 0: none")
	f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-startup", "folder for the logs of the clusters")
	f.StringVar(&out, "out", "_out/bench/startup.json", "file for all that was measured")
	return c
}

// simulate has cmd/layersim play a plan.
func simulate(ctx context.Context, plan *workload.Plan, sides []benchstartup.Side, seeds int) (_ *evaluation.Report, err error) {
	workspace, err := schedulerWorkspace(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-startup-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	planFile, reportFile := filepath.Join(dir, "plan.json"), filepath.Join(dir, "report.json")
	if err := writeJSON(planFile, plan); err != nil {
		return nil, err
	}
	var policies []string
	for _, side := range sides {
		policies = append(policies, string(side))
	}
	run, err := goCommand(ctx, workspace, "run", "-tags", "imagelayers", "./cmd/layersim", "run",
		"--plan", planFile, "--policies", strings.Join(policies, ","), "--seeds", strconv.Itoa(seeds), "--out", reportFile)
	if err != nil {
		return nil, err
	}
	run.Stdout, run.Stderr = os.Stderr, os.Stderr // the last line of this command's output is its own
	if err := run.Run(); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(reportFile)
	if err != nil {
		return nil, err
	}
	report := &evaluation.Report{}
	if err := json.Unmarshal(data, report); err != nil {
		return nil, fmt.Errorf("%s: %w", reportFile, err)
	}
	return report, report.Check()
}
