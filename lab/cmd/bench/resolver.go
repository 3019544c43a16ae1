package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/resolver"
)

func resolverCommand() *cobra.Command {
	return command("resolver",
		"layer-resolver on thousands of images: images a second, requests, memory, restart, confirmation of tags",
		`Runs layer-resolver with an API server and an etcd of its own and a registry in this
process. Deployments name the images before it starts. Four processes of it take turns:
one without records, one with all of them, one for which all tags are due, and one
that gets unknown images one by one.

Then a namespace floods it: one CronJob is updated again and again, each time with 256
images that do not exist. layer-resolver has its default settings then. Images of another
namespace are resolved meanwhile, one after the other; at the end the CronJob is deleted,
and layer-resolver is restarted ten times in less time than it keeps what is unused.

The last line is that of a registry without tokens, and of the flood.`,
		func(f *pflag.FlagSet, config *resolver.Config) {
			f.IntVar(&config.Images, "images", 5000, "images, each in a repository of its own and named by a Deployment")
			f.IntVar(&config.Pods, "pods", 1000, "pods beside the Deployments, 50 of an image")
			f.IntVar(&config.Singles, "singles", 50, "images that come one by one")
			f.DurationVar(&config.Latency, "latency", 20*time.Millisecond, "time that the registry takes for an answer")
			f.BoolVar(&config.Tokens, "tokens", true, "measure once more with a registry that wants a token for each repository")
			f.IntVar(&config.Workers, "workers", 64, "--workers of layer-resolver; with its default, 8, the latency of the registry is most of the time")
			f.Float64Var(&config.QPS, "registry-qps", 1000, "--registry-qps of layer-resolver; its default, 20, is 10 images a second")
			f.DurationVar(&config.TagTTL, "tag-ttl", time.Minute, "--tag-ttl of layer-resolver when tags are confirmed")
			f.IntVar(&config.Updates, "updates", 10_000, "updates of a CronJob, each with 256 made-up images, while images of another namespace have to be resolved; 0 for none")
			f.StringVar(&config.Root, "root", ".", "folder of the repository, whose _build/bin has the programs")
			f.StringVar(&config.Binary, "binary", "", "layer-resolver to measure (default: _build/bin/patched/layer-resolver)")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-resolver", "folder for layer-resolver's log")
			f.String("out", "_out/bench/resolver.json", "file for the raw numbers")
		}, resolver.Run)
}
