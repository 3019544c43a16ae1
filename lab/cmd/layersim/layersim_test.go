package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

func needsLayers(t *testing.T) {
	t.Helper()
	if err := nodestatus.NeedLayers(); err != nil {
		t.Skip(err)
	}
}

// execute runs the program with generated images, and returns what it printed.
func execute(ctx context.Context, t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	for _, name := range []string{dataset.Env, dataset.HistoryEnv, dataset.MovesEnv} {
		t.Setenv(name, "")
	}
	c := command()
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetArgs(args)
	err = c.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

func read(t *testing.T, name string) *evaluation.Report {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r := &evaluation.Report{}
	if err := json.Unmarshal(data, r); err != nil {
		t.Fatal(err)
	}
	for i := range r.Experiments {
		for j := range r.Experiments[i].Runs {
			r.Experiments[i].Runs[j].Seconds = 0
		}
	}
	return r
}

func onlyFile(t *testing.T, folder string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
}

func TestEval(t *testing.T) {
	needsLayers(t)
	out := filepath.Join(t.TempDir(), "new", "report.json")
	args := []string{"eval", "--size", "small", "--seeds", "1", "--out"}
	stdout, stderr, err := execute(t.Context(), t, append(args, out, "--experiments", "manifest-delay,frontier-balance")...)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stdout, " pods/s\n") || !strings.HasSuffix(stdout, out+"\n") {
		t.Errorf("printed %q, want the speed and the file", stdout)
	}
	// Not a terminal: progress is printed as lines.
	if strings.Contains(stderr, "\r") || !strings.Contains(stderr, "1/2 frontier-balance: 5 of 5 runs\n") || !strings.Contains(stderr, "2/2 manifest-delay: 8 of 8 runs\n") {
		t.Errorf("progress %q", stderr)
	}
	onlyFile(t, filepath.Dir(out), "report.json")
	report := read(t, out)
	if err := report.Check(); err != nil {
		t.Error(err)
	}
	if len(report.Experiments) != 2 || report.Version != version || !strings.Contains(report.Data, "generated") {
		t.Fatalf("%d experiments, version %q, data %q", len(report.Experiments), report.Version, report.Data)
	}

	// The command of an experiment repeats it alone.
	for _, e := range report.Experiments {
		alone := filepath.Join(t.TempDir(), "alone.json")
		again, ok := strings.CutPrefix(e.Command, "layersim ")
		if !ok {
			t.Fatalf("command %q", e.Command)
		}
		if _, _, err := execute(t.Context(), t, append(strings.Fields(again), "--out", alone)...); err != nil {
			t.Fatalf("%s: %v", e.Command, err)
		}
		if got := read(t, alone).Experiments; len(got) != 1 || !reflect.DeepEqual(got[0], e) {
			t.Errorf("%s: not the same experiment again", e.Command)
		}
	}
}

