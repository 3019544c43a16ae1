package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// SchedulerWorkspace updates the workspace in which this repository is built
// against the patched Kubernetes, and returns its path. The working directory
// must be the root of the repository.
func SchedulerWorkspace(ctx context.Context) (string, error) {
	path, err := tree(ctx, "workspace")
	if err != nil {
		return "", fmt.Errorf("bring the workspace up to date (is this the root of the repository?): %w", err)
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

// Report is what a program measured that is built against the patched Kubernetes.
type Report struct {
	// lines is the readable output.
	lines bytes.Buffer
	// raw is the program's report as JSON.
	raw json.RawMessage
}

// RunProgram builds and runs a program of the workspace, which writes what it measured to the
// file of its flag -out. The working directory must be the root of the repository.
func RunProgram(ctx context.Context, progress *Progress, program string, args ...string) (*Report, error) {
	workspace, err := SchedulerWorkspace(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "report.json")
	command, err := GoCommand(ctx, workspace, append([]string{"run", "-tags", "imagelayers", program, "-out", file}, args...)...)
	if err != nil {
		return nil, err
	}
	report := &Report{}
	// The program's output also serves as progress messages.
	output, lines := io.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			progress.Logf("%s", scanner.Text())
			fmt.Fprintln(&report.lines, scanner.Text())
		}
	}()
	command.Stdout, command.Stderr = lines, os.Stderr
	command.WaitDelay = time.Second // an interrupt ends 'go run', but not at once the program that it runs
	err = command.Run()
	lines.Close()
	<-read
	if err != nil {
		return nil, err
	}
	if report.raw, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	return report, nil
}

// Write writes what the program printed: its last line has key=value pairs.
func (r *Report) Write(w io.Writer) error {
	_, err := w.Write(r.lines.Bytes())
	return err
}

// MarshalJSON returns the program's report.
func (r *Report) MarshalJSON() ([]byte, error) { return r.raw, nil }

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
