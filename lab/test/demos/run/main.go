// Command run runs the console blocks of texts against the cluster that kubectl talks to,
// and prints them with their output. It ends at the first command whose output or status
// differs from its text:
//
//	lab/run test/demos/run lab/demos/image-locality/README.md
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/layer-locality/layer-locality/lab/test/demos/console"
)

func main() { os.Exit(run()) }

// run returns the exit status: 1 if a text does not hold, 2 if none was given.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	options := console.Options{Print: os.Stdout}
	flag.StringVar(&options.Until, "until", "", "`heading` before which to end")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: run [-until HEADING] FILE.md...")
		return 2
	}
	for _, file := range flag.Args() {
		if err := console.Run(ctx, file, options); err != nil {
			fmt.Fprintf(os.Stderr, "demo: FAILED: %v\n", err)
			return 1
		}
	}
	return 0
}
