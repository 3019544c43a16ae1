package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/peers"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

func peersCommand() *cobra.Command {
	// As the user writes them; a Config has bits per second and bytes.
	var bandwidth, between string
	var base, own int64
	return command("peers",
		"Layers from other nodes: start-up of single pods and of a burst, and bytes from the registry",
		`Starts pods on nodes that are slow to the registry and fast to each other, in turns with
the recommended profile alone and with layers from other nodes besides, each time on a new
cluster.`,
		func(f *pflag.FlagSet, config *peers.Config) {
			f.IntVar(&config.Rounds, "rounds", 2, "how often each side has all pods")
			f.IntVar(&config.Nodes, "nodes", 4, "nodes of the cluster")
			f.StringVar(&bandwidth, "bandwidth", "100mbit", "of each node's link to the registry")
			f.StringVar(&between, "between-nodes", "1gbit", "of each node's link to other nodes")
			f.IntVar(&config.Singles, "singles", 4, "pods that come alone, twice each")
			f.IntVar(&config.Pods, "pods", 50, "pods of the burst")
			f.IntVar(&config.Images, "images", 5, "images of the burst")
			f.Int64Var(&base, "base-megabytes", 60, "compressed size of what all images of the burst have")
			f.Int64Var(&own, "own-megabytes", 20, "compressed size of what each has besides")
			f.StringVar(&config.Root, "root", ".", "folder of the repository")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-peers", "folder for the logs of the clusters")
			f.String("out", "_out/bench/peers.json", "file for all that was measured")
		},
		func(ctx context.Context, config peers.Config) (_ *peers.Result, err error) {
			config.BaseBytes, config.OwnBytes = base*1_000_000, own*1_000_000
			if config.Bandwidth, err = cluster.ParseBandwidth(bandwidth); err != nil {
				return nil, err
			}
			if config.BetweenNodes, err = cluster.ParseBandwidth(between); err != nil {
				return nil, err
			}
			return peers.Run(ctx, config)
		})
}
