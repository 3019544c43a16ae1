package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/crio"
)

func crioCommand() *cobra.Command {
	return command("crio",
		"Stock and patched CRI-O by turns on one store: ListImages, first list, pull, memory", "",
		func(f *pflag.FlagSet, config *crio.Config) {
			f.IntVar(&config.Images, "images", 1000, "images in the store")
			f.IntVar(&config.Layers, "layers", 10, "layers of an image")
			f.IntVar(&config.Rounds, "rounds", 6, "rounds; one measures stock and patched CRI-O once each")
			f.IntVar(&config.Lists, "lists", 150, "ListImages calls a measurement")
			f.IntVar(&config.Starts, "starts", 5, "starts of stock and patched CRI-O by turns a round, each with its first list, a pull of 100 MB and one of five images at once that have nothing in common")
			f.StringVar(&config.BinDir, "bin-dir", "", "folder that holds stock, patched and tools (default: _build/bin of this repository)")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log", "folder for the logs of all components")
			f.StringVar(&config.ProfileDir, "profile-dir", "", "folder for CPU profiles of CRI-O, one a measurement (pprof); they cost time themselves")
			f.String("out", "_out/bench/crio.json", "file for the raw numbers")
		}, crio.Run)
}
