package startup

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// simulate lets lab/cmd/layersim play a plan.
func (c *Config) simulate(ctx context.Context, plan *workload.Plan) (_ *evaluation.Report, err error) {
	workspace, err := bench.SchedulerWorkspace(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-startup-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	planFile, reportFile := filepath.Join(dir, "plan.json"), filepath.Join(dir, "report.json")
	if err := bench.WriteJSON(planFile, plan); err != nil {
		return nil, err
	}
	var policies []string
	for _, side := range Sides {
		policies = append(policies, string(side))
	}
	args := []string{
		"run", "-tags", "imagelayers", "./lab/cmd/layersim", "run",
		"--plan", planFile, "--policies", strings.Join(policies, ","), "--seeds", strconv.Itoa(c.Simulations), "--out", reportFile,
	}
	if c.SerializeImagePulls {
		args = append(args, "--pulls=1")
	}
	if c.CRIO == cluster.Stock {
		args = append(args, "--joins=nothing")
	}
	run, err := bench.GoCommand(ctx, workspace, args...)
	if err != nil {
		return nil, err
	}
	run.Stdout, run.Stderr = os.Stderr, os.Stderr // keep layersim's lines out of this command's output
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
