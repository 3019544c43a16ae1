package terminal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/klog/v2"
)

// Run runs a command, and returns its exit code. What the command, cobra and klog print goes to
// Stdout and Stderr, and so does an error.
func Run(ctx context.Context, command *cobra.Command) int {
	command.SetOut(Stdout)
	command.SetErr(Stderr)
	command.SilenceErrors, command.SilenceUsage = true, true
	command.DisableSuggestions = true // an error is one line
	if err := errors.Join(logTo(Stderr), command.ExecuteContext(ctx)); err != nil {
		text := err.Error()
		fmt.Fprintf(Stderr, "error: %s\n", Lines(text[:min(len(text), maxError)]))
		return 1
	}
	return 0
}

// maxError bounds the bytes of an error that are shown.
const maxError = 20_000

// logTo has klog write to w alone.
func logTo(w io.Writer) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	klog.SetOutput(w)
	return errors.Join(flags.Set("logtostderr", "false"), flags.Set("one_output", "true"), flags.Set("stderrthreshold", "FATAL"))
}

// Redrawer returns what writes a line over the last one, or nil where standard error is no terminal.
func Redrawer() func(line string) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	return func(line string) { fmt.Fprint(os.Stderr, "\r"+Line(line, 200)) }
}
