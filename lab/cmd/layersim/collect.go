package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/lab/eval/collect"
	"github.com/layer-locality/layer-locality/resolver/inspect"
	"github.com/layer-locality/layer-locality/terminal"
)

// collectCommand writes a data set, and asks registries for what it lacks.
func collectCommand() *cobra.Command {
	var (
		options     = inspect.Options{UserAgent: "layersim"}
		fromCluster bool
		kubeconfig  string
		platform    string
		output      string
	)
	command := &cobra.Command{
		Use:   "collect [IMAGE...]",
		Short: "Write what images consist of to a file, to measure with",
		Long: `Write what images consist of to a file, to measure with.

The images are those named, with "-" also those on standard input, one a line,
and with --from-cluster those of a cluster: of its pods and templates of pods and
on its nodes. What ImageManifests of the cluster tell is taken from there, the
rest is asked of registries. Nothing is pulled.

The file has a JSON object a line, one for each manifest:
  {"image":NAME,"digest":DIGEST,"aliases":[NAME...],"layers":[{"digest":DIGEST,"size":BYTES}...]}
with the layers in the manifest's order, the base first, and compressed sizes.
The same images give the same file. Images that fail are told and left out.`,
		Example: `  lab/run layersim collect --from-cluster -o images.jsonl.gz
  lab/run layersim collect - <images.txt >images.jsonl`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := inspect.CheckPlatform(platform); err != nil {
				return err
			}
			if err := collect.CheckOutput(output); err != nil {
				return err
			}
			client, err := inspect.NewClient(options)
			if err != nil {
				return err
			}
			if slices.Contains(names, "-") {
				lines, err := collect.ReadNames(cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("standard input: %w", err)
				}
				names = append(slices.DeleteFunc(names, func(name string) bool { return name == "-" }), lines...)
			}
			var found inspect.Inventory
			if fromCluster {
				config, err := inspect.RESTConfig(kubeconfig)
				if err != nil {
					return err
				}
				if found, err = inspect.ClusterInventory(cmd.Context(), config); err != nil {
					return err
				}
			}
			found.Images = append(found.Images, names...)
			if len(found.Images)+len(found.Nodes) == 0 {
				return errors.New(`no images: name some, pass a list on standard input with "-", or use --from-cluster`)
			}
			config := collect.Config{Client: client, Platform: platform}
			if redraw := terminal.Redrawer(); redraw != nil {
				config.Progress = func(done, all int) {
					redraw(fmt.Sprintf("%d of %d images", done, all))
					if done == all {
						cmd.PrintErrln()
					}
				}
			}
			result := collect.Images(cmd.Context(), config, found)
			if err := cmd.Context().Err(); err != nil {
				return fmt.Errorf("nothing is written: %w", context.Cause(cmd.Context()))
			}
			for _, err := range result.Errs {
				cmd.PrintErrf("error: %s\n", terminal.Lines(err.Error()))
			}
			if len(result.Images) > 0 {
				if err := collect.Write(cmd.OutOrStdout(), output, result.Images); err != nil {
					return err
				}
			}
			cmd.PrintErrf("%d images written; registries were asked about %d; %d failed\n", len(result.Images), result.Asked, len(result.Errs))
			if len(result.Errs) > 0 {
				return errors.New("not all images are there")
			}
			return nil
		},
	}
	options.AddFlags(command.Flags())
	flags := command.Flags()
	flags.BoolVar(&fromCluster, "from-cluster", false, "all images of a cluster")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	flags.StringVar(&platform, "platform", "linux/amd64", "os/architecture to look for in an index")
	flags.StringVarP(&output, "output", "o", "-", "`file` to write, compressed if its name ends in .gz; - is standard output")
	return command
}
