package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/suite"
)

// options are shared by all commands that play something.
type options struct {
	files    suite.Files
	seeds    int
	parallel int
	out      string
	profile  string
}

func (o *options) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.files.Images, "data", os.Getenv(dataset.Env), "file of images (JSON Lines, plain or .gz); default $"+dataset.Env+", else generated")
	f.StringVar(&o.files.History, "history", os.Getenv(dataset.HistoryEnv), "file of all images ever published, for rolling updates; default $"+dataset.HistoryEnv+", else generated")
	f.StringVar(&o.files.Moves, "moves", os.Getenv(dataset.MovesEnv), "file of tag moves that belongs to it; default $"+dataset.MovesEnv)
	f.TimeVar(&o.files.AsOf, "as-of", time.Time{}, []string{time.DateOnly, time.RFC3339Nano}, "take the images from the history, as tags were on this `day`, not from --data")
	f.IntVar(&o.seeds, "seeds", 5, "how often each workload is drawn")
	f.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "runs at the same time")
	f.StringVar(&o.profile, "cpuprofile", "", "file for a CPU profile of all runs")
}

// play plays experiments one after another. It returns a text with the speed.
func (o *options) play(cmd *cobra.Command, d *suite.Data, experiments ...suite.Experiment) (results []evaluation.Experiment, speed string, err error) {
	prepare()
	if o.profile != "" {
		file, err := os.Create(o.profile)
		if err != nil {
			return nil, "", err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return nil, "", err
		}
		defer pprof.StopCPUProfile()
	}
	started := time.Now()
	runs, pods := 0, 0
	for i, e := range experiments {
		name := e.Name
		if len(experiments) > 1 {
			name = fmt.Sprintf("%d/%d %s", i+1, len(experiments), e.Name)
		}
		bar := newBar(cmd.ErrOrStderr(), name)
		result, err := suite.Play(cmd.Context(), e, d, o.seeds, o.parallel, bar.show)
		bar.end()
		if err != nil {
			return nil, "", err
		}
		for _, run := range result.Runs {
			pods += run.Pods
		}
		runs += len(result.Runs)
		results = append(results, result)
	}
	elapsed := time.Since(started).Seconds()
	return results, fmt.Sprintf("%d runs, %d pods in %.1f s: %.0f pods/s", runs, pods, elapsed, float64(pods)/elapsed), nil
}

// writeReport writes a report that passes its Check, completely or not at all.
func writeReport(name string, r *evaluation.Report) (err error) {
	if err := r.Check(); err != nil {
		return fmt.Errorf("the report is wrong, %s is not written: %w", name, err)
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	_, err = file.Write(append(data, '\n'))
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(file.Name(), 0o644); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}
