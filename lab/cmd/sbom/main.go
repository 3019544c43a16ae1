// Command sbom prints the software bill of materials of a Go binary, as CycloneDX
// JSON, and collects the license texts of its modules.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/lab/sbom"
	"github.com/layer-locality/layer-locality/terminal"
)

func main() {
	var options sbom.Options
	var libraries []string
	command := &cobra.Command{
		Use:   "sbom BINARY",
		Short: "Print what a Go binary consists of, as CycloneDX JSON",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			for _, library := range libraries {
				parts := strings.Split(library, "=")
				if len(parts) != 3 || slices.Contains(parts, "") {
					return fmt.Errorf("--c-library %q: not NAME=VERSION=LICENSE", library)
				}
				options.Libraries = append(options.Libraries, sbom.Library{Name: parts[0], Version: parts[1], License: parts[2]})
			}
			bom, err := sbom.Describe(command.Context(), args[0], options)
			if err != nil {
				return err
			}
			return sbom.Write(command.OutOrStdout(), bom)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Name, "name", "", "name of the program")
	flags.StringVar(&options.Version, "version", "", "version of the program")
	flags.StringVar(&options.Workspace, "workspace", "", "version of modules that were built from their folder")
	flags.StringVar(&options.Upstream, "upstream", "", "MODULE@VERSION that this is a patched build of")
	flags.StringArrayVar(&libraries, "c-library", nil, "NAME=VERSION=LICENSE of a C library that is linked in; may be repeated")
	flags.StringVar(&options.Source, "source", "", "folder where the binary was compiled")
	flags.StringVar(&options.Texts, "licenses", "", "folder for license texts; those of Go and C libraries are there already")
	for _, name := range []string{"name", "version", "source", "licenses"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is above
		}
	}
	os.Exit(terminal.Run(context.Background(), command))
}
