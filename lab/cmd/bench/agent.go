package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/agent"
)

func agentCommand() *cobra.Command {
	return command("agent",
		"layer-agent on nodes with many images: reading, memory, pulls beside it, and how soon the scheduler has it",
		`Fills two stock nodes, one with containerd and one with CRI-O, with images. Then an image of
100 MB is pulled by turns without agents and with them, A B B A. With agents, images are pulled
and removed, and the scheduler's debug endpoint shows when the plugin's index has that; and at
last nothing changes for a while.`,
		func(f *pflag.FlagSet, config *agent.Config) {
			f.IntVar(&config.Images, "images", 1000, "images on each node")
			f.IntVar(&config.Layers, "layers", 10, "layers of an image")
			f.IntVar(&config.Rounds, "rounds", 4, "rounds; in one, nodes are measured once without agents and once with them")
			f.IntVar(&config.Pulls, "pulls", 8, "pulls of the 100 MB image a turn, on each node")
			f.IntVar(&config.Changes, "changes", 15, "pulls whose way into the index is measured, and removals, on each node")
			f.IntVar(&config.Burst, "burst", 8, "pulls in quick succession, and removals, on each node")
			f.DurationVar(&config.Idle, "idle", 2*time.Minute, "time in which nothing changes")
			f.StringSliceVar(&config.Agents, "agents", agent.Runtimes(), "the nodes that have an agent when there are any; pulls are measured on the other one, too")
			f.StringVar(&config.Root, "root", ".", "folder of the repository, whose _build/bin has the programs")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-agent", "folder for the logs of all components")
			f.String("out", "_out/bench/agent.json", "file for all that was measured")
		}, agent.Run)
}
