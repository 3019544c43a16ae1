// Command layersim plays workloads on simulated clusters with the real
// kube-scheduler and LayerLocality, and collects data sets for them:
// docs/evaluation.md. What plays is built against the patched Kubernetes, in the
// workspace that scripts/tree.sh workspace makes; what collects is built without it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/layer-locality/layer-locality/terminal"
)

// version of the program; the build sets it.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := terminal.Run(ctx, command())
	if code != 0 && ctx.Err() != nil {
		fmt.Fprintln(terminal.Stderr, "interrupted: nothing was written")
		code = 130
	}
	os.Exit(code)
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:     "layersim",
		Short:   "What layer-aware placement saves, on simulated clusters with the real scheduler",
		Version: version,
	}
	c.AddCommand(runCommand(), evalCommand(), listCommand(), collectCommand())
	return c
}

// prepare makes kube-scheduler ready. It may be called again.
func prepare() {
	metrics.Register()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // most objects are short-lived: a fifth less processor time for some memory
	}
	// kube-scheduler's own log stays off the terminal, except for errors.
	for _, severity := range []string{"INFO", "WARNING"} {
		klog.SetOutputBySeverity(severity, io.Discard)
	}
}
