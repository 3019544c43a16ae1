// Command layer-agent publishes which images and layers a node holds, as NodeLayers. It runs
// on every node, in two containers: one reads the container runtime, the other one writes to
// the apiserver.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// version is set by the build.
var version = "(not built by scripts/build.sh)"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		os.Exit(1) //nolint:gocritic // nothing is left to be released
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:          "layer-agent",
		Short:        "Publishes which images and layers a node holds",
		Version:      version,
		SilenceUsage: true,
		PersistentPreRun: func(*cobra.Command, []string) {
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(25) // it is idle most of the time, and on every node
			}
		},
	}
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	root.PersistentFlags().AddGoFlag(all.Lookup("v"))
	root.AddCommand(newReadCommand(), newPublishCommand())
	return root
}

// handoverFolder is where the manifests of deploy/agent mount a folder in memory.
const handoverFolder = "/run/layer-agent"
