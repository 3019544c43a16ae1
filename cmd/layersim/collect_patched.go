//go:build imagelayers

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// collectCommand tells where the command is: the workspace with the patched
// Kubernetes has only what Kubernetes vendors, and so nothing that asks registries.
func collectCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "collect [IMAGE...]",
		Short:              "Write what images consist of to a file (not in this build)",
		DisableFlagParsing: true, // all that the command has are taken to the message
		RunE: func(*cobra.Command, []string) error {
			return errors.New("this build cannot ask registries: run 'go run ./cmd/layersim collect' in the repository")
		},
	}
}
