// Command kubectl-layers is a kubectl plugin that shows which node holds which image layers,
// where a pod would find most of its own, and why a pod went where it is
// (docs/kubectl-layers.md).
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/layer-locality/layer-locality/kubectllayers/command"
	"github.com/layer-locality/layer-locality/terminal"
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
	code := terminal.Run(ctx, command.New(version))
	stop()
	os.Exit(code)
}
