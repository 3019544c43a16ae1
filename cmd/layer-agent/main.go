// Command layer-agent publishes which images and layers a node holds, as NodeLayers. It runs
// on every node, in two containers: one reads the container runtime, the other one writes to
// the apiserver. A third one, which is optional, passes layers between nodes.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	_ "github.com/layer-locality/layer-locality/memlimit"
	"github.com/layer-locality/layer-locality/terminal"
)

// version is set by the build.
var version = "(not built by scripts/build.sh)"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := terminal.Run(ctx, newCommand())
	stop()
	os.Exit(code)
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "layer-agent",
		Short:   "Publishes which images and layers a node holds",
		Version: version,
		PersistentPreRun: func(*cobra.Command, []string) {
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(25) // it is idle most of the time, and on every node
			}
		},
	}
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	root.PersistentFlags().AddGoFlag(all.Lookup("v"))
	root.AddCommand(newReadCommand(), newPublishCommand(), newPeersCommand())
	return root
}

// Defaults of flags.
const (
	defaultRenew         = 10 * time.Minute
	defaultSpread        = 30 * time.Second
	defaultMinLayerBytes = 1 << 20
)

// handoverFolder is where the manifests of deploy/agent mount a folder in memory.
const handoverFolder = "/run/layer-agent"
