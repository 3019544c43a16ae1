package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench"
)

// configOf is a pointer to the Config of a benchmark, which embeds a
// bench.Progress.
type configOf[C any] interface {
	*C
	LogTo(w io.Writer)
	Logf(format string, args ...any)
}

// resultOf is the *Result of a benchmark.
type resultOf interface {
	comparable // so that it can be compared with nil
	bench.Result
}

// command makes the command of a benchmark. flags adds the flags for its Config
// and --out, the file for the raw numbers. run is the benchmark's Run.
func command[C any, P configOf[C], R resultOf](name, short, long string, flags func(*pflag.FlagSet, P),
	run func(context.Context, C) (R, error),
) *cobra.Command {
	config := P(new(C))
	c := &cobra.Command{
		Use:   name,
		Short: short,
		Long:  long,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := cmd.Flags().GetString("out")
			if err != nil {
				return err
			}
			config.LogTo(cmd.ErrOrStderr())
			result, err := run(cmd.Context(), *config)
			// Keep what was measured before a failure.
			var unwritten error
			if none := *new(R); result != none && out != "" {
				if unwritten = bench.WriteJSON(out, result); unwritten == nil {
					config.Logf("raw numbers: %s", out)
				}
			}
			if err != nil {
				return errors.Join(err, unwritten)
			}
			return errors.Join(result.Write(cmd.OutOrStdout()), unwritten)
		},
	}
	flags(c.Flags(), config)
	return c
}
