package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/internal/bench/throughput"
)

func throughputCommand() *cobra.Command {
	return command("throughput",
		"Pods a second with the default profile and with LayerLocality, by turns (scheduler_perf)",
		`Runs Kubernetes' scheduler_perf by turns with the default profile and with one that
has LayerLocality (weight 4) in the place of ImageLocality: the workload SchedulingBasic,
and the same with nodes that state 50 images and pods of those images. Every run has an
apiserver, an etcd and a scheduler of its own.

The last line is that of the workload with the smaller ratio, at the largest number of
nodes.`,
		func(f *pflag.FlagSet, config *throughput.Config) {
			f.IntSliceVar(&config.Nodes, "nodes", []int{5000}, "numbers of nodes to measure with")
			f.StringSliceVar(&config.Workloads, "workloads", []string{"SchedulingBasic", "SchedulingLayers"}, "workloads to measure")
			f.IntVar(&config.Rounds, "rounds", 2, "rounds; one measures each profile once")
			f.IntVar(&config.Pods, "pods", 10000, "pods to place; at most 20 a node")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-throughput", "folder for logs and the results of scheduler_perf")
			f.String("out", "_out/bench/throughput.json", "file for all that was measured")
		}, throughput.Run)
}
