// Command bench measures what image layers cost. Each subcommand prints a line
// of key=value pairs last, for scripts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	root := &cobra.Command{
		Use:   "bench",
		Short: "Measure what image layers cost",
	}
	root.AddCommand(commands()...)
	code := terminal.Run(ctx, root)
	stop()
	os.Exit(code)
}

// commands returns one command for each benchmark, which is a package of
// lab/bench.
func commands() []*cobra.Command {
	return []*cobra.Command{crioCommand(), nodeCommand(), extenderCommand(), kubectlCommand(), schedulerCommand(), throughputCommand(), resolverCommand(), tenantsCommand(), startupCommand(), prefetchCommand(), peersCommand(), qosCommand(), nodeLayersCommand(), agentCommand()}
}
