package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench/resolver"
)

func tenantsCommand() *cobra.Command {
	return command("tenants",
		"layer-resolver with hostile tenants for an hour: how soon the images of others are known, memory, leaks",
		`Runs two replicas of layer-resolver with their defaults, an API server, an etcd, and three
registries in this process. Five hostile tenants and ten hostile nodes do all that docs/security.md
names, while others bring images: four fifths in the first sixth of the time. The leader is killed
after 12 of 60 parts of the time, the API server after 18, and a registry is out from 40 to 45.

The last line has the times until an honest image was known, while its registry was up; how much
larger the largest memory of a process is in the last ten parts than from 10 to 18; and how much any
namespace could read of others.`,
		func(f *pflag.FlagSet, config *resolver.TenantsConfig) {
			f.IntVar(&config.Images, "images", 5000, "images of honest tenants")
			f.IntVar(&config.Teams, "teams", 45, "honest tenants, besides the five hostile ones")
			f.DurationVar(&config.Duration, "duration", time.Hour, "how long it takes")
			f.BoolVar(&config.PublishPrivate, "publish-private", false, "run layer-resolver with this flag: private images have to be known as well")
			f.StringVar(&config.Root, "root", ".", "folder of the repository, whose _build/bin has the programs")
			f.StringVar(&config.LogDir, "log-dir", "_out/bench/log-tenants", "folder for layer-resolver's log")
			f.String("out", "_out/bench/tenants.json", "file for the raw numbers")
		}, resolver.RunTenants)
}
