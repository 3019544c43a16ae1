package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/extender"
)

func extenderCommand() *cobra.Command {
	return command("extender",
		"what kube-scheduler waits for layer-extender, and how often its scores lead to the plugin's choice", "",
		func(f *pflag.FlagSet, config *extender.Config) {
			f.IntVar(&config.Nodes, "nodes", 5000, "nodes of the cluster; all of them and a tenth are asked for")
			f.IntVar(&config.Pods, "pods", 1000, "pods to ask for")
			f.String("out", "_out/bench/extender.json", "file for all that was measured")
		}, extender.Run)
}
