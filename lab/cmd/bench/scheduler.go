package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/scheduler"
)

func schedulerCommand() *cobra.Command {
	return command("scheduler",
		"LayerLocality beside in-tree ImageLocality and the prototype: time a pod, memory of the index, updates of Nodes", "",
		func(f *pflag.FlagSet, config *scheduler.Config) {
			f.IntVar(&config.Nodes, "nodes", 5000, "nodes of the cluster; all of them and a tenth are scored")
			f.IntVar(&config.Rounds, "rounds", 11, "rounds of the scores; in one, each plugin is measured once")
			f.BoolVar(&config.NodeLayers, "node-layers", false, "NodeLayers state what nodes hold, and NodeStatus no layers; only scores are measured")
			f.StringVar(&config.ProfileDir, "profile-dir", "", "folder for CPU profiles (pprof), made after the measurement")
			f.String("out", "_out/bench/scheduler.json", "file for all that was measured")
		}, scheduler.Run)
}
