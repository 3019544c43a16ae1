package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/throughput"
)

func throughputCommand() *cobra.Command {
	return command("throughput",
		"Pods a second with the default profile and with a plugin of ours or layer-extender, by turns (scheduler_perf)",
		`Runs Kubernetes' scheduler_perf by turns with the default profile and with ours: the one of
deploy/scheduler/default-scheduler, or for --profiles=extender that of
deploy/extender/distributions/kubeadm, with layer-extender beside it; for
--profiles=safe,packing,congestion, the default one with that plugin, on nodes that state what
they use. The profiles qosaware and qosaware-slo have QosAware in place of PrioritySort and
DefaultPreemption: with pods without an SLO, and with all of them in 500 workloads with one.
The workloads are SchedulingBasic, the same with nodes that state 50 images and pods of those images, and groups of 64 such
pods that go to one of 20 racks, in the largest cluster. Every
run has an apiserver, an etcd and a scheduler of its own. Rounds are repeated until the
standard error of the ratio is small.

With --workloads=upstream, the workloads are scheduler_perf's own that have a threshold, some fifty, or with
--workloads=misc/SchedulingBasic/5000Nodes_10000Pods one of them. The threshold is upstream's for the default scheduler, on
upstream's machine: what counts is in how many only our profile is below it.

The last line has the smallest ratio, group_ratio, that of groups, and only_ours_below.`,
		func(f *pflag.FlagSet, config *throughput.Config) {
			f.IntSliceVar(&config.Nodes, "nodes", []int{500, 1000, 2000, 5000}, "numbers of nodes to measure with")
			f.StringSliceVar(&config.Workloads, "workloads", []string{"SchedulingBasic", "SchedulingLayers", "SchedulingGroups"}, "workloads to measure; upstream for scheduler_perf's own")
			f.StringSliceVar(&config.Profiles, "profiles", []string{"layerlocality"}, "profiles to measure beside the default one, some of "+strings.Join(throughput.Profiles(), ", "))
			f.IntVar(&config.Rounds, "rounds", 2, "rounds at least; one measures each profile once")
			f.IntVar(&config.MaxRounds, "max-rounds", 8, "rounds at most")
			f.Float64Var(&config.MaxSpread, "max-spread", 0.03, "standard error of the ratio at which no further round is needed")
			f.IntVar(&config.Pods, "pods", 10000, "pods to place; at most 20 a node")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-throughput", "folder for logs and the results of scheduler_perf")
			f.String("out", "_out/bench/throughput.json", "file for all that was measured")
		}, throughput.Run)
}
