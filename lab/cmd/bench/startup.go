package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/startup"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

func startupCommand() *cobra.Command {
	// As the user writes them; a Config has bits per second and bytes.
	var bandwidth string
	var megabytes int64
	return command("startup",
		"Start-up of pods, bytes pulled and balance on a real cluster, default profile and LayerLocality",
		`Plays one workload on nodes with slow links, in turns with kube-scheduler's default
profile and with the recommended one and layer-resolver, each time on a new cluster.
The images have the layers, in number, sharing and proportion, of real ones, drawn from
the file that `+dataset.Env+` names, or of generated ones. Then the simulator plays the
same workload. With --bursts, the last line has burst_ratio: the mean start-up of their pods beside the default profile's.`,
		func(f *pflag.FlagSet, config *startup.Config) {
			f.IntVar(&config.Rounds, "rounds", 2, "how often each side plays the workload")
			f.Uint64Var(&config.Seed, "seed", 1, "seed of the workload and of the choice of images")
			f.IntVar(&config.Nodes, "nodes", 4, "nodes of the cluster")
			f.StringVar(&bandwidth, "bandwidth", "50mbit", "of each node's link")
			f.IntVar(&config.Images, "images", 24, "images that pods have")
			f.Int64Var(&megabytes, "megabytes", 400, "compressed size of all their layers, each counted once, to which the images are scaled")
			f.IntVar(&config.Pods, "pods", 60, "pods, which come one by one and stay")
			f.DurationVar(&config.Interval, "interval", 1500*time.Millisecond, "mean time between two pods")
			f.Float64Var(&config.Exponent, "zipf", 1, "exponent of Zipf's law, which the popularity of images follows")
			f.IntVar(&config.Bursts, "bursts", 0, "bursts of pods that come afterwards, each with an image that no pod had before")
			f.IntVar(&config.BurstPods, "burst-pods", 15, "pods of a burst, which come at once")
			f.StringVar((*string)(&config.CRIO), "crio", string(cluster.Patched), "build of CRI-O on the nodes: patched, or stock, which pulls an image for each pod that starts at the same time")
			f.BoolVar(&config.SerializeImagePulls, "serialize-image-pulls", false, "the kubelets pull one image after another, as is their default")
			f.IntVar(&config.Simulations, "simulations", 50, "seeds of the simulator; 0: none")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-startup", "folder for the logs of the clusters")
			f.String("out", "_out/bench/startup.json", "file for all that was measured")
		},
		func(ctx context.Context, config startup.Config) (_ *startup.Result, err error) {
			config.Bytes = megabytes * 1_000_000
			if config.Bandwidth, err = cluster.ParseBandwidth(bandwidth); err != nil {
				return nil, err
			}
			return startup.Run(ctx, config)
		})
}
