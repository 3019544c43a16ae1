package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/layer-locality/layer-locality/internal/eval/dataset"
)

// SchedulerWorkspace updates the workspace in which scheduler code is built
// against the patched Kubernetes, and returns its path. The working directory
// must be the root of the repository.
func SchedulerWorkspace(ctx context.Context) (string, error) {
	path, err := tree(ctx, "scheduler")
	if err != nil {
		return "", fmt.Errorf("bring the scheduler's workspace up to date (is this the root of the repository?): %w", err)
	}
	return path, nil
}

// PatchedKubernetes returns the path of the patched tree, and assembles the
// tree if needed. The working directory must be the root of the repository.
func PatchedKubernetes(ctx context.Context) (string, error) {
	path, err := tree(ctx, "patched", "kubernetes")
	if err != nil {
		return "", fmt.Errorf("assemble the patched Kubernetes tree (is this the root of the repository?): %w", err)
	}
	return path, nil
}

// tree runs a script that makes a source tree, and returns the tree's path.
func tree(ctx context.Context, args ...string) (string, error) {
	script := exec.CommandContext(ctx, "scripts/tree.sh", args...)
	script.Stderr = os.Stderr
	out, err := script.Output()
	return strings.TrimSpace(string(out)), err
}

// GoCommand returns a go command in the workspace. It has the build flags of
// the binaries, so that they share compiled packages, and LayerData in its
// environment.
func GoCommand(ctx context.Context, workspace string, args ...string) (*exec.Cmd, error) {
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = workspace
	data, err := LayerData()
	if err != nil {
		return nil, err
	}
	command.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false -trimpath", "GOWORK=", "CGO_ENABLED=0", data)
	return command, nil
}

// LayerData returns the environment variable that names the file of images
// (NAME=PATH). The path is valid in any working directory.
func LayerData() (string, error) {
	path := os.Getenv(dataset.Env)
	if path == "" {
		return dataset.Env + "=", nil
	}
	path, err := filepath.Abs(path)
	return dataset.Env + "=" + path, err
}
