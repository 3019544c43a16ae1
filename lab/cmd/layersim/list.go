package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/lab/eval/sim"
	"github.com/layer-locality/layer-locality/lab/eval/sim/suite"
)

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List experiments, scenarios and policies",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "EXPERIMENT\t")
			for _, e := range suite.Experiments(suite.Full) {
				fmt.Fprintf(table, "%s\t%s\n", e.Name, e.Title)
			}
			fmt.Fprintln(table, "\t\nSCENARIO\t")
			for _, s := range suite.Scenarios(suite.Size{}) {
				fmt.Fprintf(table, "%s\t%s\n", s.Name, s.Text)
			}
			fmt.Fprintln(table, "\t\nPOLICY\t")
			for _, p := range sim.Policies() {
				fmt.Fprintf(table, "%s\t%s\n", p.Name, p.Text)
			}
			return table.Flush()
		},
	}
}
