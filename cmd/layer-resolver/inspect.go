package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/resolver/inspect"
	"github.com/layer-locality/layer-locality/terminal"
)

func newInspectCommand() *cobra.Command {
	var (
		options   = inspect.Options{UserAgent: "layer-resolver"}
		platforms []string
		output    string
	)
	command := &cobra.Command{
		Use:   "inspect IMAGE...",
		Short: "Show the layers of images, and what the images have in common",
		Long: `Show the layers of images, and what the images have in common.

Registries are asked for manifests; nothing is pulled. Images are named as in a
pod. All sizes are compressed bytes, as they are pulled.`,
		Example: `  layer-resolver inspect nginx:1.27 nginx:1.28
  layer-resolver inspect --platform linux/arm64 -o json registry.example.com/app:2 | jq .images[].size`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, images []string) error {
			show := (*inspect.Report).WriteTable
			switch output {
			case "table":
			case "json":
				show = (*inspect.Report).WriteJSON
			default:
				return fmt.Errorf("output %q: expected table or json", output)
			}
			for _, platform := range platforms {
				if err := inspect.CheckPlatform(platform); err != nil {
					return err
				}
			}
			client, err := inspect.NewClient(options)
			if err != nil {
				return err
			}
			report, errs := inspect.Images(cmd.Context(), client, images, platforms)
			for _, err := range errs {
				cmd.PrintErrf("error: %s\n", terminal.Lines(err.Error()))
			}
			if len(report.Images) > 0 {
				if err := show(&report, cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			if len(errs) > 0 {
				return fmt.Errorf("not all images could be inspected: %d failed", len(errs))
			}
			return nil
		},
	}
	options.AddFlags(command.Flags())
	command.Flags().StringSliceVar(&platforms, "platform", []string{inspect.DefaultPlatform}, "os/architecture to look for in an index; may be given more than once")
	command.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return command
}
