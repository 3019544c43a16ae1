// Command kubectl-layers is a kubectl plugin that tells which node holds which image layers,
// where a pod would find most of its own, and why a pod went where it is
// (docs/kubectl-layers.md).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/layer-locality/layer-locality/kubectllayers/text"
)

// version is set by the linker.
var version = "development"

// gcPercent is Go's GOGC for this program: nearly all that it allocates are lists, which are read
// once, and it runs on machines of people, beside what they work with.
const gcPercent = 50

func main() {
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once, as if nobody caught it
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs a command and returns the exit code: 0, or 1 if there is no answer.
func run(ctx context.Context, args []string) int {
	command := newCommand(os.Stdin, os.Stdout, os.Stderr)
	command.SetArgs(args)
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(text.NewWriter(os.Stderr), "error: %s\n", text.Line(err.Error(), 2000))
		return 1
	}
	return 0
}
