// Command layersim plays workloads on simulated clusters with the real
// kube-scheduler and LayerLocality: docs/evaluation.md. It is built against the
// patched Kubernetes, in the workspace that scripts/tree.sh scheduler makes.
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
	context.AfterFunc(ctx, stop) // whoever asks again need not wait
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
	c.AddCommand(runCommand(), evalCommand(), listCommand())
	return c
}

// prepare makes kube-scheduler ready. It may be called again.
func prepare() error {
	metrics.Register()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // little lives long: a fifth less processor time for some memory
	}
	// What kube-scheduler logs of itself stays off the terminal, but for errors.
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	klog.SetOutput(io.Discard) // or there would be files in /tmp
	return errors.Join(flags.Set("logtostderr", "false"), flags.Set("stderrthreshold", "ERROR"), flags.Set("alsologtostderr", "false"))
}
