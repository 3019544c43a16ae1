// Package scheduler compares LayerLocality with other plugins: time per pod,
// memory of the index, updates of Nodes. The program in the folder measure,
// which is built against the patched Kubernetes, does the measurement. This
// package runs it and reads its results.
package scheduler

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/layer-locality/layer-locality/internal/bench"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Nodes of the cluster. Scoring is measured with all of them and with a tenth.
	Nodes int
	// Rounds of scoring. In one round, each plugin is measured once.
	Rounds int
	// ProfileDir, if set, gets CPU profiles (pprof), made after the measurement.
	ProfileDir string
}

// Result is everything that was measured, as the program reports it.
type Result struct {
	// lines is the readable output.
	lines bytes.Buffer
	// raw is the program's report as JSON.
	raw json.RawMessage
}

// Run builds and runs the program. It fails as the program does: if the patched
// Kubernetes has no layers in NodeStatus, or a plugin scores nodes with the image no
// higher than the others.
func Run(ctx context.Context, config Config) (*Result, error) {
	workspace, err := bench.SchedulerWorkspace(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-scheduler-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	report := filepath.Join(dir, "report.json")
	args := []string{"run", "-tags", "imagelayers", "./internal/bench/scheduler/measure",
		"-nodes", strconv.Itoa(config.Nodes), "-rounds", strconv.Itoa(config.Rounds), "-out", report}
	if config.ProfileDir != "" {
		profiles, err := filepath.Abs(config.ProfileDir)
		if err != nil {
			return nil, err
		}
		args = append(args, "-profile-dir", profiles)
	}
	program, err := bench.GoCommand(ctx, workspace, args...)
	if err != nil {
		return nil, err
	}
	result := &Result{}
	// The program's output also serves as progress messages.
	output, lines := io.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			config.Logf("%s", scanner.Text())
			fmt.Fprintln(&result.lines, scanner.Text())
		}
	}()
	program.Stdout, program.Stderr = lines, os.Stderr
	program.WaitDelay = time.Second // an interrupt ends 'go run', but not at once the program that it runs
	err = program.Run()
	lines.Close()
	<-read
	if err != nil {
		return nil, err
	}
	if result.raw, err = os.ReadFile(report); err != nil {
		return nil, err
	}
	return result, nil
}

// Write writes what the program printed: its last line has key=value pairs.
func (r *Result) Write(w io.Writer) error {
	_, err := w.Write(r.lines.Bytes())
	return err
}

// MarshalJSON returns the program's report.
func (r *Result) MarshalJSON() ([]byte, error) { return r.raw, nil }
