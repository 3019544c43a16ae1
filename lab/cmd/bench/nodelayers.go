package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/nodelayers"
)

func nodeLayersCommand() *cobra.Command {
	return command("nodelayers",
		"NodeLayers of thousands of nodes: their size, what they cost apiserver and etcd, and the scheduler",
		`Creates the NodeLayers of many nodes, as layer-agent writes them, on a stock kube-apiserver with
an etcd of its own; has the scheduler's source read and watch all of them, beside an index of the
same images as patched nodes state them in NodeStatus; and renews some of them.

The images are those of LAYER_DATA, or generated ones. The heap of the apiserver is measured after
garbage collections, its processor time by its own counter.`,
		func(f *pflag.FlagSet, config *nodelayers.Config) {
			f.IntVar(&config.Objects, "objects", 5000, "nodes")
			f.IntVar(&config.Images, "images", 100, "images of each")
			f.IntVar(&config.Updates, "updates", 2000, "renewals that are measured")
			f.StringVar(&config.Root, "root", ".", "folder of the repository, whose _build/bin has the programs")
			f.String("out", "_out/bench/nodelayers.json", "file for the raw numbers")
		}, nodelayers.Run)
}
