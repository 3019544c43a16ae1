package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/suite"
)

func evalCommand() *cobra.Command {
	var o options
	var names []string
	var size string
	c := &cobra.Command{
		Use:   "eval",
		Short: "Answer the questions of the evaluation: play experiments, write a report for evalpage",
		Example: `  layersim eval --size small --seeds 2
  layersim eval --experiments frontier,zipf --out report.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			experiments, err := suite.FindExperiments(names, suite.Extent(size))
			if err != nil {
				return err
			}
			d, err := suite.Load(o.files)
			if err != nil {
				return err
			}
			for i := range experiments {
				experiments[i].Command = repeat(cmd.Flags(), experiments[i].Name)
			}
			results, speed, err := o.play(cmd, d, experiments...)
			if err != nil {
				return err
			}
			report := &evaluation.Report{Version: version, Data: d.Source, Command: repeat(cmd.Flags(), names...), Experiments: results}
			if err := writeReport(o.out, report); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n", speed, o.out)
			return nil
		},
	}
	o.flags(c)
	f := c.Flags()
	f.StringVar(&o.out, "out", "_out/eval/report.json", "file for all results (JSON)")
	f.StringSliceVar(&names, "experiments", nil, "experiments (layersim list); default: all")
	f.StringVar(&size, "size", string(suite.Full), "how much is played: small or full")
	return c
}

// repeat returns the command that repeats experiments. It leaves out files that
// environment variables name.
func repeat(flags *pflag.FlagSet, experiments ...string) string {
	var b strings.Builder
	b.WriteString("layersim eval")
	if len(experiments) > 0 {
		fmt.Fprintf(&b, " --experiments %s", strings.Join(experiments, ","))
	}
	fmt.Fprintf(&b, " --seeds %s --size %s", flags.Lookup("seeds").Value, flags.Lookup("size").Value)
	for _, name := range []string{"data", "history", "moves", "as-of"} {
		if flags.Changed(name) {
			fmt.Fprintf(&b, " --%s %s", name, flags.Lookup(name).Value)
		}
	}
	return b.String()
}
