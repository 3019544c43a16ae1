package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/dataset"
)

// schedulerCommand builds and runs test/bench/scheduler.
func schedulerCommand() *cobra.Command {
	var nodes, rounds int
	var out, profiles string
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "LayerLocality beside in-tree ImageLocality and the prototype: time a pod, memory of the index, updates of Nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tree, err := schedulerWorkspace(cmd.Context())
			if err != nil {
				return err
			}
			args := []string{"run", "-tags", "imagelayers", "./test/bench/scheduler", "-nodes", strconv.Itoa(nodes), "-rounds", strconv.Itoa(rounds)}
			for name, path := range map[string]string{"-out": out, "-profile-dir": profiles} {
				if path == "" {
					continue
				}
				absolute, err := filepath.Abs(path)
				if err != nil {
					return err
				}
				args = append(args, name, absolute)
			}
			run, err := goCommand(cmd.Context(), tree, args...)
			if err != nil {
				return err
			}
			run.Stdout, run.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return run.Run()
		},
	}
	f := c.Flags()
	f.IntVar(&nodes, "nodes", 5000, "nodes of the cluster; all of them and a tenth are scored")
	f.IntVar(&rounds, "rounds", 11, "rounds of the scores; in one, each plugin is measured once")
	f.StringVar(&out, "out", "_out/bench/scheduler.json", "file for all that was measured")
	f.StringVar(&profiles, "profile-dir", "", "folder for CPU profiles (pprof), made after the measurement")
	return c
}

// schedulerWorkspace is where scheduler code is built against the patched
// Kubernetes, brought up to date.
func schedulerWorkspace(ctx context.Context) (string, error) {
	script := exec.CommandContext(ctx, "scripts/tree.sh", "scheduler")
	script.Stderr = os.Stderr
	out, err := script.Output()
	if err != nil {
		return "", fmt.Errorf("bring the scheduler's workspace up to date (is this the root of the repository?): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goCommand is a go command in the workspace, with the flags of the binaries, so
// that one compilation serves both.
func goCommand(ctx context.Context, workspace string, args ...string) (*exec.Cmd, error) {
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = workspace
	command.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false -trimpath", "GOWORK=", "CGO_ENABLED=0")
	data, err := layerData()
	if err != nil {
		return nil, err
	}
	command.Env = append(command.Env, data)
	return command, nil
}

// layerData is the environment variable of the images, valid in any folder.
func layerData() (string, error) {
	path := os.Getenv(dataset.Env)
	if path == "" {
		return dataset.Env + "=", nil
	}
	path, err := filepath.Abs(path)
	return dataset.Env + "=" + path, err
}
