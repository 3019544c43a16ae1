package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/qos"
)

func qosCommand() *cobra.Command {
	var resume bool
	var c *cobra.Command
	c = command("qos",
		"What workloads get of what they were promised, with priorities and with QosAware, and what that costs",
		`Plays 100 workloads of SLO 1 and 160, then 200, of SLO .5 on nodes with room for 200 pods,
with PrioritySort and DefaultPreemption, and with QosAware, once more with pods that take
time to be ready, and once more with ten times as many preemptions a minute. etcd, kube-apiserver, kube-controller-manager and kube-scheduler are
real; nodes and kubelets are kwok's. Then measures what the plugin adds to the queue, and
its memory.

The times of the publication are divided by --scale, and rates multiplied. The goals are those
of the default settings.`,
		func(f *pflag.FlagSet, config *qos.Config) {
			f.Float64Var(&config.Scale, "scale", 6, "by what the published times are divided")
			f.Float64Var(&config.Minutes, "minutes", 5, "minutes of an arm")
			f.IntVar(&config.Nodes, "nodes", 20, "nodes, each with room for 10 pods")
			f.StringSliceVar(&config.Measure, "measure", qos.Names(), "what to measure: arms, and "+qos.Cost)
			f.BoolVar(&resume, "resume", false, "keep what the file of --out has, and measure the rest")
			f.StringVar(&config.Figure, "figure", "_out/bench/qos.svg", "file for a figure; empty for none")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-qos", "folder for the logs of all components")
			f.String("out", "_out/bench/qos.json", "file for all that was measured")
		},
		func(ctx context.Context, config qos.Config) (_ *qos.Result, err error) {
			if resume {
				if config.Earlier, err = earlier(c.Flag("out").Value.String()); err != nil {
					return nil, err
				}
			}
			return qos.Run(ctx, config)
		})
	return c
}

// earlier reads what was measured before; nil if there is no such file.
func earlier(path string) (*qos.Result, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	result := &qos.Result{}
	if err := decoder.Decode(result); err != nil {
		return nil, fmt.Errorf("--resume: %s is not what this command wrote: %w", path, err)
	}
	return result, nil
}
