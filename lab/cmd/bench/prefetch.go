package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/prefetch"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

func prefetchCommand() *cobra.Command {
	// As the user writes them; a Config has bits per second and bytes.
	var bandwidth string
	var base, own int64
	return command("prefetch",
		"Start-up of new pods in rolling updates: default profile, LayerLocality, and with layer-prefetcher",
		`Rolls a Deployment on nodes with slow links twice, after its tag has moved and with
another image in its template: in turns with kube-scheduler's default profile, with the
recommended one and layer-resolver, and with layer-prefetcher besides, each time on a new
cluster. No two of its new pods run on one node.`,
		func(f *pflag.FlagSet, config *prefetch.Config) {
			f.IntVar(&config.Rounds, "rounds", 2, "how often each side makes both updates")
			f.IntVar(&config.Nodes, "nodes", 4, "nodes of the cluster")
			f.StringVar(&bandwidth, "bandwidth", "100mbit", "of each node's link")
			f.Int32Var(&config.Replicas, "replicas", 4, "replicas of the Deployment")
			f.Int64Var(&base, "base-megabytes", 60, "compressed size of what all versions of the image have")
			f.Int64Var(&own, "own-megabytes", 60, "compressed size of what each has besides")
			f.DurationVar(&config.Lead, "lead", 15*time.Second, "from when layer-resolver has confirmed a moved tag to the restart")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-prefetch", "folder for the logs of the clusters")
			f.String("out", "_out/bench/prefetch.json", "file for all that was measured")
		},
		func(ctx context.Context, config prefetch.Config) (_ *prefetch.Result, err error) {
			config.BaseBytes, config.OwnBytes = base*1_000_000, own*1_000_000
			if config.Bandwidth, err = cluster.ParseBandwidth(bandwidth); err != nil {
				return nil, err
			}
			return prefetch.Run(ctx, config)
		})
}
