package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/dataset"
	"github.com/layer-locality/layer-locality/internal/evaluation"
	"github.com/layer-locality/layer-locality/internal/sim"
	"github.com/layer-locality/layer-locality/internal/sim/suite"
	"github.com/layer-locality/layer-locality/internal/sim/workload"
)

// options are those of all commands that play something.
type options struct {
	files    suite.Files
	seeds    int
	parallel int
	out      string
}

func (o *options) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.files.Images, "data", os.Getenv(dataset.Env), "file of images (JSON Lines, plain or .gz); default $"+dataset.Env+", else generated")
	f.StringVar(&o.files.History, "history", os.Getenv("LAYER_HISTORY"), "file of all images ever published, for rolling updates; default $LAYER_HISTORY, else generated")
	f.StringVar(&o.files.Moves, "moves", os.Getenv(dataset.MovesEnv), "file of tag moves that belongs to it; default $"+dataset.MovesEnv)
	f.IntVar(&o.seeds, "seeds", 5, "how often each workload is drawn")
	f.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "runs at the same time")
}

func runCommand() *cobra.Command {
	var o options
	var size suite.Size
	var scenarios, policies []string
	var plan string
	var mbit, gigabytes float64
	model := sim.DefaultModel()
	c := &cobra.Command{
		Use:   "run",
		Short: "Play scenarios, or a plan from a file, with some policies",
		Example: `  layersim run --scenarios zipf-1,rolling-1 --policies default,layerlocality
  layersim run --scenarios zipf-1 --nodes 50 --mbit 50 --policies default,layerlocality:weight=8:cpuPenalty=4
  layersim run --plan plan.json --policies default,layerlocality --out report.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size.Link, size.Disk = mbit*workload.Mbit, int64(gigabytes*1e9)
			var chosen []sim.Policy
			for _, text := range policies {
				p, err := sim.ParsePolicy(text)
				if err != nil {
					return err
				}
				chosen = append(chosen, p)
			}
			e := suite.Experiment{Experiment: evaluation.Experiment{
				Name: "run", Title: "Chosen scenarios", Command: strings.Join(os.Args, " "),
			}}
			var found []suite.Scenario
			var d *suite.Data
			var err error
			if plan != "" {
				d = &suite.Data{Source: plan}
				found = []suite.Scenario{{Name: filepath.Base(plan), Plan: func(*rand.Rand, *suite.Data) (*workload.Plan, error) { return readPlan(plan) }}}
			} else if found, err = suite.Find(scenarios, size); err != nil {
				return err
			} else if d, err = suite.Load(o.files); err != nil {
				return err
			}
			for _, s := range found {
				e.Cases = append(e.Cases, suite.Case{Scenario: s, Policies: chosen, Model: model})
			}
			started := time.Now()
			result, err := suite.Play(cmd.Context(), e, d, o.seeds, o.parallel, progress(cmd.ErrOrStderr(), "run"))
			if err != nil {
				return err
			}
			if err := printTable(cmd.OutOrStdout(), result); err != nil {
				return err
			}
			pods := 0
			for _, run := range result.Runs {
				pods += run.Pods
			}
			elapsed := time.Since(started).Seconds()
			fmt.Fprintf(cmd.OutOrStdout(), "%d runs, %d pods in %.1f s: %.0f pods/s\n", len(result.Runs), pods, elapsed, float64(pods)/elapsed)
			if o.out == "" {
				return nil
			}
			return writeReport(o.out, &evaluation.Report{
				Version: version, Data: d.Source, Command: e.Command, Experiments: []evaluation.Experiment{result},
			})
		},
	}
	o.flags(c)
	f := c.Flags()
	f.StringVar(&o.out, "out", "", "file for all results (JSON)")
	f.StringSliceVar(&scenarios, "scenarios", []string{"zipf-1"}, "scenarios (layersim list)")
	f.StringSliceVar(&policies, "policies", []string{"default", "lrscheduler", "layerlocality", "greedy"}, "policies (layersim list), NAME[:KEY=VALUE...] with KEY weight, wait or an argument of LayerLocality")
	f.StringVar(&plan, "plan", "", "file with a plan (JSON), instead of scenarios")
	f.IntVar(&size.Nodes, "nodes", 0, "number of nodes; default: the scenario's")
	f.IntVar(&size.Pods, "pods", 0, "number of pods; default: the scenario's")
	f.Float64Var(&mbit, "mbit", 0, "bandwidth of a node's link in Mbit/s; default: the scenario's")
	f.Float64Var(&gigabytes, "disk", 0, "GB of compressed bytes a node has for images; default: the scenario's")
	f.DurationVar(&model.ManifestDelay, "manifest-delay", model.ManifestDelay, "from the first use of an image to its ImageManifest")
	f.DurationVar(&model.ImageRefresh, "image-refresh", model.ImageRefresh, "how often a kubelet lists its images")
	f.IntVar(&model.MaxImages, "max-images", model.MaxImages, "images a NodeStatus names (nodeStatusMaxImages)")
	f.Int64Var(&model.MinLayerBytes, "min-layer-bytes", model.MinLayerBytes, "smallest layer that is reported")
	f.IntVar(&model.Pulls, "pulls", model.Pulls, "images a node pulls at once; 1: serializeImagePulls")
	return c
}

func readPlan(name string) (*workload.Plan, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	p := &workload.Plan{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func writeReport(name string, r *evaluation.Report) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}

// progress draws a bar.
func progress(w io.Writer, name string) suite.Progress {
	const width = 30
	return func(done, all int) {
		full := width * done / all
		fmt.Fprintf(w, "\r%-14s [%s%s] %d of %d runs", name, strings.Repeat("#", full), strings.Repeat(".", width-full), done, all)
		if done == all {
			fmt.Fprintln(w)
		}
	}
}

// printTable prints means over the seeds; ratios are those of the sums.
func printTable(w io.Writer, e evaluation.Experiment) error {
	type key struct{ scenario, policy string }
	sums := map[key]evaluation.Metrics{}
	count := map[key]float64{}
	var order []key
	for _, r := range e.Runs {
		k := key{r.Scenario, r.Policy}
		if count[k] == 0 {
			order = append(order, k)
		}
		count[k]++
		s := sums[k]
		s.PulledBytes += r.PulledBytes
		s.StartupMean += r.StartupMean
		s.StartupP99 += r.StartupP99
		s.CPUStd += r.CPUStd
		s.MaxMeanPods += r.MaxMeanPods
		s.RemovedBytes += r.RemovedBytes
		s.Unschedulable += r.Unschedulable
		sums[k] = s
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "scenario\tpolicy\tGB\tof first\tmean s\tof first\tp99 s\tcpu std\tmax/mean pods\tremoved GB\tno node")
	for _, k := range order {
		s, n := sums[k], count[k]
		var first evaluation.Metrics
		for _, other := range order {
			if other.scenario == k.scenario {
				first = sums[other]
				break
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%.2f\t%.3f\t%.2f\t%.3f\t%.2f\t%.3f\t%.2f\t%.1f\t%.1f\n", k.scenario, k.policy,
			float64(s.PulledBytes)/n/1e9, float64(s.PulledBytes)/float64(first.PulledBytes),
			s.StartupMean/n, s.StartupMean/first.StartupMean, s.StartupP99/n, s.CPUStd/n, s.MaxMeanPods/n,
			float64(s.RemovedBytes)/n/1e9, float64(s.Unschedulable)/n)
	}
	return table.Flush()
}