func TestRepeatNamesFiles(t *testing.T) {
	c := evalCommand()
	if err := c.ParseFlags([]string{"--data", "a.jsonl", "--seeds", "3", "--as-of", "2016-12-01"}); err != nil {
		t.Fatal(err)
	}
	for want, names := range map[string][]string{
		"layersim eval --experiments zipf,disk --seeds 3 --size full --data a.jsonl --as-of 2016-12-01T00:00:00Z": {"zipf", "disk"},
		"layersim eval --seeds 3 --size full --data a.jsonl --as-of 2016-12-01T00:00:00Z":                         nil,
	} {
		if got := repeat(c.Flags(), names...); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestRun(t *testing.T) {
	needsLayers(t)
	folder := t.TempDir()
	a := workload.Zipf(1)
	a.Nodes, a.Pods = 2, 10
	plan, err := newPlan(a)
	if err != nil {
		t.Fatal(err)
	}
	file, out := filepath.Join(folder, "plan.json"), filepath.Join(folder, "report.json")
	if err := os.WriteFile(file, plan, 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _, err := execute(t.Context(), t, "run", "--plan", file, "--policies", "default,greedy", "--seeds", "1", "--out", out)
	if err != nil {
		t.Fatal(err)
	}
	runs := read(t, out).Experiments[0].Runs
	if len(runs) != 2 || runs[0].Pods != 10 || runs[0].Scenario != "plan.json" {
		t.Errorf("runs %+v", runs)
	}
	for _, want := range []string{"plan.json  default", "plan.json  greedy", "2 runs, 20 pods in "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
}

func newPlan(a workload.Arrivals) ([]byte, error) {
	layer := dataset.Layer{Digest: "sha256:" + strings.Repeat("a", 64), Size: 5e6}
	plan, err := a.Plan(rand.New(rand.NewPCG(1, 1)), []dataset.Image{{Image: "app:1", Layers: []dataset.Layer{layer}}})
	if err != nil {
		return nil, err
	}
	return json.Marshal(plan)
}

func TestErrors(t *testing.T) {
	folder := t.TempDir()
	out := filepath.Join(folder, "report.json")
	for want, args := range map[string][]string{
		`experiment "none": want one of policies, `: {"eval", "--out", out, "--experiments", "none"},
		`experiment "": want one of policies, `:     {"eval", "--out", out, "--experiments", `""`},
		`size "huge": want one of [small full]`:     {"eval", "--out", out, "--size", "huge"},
		`scenario "none": want one of zipf-0, `:     {"run", "--out", out, "--scenarios", "none"},
		`as of 1999-12-31: no tag points to `:       {"run", "--out", out, "--as-of", "1999-12-31"},
		`policy "none": want one of default, `:      {"run", "--out", out, "--policies", "none"},
		`experiment policies: 0 seeds, `:            {"eval", "--out", out, "--seeds", "0"},
		`scenario none, seed 1: open `:              {"run", "--out", out, "--plan", filepath.Join(folder, "none"), "--seeds", "1"},
	} {
		if _, _, err := execute(t.Context(), t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
	onlyFile(t, folder)
}

func TestBuildWithoutLayers(t *testing.T) {
	if nodestatus.Layers {
		t.Skip("this build sees layers: the main module's tests look at the other one")
	}
	_, _, err := execute(t.Context(), t, "eval", "--size", "small", "--seeds", "1", "--out", filepath.Join(t.TempDir(), "r.json"))
	if err == nil || !strings.Contains(err.Error(), "-tags imagelayers") {
		t.Errorf("got %v", err)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	folder := t.TempDir()
	_, _, err := execute(ctx, t, "eval", "--size", "small", "--out", filepath.Join(folder, "r.json"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	onlyFile(t, folder)
}

func TestList(t *testing.T) {
	stdout, _, err := execute(t.Context(), t, "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"EXPERIMENT", "frontier-balance", "SCENARIO", "rolling-4-apart", "POLICY", "lrscheduler-live"} {
		if !strings.Contains(stdout, "\n"+name+" ") && !strings.HasPrefix(stdout, name+" ") {
			t.Errorf("%s is not listed:\n%s", name, stdout)
		}
	}
}

// An existing file stays until a complete and valid report replaces it.
func TestWriteReport(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "report.json")
	if err := writeReport(name, &evaluation.Report{Version: "one"}); err != nil {
		t.Fatal(err)
	}
	wrong := &evaluation.Report{Version: "two", Experiments: []evaluation.Experiment{{}}}
	if err := writeReport(name, wrong); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("wrong report: %v", err)
	}
	if got := read(t, name).Version; got != "one" {
		t.Errorf("version %q is there", got)
	}
	if err := writeReport(name, &evaluation.Report{Version: "three"}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, name).Version; got != "three" {
		t.Errorf("version %q is there", got)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// A folder cannot be replaced: no temporary file is left.
	if err := os.Mkdir(filepath.Join(folder, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(filepath.Join(folder, "folder"), &evaluation.Report{}); err == nil {
		t.Error("a folder was replaced")
	}
	onlyFile(t, folder, "folder", "report.json")
}

func TestBar(t *testing.T) {
	draw := func(terminal bool, all, until int) string {
		var out bytes.Buffer
		b := newBar(&out, "zipf")
		b.redraw = nil
		if terminal {
			b.redraw = func(line string) { out.WriteString("\r" + line) }
		}
		for done := range until {
			b.show(done+1, all)
		}
		b.end()
		return out.String()
	}
	if got := draw(false, 100, 25); got != "zipf: 10 of 100 runs\nzipf: 20 of 100 runs\n" {
		t.Errorf("no terminal: %q", got)
	}
	if got := draw(false, 3, 3); got != "zipf: 1 of 3 runs\nzipf: 2 of 3 runs\nzipf: 3 of 3 runs\n" {
		t.Errorf("no terminal, few: %q", got)
	}
	// A following error is on its own line.
	if got := draw(true, 3, 2); strings.Count(got, "\r") != 2 || strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "] 2 of 3 runs\n") {
		t.Errorf("terminal: %q", got)
	}
	if got := draw(true, 3, 0); got != "" {
		t.Errorf("nothing done: %q", got)
	}
}
