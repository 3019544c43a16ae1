// Command layersim plays workloads on simulated clusters with the real
// kube-scheduler and LayerLocality, and collects data sets for them:
// docs/evaluation.md. What plays is built against the patched Kubernetes, in the
// workspace that scripts/tree.sh workspace makes; what collects is built without it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// version of the program; the build sets it.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	switch err := command().ExecuteContext(ctx); {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "interrupted: nothing was written")
		os.Exit(130)
	default:
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "layersim",
		Short:         "What layer-aware placement saves, on simulated clusters with the real scheduler",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddCommand(runCommand(), evalCommand(), listCommand(), collectCommand())
	return c
}

// prepare makes kube-scheduler ready. It may be called again.
func prepare() error {
	metrics.Register()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // most objects are short-lived: a fifth less processor time for some memory
	}
	// kube-scheduler's own log stays off the terminal, except for errors.
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	klog.SetOutput(io.Discard) // otherwise klog writes files to /tmp
	return errors.Join(flags.Set("logtostderr", "false"), flags.Set("stderrthreshold", "ERROR"), flags.Set("alsologtostderr", "false"))
}
