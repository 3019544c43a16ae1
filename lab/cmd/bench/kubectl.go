package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/kubectl"
)

func kubectlCommand() *cobra.Command {
	return command("kubectl",
		"kubectl layers on a large cluster: seconds and memory of nodes, node, plan and why",
		`Fills an API server of its own with Nodes, NodeLayers, ImageManifests and pods, and runs the
real program on it; for why, a kube-scheduler places a pod. The server is on the same machine, and
takes most of the time.`,
		func(f *pflag.FlagSet, config *kubectl.Config) {
			f.IntVar(&config.Nodes, "nodes", 5000, "nodes, each with a NodeLayers")
			f.IntVar(&config.HeldImages, "held-images", 100, "images in a NodeLayers")
			f.IntVar(&config.Images, "images", 2000, "ImageManifests")
			f.IntVar(&config.Pods, "pods", 50_000, "pods on these nodes")
			f.IntVar(&config.Rounds, "rounds", 3, "times that each command runs; the median counts")
			f.StringVar(&config.Root, "root", ".", "folder of the repository, whose _build/bin has the programs")
			f.String("out", "_out/bench/kubectl.json", "file for the raw numbers")
		}, kubectl.Measure)
}
