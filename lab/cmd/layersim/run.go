package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim"
	"github.com/layer-locality/layer-locality/lab/eval/sim/suite"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

func runCommand() *cobra.Command {
	var o options
	var size suite.Size
	var scenarios, policies []string
	var plan string
	var mbit, peerMbit, gigabytes float64
	model := sim.DefaultModel()
	c := &cobra.Command{
		Use:   "run",
		Short: "Play scenarios, or a plan from a file, with some policies",
		Example: `  layersim run --scenarios zipf-1,rolling-1 --policies default,layerlocality
  layersim run --scenarios zipf-1 --nodes 50 --mbit 50 --policies default,layerlocality:weight=8:loadPenalty=4
  layersim run --plan plan.json --policies default,layerlocality --out report.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size.Link, size.Disk = mbit*workload.Mbit, int64(gigabytes*1e9)
			model.PeerLink = peerMbit * workload.Mbit
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
				d = &suite.Data{Source: filepath.Base(plan)}
				found = []suite.Scenario{{Name: filepath.Base(plan), Plan: func(*rand.Rand, *suite.Data) (*workload.Plan, error) { return readPlan(plan) }}}
			} else if found, err = suite.Find(scenarios, size); err != nil {
				return err
			} else if d, err = suite.Load(o.files); err != nil {
				return err
			}
			for _, s := range found {
				e.Cases = append(e.Cases, suite.Case{Scenario: s, Policies: chosen, Model: model})
			}
			results, speed, err := o.play(cmd, d, e)
			if err != nil {
				return err
			}
			if err := printTable(cmd.OutOrStdout(), results[0]); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), speed)
			if o.out == "" {
				return nil
			}
			return writeReport(o.out, &evaluation.Report{
				Version: version, Data: d.Source, Command: e.Command, Experiments: results,
			})
		},
	}
	o.flags(c)
	f := c.Flags()
	f.StringVar(&o.out, "out", "", "file for all results (JSON)")
	f.StringSliceVar(&scenarios, "scenarios", []string{"zipf-1"}, "scenarios (layersim list)")
	f.StringSliceVar(&policies, "policies", []string{"default", "lrscheduler", "layerlocality", "greedy"}, "policies (layersim list), NAME[:KEY=VALUE...] with KEY weight, wait or an argument of LayerLocality; images (registry, peers, ahead, lazy, template, tag, node) or history (the policy before) of any")
	f.StringVar(&plan, "plan", "", "file with a plan (JSON), instead of scenarios")
	f.IntVar(&size.Nodes, "nodes", 0, "number of nodes; default: the scenario's")
	f.IntVar(&size.Pods, "pods", 0, "number of pods; default: the scenario's")
	f.Float64Var(&mbit, "mbit", 0, "bandwidth of a node's link in Mbit/s; default: the scenario's")
	f.Float64Var(&gigabytes, "disk", 0, "GB that unpacked images may take on a node; default: the scenario's")
	f.DurationVar(&model.ManifestDelay, "manifest-delay", model.ManifestDelay, "from the first use of an image to its ImageManifest")
	f.DurationVar(&model.ImageRefresh, "image-refresh", model.ImageRefresh, "how often a kubelet lists its images")
	f.IntVar(&model.MaxImages, "max-images", model.MaxImages, "images a NodeStatus names (nodeStatusMaxImages)")
	f.Int64Var(&model.MinLayerBytes, "min-layer-bytes", model.MinLayerBytes, "smallest layer that is reported")
	f.IntVar(&model.Pulls, "pulls", model.Pulls, "images a node pulls at once; 1: serializeImagePulls")
	f.Float64Var(&peerMbit, "peer-mbit", model.PeerLink/workload.Mbit, "bandwidth between nodes in Mbit/s, with images=peers")
	f.Var(&model.Joins, "joins", "what pulls that run at the same time share")
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
