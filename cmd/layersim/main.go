// Command layersim plays workloads on simulated clusters with the real
// kube-scheduler and LayerLocality: docs/evaluation.md. It is built against the
// patched Kubernetes, in the workspace that scripts/tree.sh scheduler makes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "layersim",
		Short:         "What layer-aware placement saves, on simulated clusters with the real scheduler",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if !nodestatus.Layers {
				return errors.New("this build does not see layers in NodeStatus: build it in the workspace that scripts/tree.sh scheduler makes, with -tags imagelayers")
			}
			metrics.Register()
			return quiet()
		},
	}
	c.AddCommand(runCommand(), listCommand())
	return c
}

// quiet keeps what kube-scheduler logs of itself off the terminal, but for errors.
func quiet() error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	return errors.Join(flags.Set("logtostderr", "false"), flags.Set("stderrthreshold", "ERROR"), flags.Set("alsologtostderr", "false"))
}
