package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/sim"
	"github.com/layer-locality/layer-locality/internal/sim/suite"
)

// version of the program; the build sets it.
var version = "devel"

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List scenarios and policies",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "SCENARIO\t")
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
