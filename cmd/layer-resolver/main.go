// Command layer-resolver finds out the layers of images before any node has
// pulled them: as a controller that writes ImageManifests, and at the shell.
package main

import (
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	_ "github.com/layer-locality/layer-locality/memlimit"
	"github.com/layer-locality/layer-locality/terminal"
)

// version is set by the build.
var version = "(not built by scripts/build.sh)"

func main() {
	os.Exit(terminal.Run(ctrl.SetupSignalHandler(), newCommand()))
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "layer-resolver",
		Short:   "Publishes the layers of images before any node has pulled them",
		Version: version,
	}
	root.AddCommand(newRunCommand(), newInspectCommand())
	return root
}
