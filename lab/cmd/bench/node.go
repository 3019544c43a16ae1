package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/node"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

func nodeCommand() *cobra.Command {
	return command("node",
		"Bytes that layers add to a Node, writes of its status and of a label, stock and patched",
		`Draws the images of many nodes from the file of real manifests that `+dataset.Env+` names,
or from generated ones, and lets the kubelet's code make their Nodes: how many bytes do
layers add, and which share of all layer bytes do they cover?

Then writes a label of Nodes with and without layers to a stock and a patched
kube-apiserver, in turns: how long does it take? And lists thousands of Nodes with layers
and without.

Then runs a stock and a patched kubelet side by side, with the same images and nothing
to do, and counts in the apiserver's audit log how often each writes its Node's status.`,
		func(f *pflag.FlagSet, config *node.Config) {
			config.LogDir = "_out/bench/log-node"
			f.IntVar(&config.Seeds, "seeds", 100, "how many nodes to draw images for")
			f.IntVar(&config.Images, "images", 50, "images of a node (the kubelet reports the 50 largest)")
			f.IntVar(&config.Labels, "labels", 1000, "how often to write a label; 0: do not")
			f.IntVar(&config.ListNodes, "list-nodes", 5000, "how many Nodes to list with layers and without; 0: do not")
			f.DurationVar(&config.Window, "window", 16*time.Minute,
				"how long to count status writes; idle kubelets write every 306 s on average, so a window should not be near a multiple of that; 0: do not count")
			f.String("out", "_out/bench/node.json", "file for all that was measured")
		}, node.Run)
}
