// Command sbom prints the software bill of materials of a Go binary, as CycloneDX
// JSON.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/sbom"
)

func main() {
	var options sbom.Options
	var libraries []string
	command := &cobra.Command{
		Use:           "sbom BINARY",
		Short:         "Print what a Go binary consists of, as CycloneDX JSON",
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, args []string) error {
			for _, library := range libraries {
				name, version, found := strings.Cut(library, "=")
				if !found || name == "" || version == "" {
					return fmt.Errorf("--c-library %q: not NAME=VERSION", library)
				}
				options.Libraries = append(options.Libraries, sbom.Library{Name: name, Version: version})
			}
			bom, err := sbom.Describe(args[0], options)
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
	flags.StringArrayVar(&libraries, "c-library", nil, "NAME=VERSION of a C library that is linked in; may be repeated")
	for _, name := range []string{"name", "version"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is above
		}
	}
	if err := command.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}
