package suite

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

func TestMain(m *testing.M) {
	metrics.Register()
	os.Exit(m.Run())
}

// needsLayers skips a test that plays something, in a build that cannot.
func needsLayers(t *testing.T) {
	t.Helper()
	if err := nodestatus.NeedLayers(); err != nil {
		t.Skip(err)
	}
}

func load(t *testing.T, f Files) *Data {
	t.Helper()
	d, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The page can show all experiments, and every workload can be drawn.
func TestExperiments(t *testing.T) {
	d := load(t, Files{})
	for _, extent := range Extents() {
		names := map[string]bool{}
		for _, e := range Experiments(extent) {
			if e.Name == "" || names[e.Name] || e.Title == "" || e.Text == "" {
				t.Errorf("%s: experiment %q, title %q, text %q: want all, and no name twice", extent, e.Name, e.Title, e.Text)
			}
			names[e.Name] = true
			if len(e.Cases) == 0 {
				t.Errorf("%s %s: nothing to play", extent, e.Name)
			}
			compared := map[string]bool{}
			report := evaluation.Report{Experiments: []evaluation.Experiment{e.Experiment}}
			for _, c := range e.Cases {
				p, err := c.Scenario.Plan(rand.New(rand.NewPCG(1, 0)), d)
				if err != nil {
					t.Errorf("%s %s: %s at %v: %v", extent, e.Name, c.Scenario.Name, c.X, err)
				} else if err := p.Validate(); err != nil {
					t.Errorf("%s %s: %s at %v: %v", extent, e.Name, c.Scenario.Name, c.X, err)
				}
				for _, policy := range c.Policies {
					report.Experiments[0].Runs = append(report.Experiments[0].Runs, evaluation.Run{Scenario: c.Scenario.Name, Policy: policy.Name, X: c.X})
					if policy.Name == "default" {
						compared[c.Scenario.Name] = true
					}
				}
			}
			for _, c := range e.Cases {
				if !compared[c.Scenario.Name] {
					t.Errorf("%s %s: no default policy in scenario %s to compare with", extent, e.Name, c.Scenario.Name)
				}
			}
			if err := report.Check(); err != nil {
				t.Errorf("%s: %v", extent, err)
			}
		}
	}
}

// Values on an axis reach the workload or the model.
func TestAxes(t *testing.T) {
	d := load(t, Files{})
	of := map[string]func(c *Case, p *workload.Plan) float64{
		"bandwidth":      func(_ *Case, p *workload.Plan) float64 { return p.Nodes[0].Link * 8 / 1e6 },
		"long":           func(_ *Case, p *workload.Plan) float64 { return float64(len(p.Events)) },
		"nodes":          func(_ *Case, p *workload.Plan) float64 { return float64(len(p.Nodes)) },
		"disk":           func(_ *Case, p *workload.Plan) float64 { return float64(p.Nodes[0].Disk) / 1e9 },
		"lag":            func(c *Case, _ *workload.Plan) float64 { return c.Model.ImageRefresh.Seconds() },
		"manifest-delay": func(c *Case, _ *workload.Plan) float64 { return c.Model.ManifestDelay.Seconds() },
		"pulls":          func(c *Case, _ *workload.Plan) float64 { return float64(c.Model.Pulls) },
		"frontier":       func(c *Case, _ *workload.Plan) float64 { return float64(c.Policies[0].Weight) },
	}
	for name, value := range of {
		found, err := FindExperiments([]string{name}, Full)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range found[0].Cases {
			p, err := c.Scenario.Plan(rand.New(rand.NewPCG(1, 0)), d)
			if err != nil {
				t.Fatal(err)
			}
			if got := value(&c, p); got != c.X {
				t.Errorf("%s: X is %v, the workload has %v", name, c.X, got)
			}
		}
	}
}

// Generated images share as much as the axis states.
func TestSharing(t *testing.T) {
	found, err := FindExperiments([]string{"sharing"}, Small)
	if err != nil {
		t.Fatal(err)
	}
	shares := map[float64]float64{}
	for _, c := range found[0].Cases {
		p, err := c.Scenario.Plan(rand.New(rand.NewPCG(1, 0)), nil)
		if err != nil {
			t.Fatal(err)
		}
		images := map[string]int{}
		for _, image := range p.Images {
			for _, l := range image.Layers {
				images[l.Digest]++
			}
		}
		var shared, all int64
		for _, image := range p.Images {
			for _, l := range image.Layers {
				all += l.Size
				if images[l.Digest] > 1 {
					shared += l.Size
				}
			}
		}
		shares[c.X] = float64(shared) / float64(all)
	}
	if shares[0] != 0 || shares[0.7] < 0.4 {
		t.Errorf("shares of bytes by X: %v, want 0 at 0, and much at 0.7", shares)
	}
}

func TestUnknownNames(t *testing.T) {
	for name, find := range map[string]func() error{
		`scenario "zipf-2": want one of zipf-0, zipf-0.6, `:         func() error { _, err := Find([]string{"zipf-1", "zipf-2"}, Size{}); return err },
		`experiment "nothing": want one of policies, frontier, `:    func() error { _, err := FindExperiments([]string{"zipf", "nothing"}, Full); return err },
		`size "large": want one of [small full]`:                    func() error { _, err := FindExperiments([]string{"zipf"}, "large"); return err },
		`history "h", moves "": one is of no use without the other`: func() error { _, err := Load(Files{History: "h"}); return err },
	} {
		if err := find(); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("got %v, want %s", err, name)
		}
	}
}

func TestFindKeepsOrder(t *testing.T) {
	scenarios, err := Find([]string{"rolling-1", "zipf-1"}, Size{})
	if err != nil || len(scenarios) != 2 || scenarios[0].Name != "rolling-1" || scenarios[1].Name != "zipf-1" {
		t.Errorf("scenarios: %v, %v", scenarios, err)
	}
	if all, err := FindExperiments(nil, Small); err != nil || len(all) != len(Experiments(Small)) {
		t.Errorf("%d experiments without names, %v", len(all), err)
	}
	experiments, err := FindExperiments([]string{"disk", "policies"}, Small)
	if err != nil || len(experiments) != 2 || experiments[0].Name != "policies" || experiments[1].Name != "disk" {
		t.Errorf("experiments: %v, %v", experiments, err)
	}
}

func TestLoad(t *testing.T) {
	write := func(name string, lines ...any) string {
		file := filepath.Join(t.TempDir(), name)
		var text []byte
		for _, line := range lines {
			encoded, err := json.Marshal(line)
			if err != nil {
				t.Fatal(err)
			}
			text = append(append(text, encoded...), '\n')
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	id := "sha256:" + strings.Repeat("a", 64)
	image := dataset.Image{Image: "app:1", Aliases: []string{"app:latest"}, ImageID: id, Layers: []dataset.Layer{{Digest: id, Size: 5}}}
	images := write("images.jsonl", image)
	d := load(t, Files{Images: images})
	if len(d.Images) != 2 || d.Images[0].Image != "app:1" || d.Images[1].Image != "app:latest" || d.Images[1].Layers[0] != image.Layers[0] {
		t.Errorf("images: %+v, want one of each name", d.Images)
	}
	if len(d.History.Moves) == 0 || d.Source != "images.jsonl; for rolling updates generated ones" {
		t.Errorf("%d moves, from %q", len(d.History.Moves), d.Source)
	}
	move := dataset.Move{Time: time.Unix(0, 0).UTC(), Tag: "app:1", ImageID: id}
	d = load(t, Files{Images: images, History: images, Moves: write("moves.jsonl", move)})
	if len(d.History.Images) != 1 || len(d.History.Moves) != 1 || d.Source != "images.jsonl; for rolling updates images.jsonl and moves.jsonl" {
		t.Errorf("history %+v, from %q", d.History, d.Source)
	}
	if _, err := Load(Files{Images: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// A history is a data set at each of its moments, also a generated one.
func TestLoadAsOf(t *testing.T) {
	begin := time.Date(2016, 9, 9, 0, 0, 0, 0, time.UTC)
	first, last := load(t, Files{AsOf: begin}), load(t, Files{AsOf: begin.Add(1000 * 24 * time.Hour)})
	if len(first.Images) < generated || len(first.Images) != len(last.Images) || first.Source != "generated ones as of 2016-09-09" {
		t.Errorf("%d images at first, %d at last, from %q", len(first.Images), len(last.Images), first.Source)
	}
	moved := 0
	for i, image := range first.Images {
		if image.ImageID != last.Images[i].ImageID {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no tag has moved in 500 days")
	}
	if _, err := Load(Files{AsOf: begin.Add(-time.Hour)}); err == nil || !strings.Contains(err.Error(), "as of 2016-09-08: no tag points to an image") {
		t.Errorf("before the first image: %v", err)
	}
}

// The policy of the history is another one, and only where it differs.
func TestHistories(t *testing.T) {
	found, err := FindExperiments([]string{"bursts"}, Full)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found[0].Cases {
		_, before, ok := strings.Cut(c.Scenario.Name, " after ")
		if !ok {
			t.Fatalf("scenario %s", c.Scenario.Name)
		}
		for _, p := range c.Policies {
			if p.History == nil != (p.Name == before) || p.History != nil && p.History.Name != before {
				t.Errorf("%s: %s comes after %+v", c.Scenario.Name, p.Name, p.History)
			}
		}
	}
}

// tiny is a plan of some pods on two nodes.
func tiny(t *testing.T) Scenario {
	t.Helper()
	a := workload.Zipf(1)
	a.Nodes, a.Pods = 2, 5
	images := dataset.Generate(rand.New(rand.NewPCG(1, 1)), 20)
	return Scenario{Name: "tiny", Plan: func(r *rand.Rand, _ *Data) (*workload.Plan, error) { return a.Plan(r, images) }}
}

func TestBuildWithoutLayers(t *testing.T) {
	if nodestatus.Layers {
		t.Skip("this build sees layers: the main module's tests look at the other one")
	}
	e := Experiment{Experiment: evaluation.Experiment{Name: "e"}, Cases: []Case{{Scenario: tiny(t), Policies: sim.Policies(), Model: sim.DefaultModel()}}}
	_, err := Play(t.Context(), e, nil, 1, 1, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "experiment e: scenario tiny, seed 1: ") || !strings.Contains(err.Error(), "-tags imagelayers") {
		t.Errorf("got %v", err)
	}
}

// Every policy of every experiment has settings that kube-scheduler accepts.
func TestPolicies(t *testing.T) {
	needsLayers(t)
	var all []sim.Policy
	seen := map[string]bool{}
	for _, extent := range Extents() {
		for _, e := range Experiments(extent) {
			for _, c := range e.Cases {
				for _, p := range c.Policies {
					if p.Name += " " + p.Args; !seen[p.Name] {
						seen[p.Name] = true
						all = append(all, p)
					}
				}
			}
		}
	}
	e := Experiment{Cases: []Case{{Scenario: tiny(t), Policies: all, Model: sim.DefaultModel()}}}
	result, err := Play(t.Context(), e, nil, 1, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, run := range result.Runs {
		if run.Policy != all[i].Name || run.Pods != 5 || run.Unschedulable != 0 {
			t.Errorf("policy %s: %+v", all[i].Name, run)
		}
	}
}

func TestPlayIsDeterministic(t *testing.T) {
	needsLayers(t)
	d := load(t, Files{})
	found, err := FindExperiments([]string{"frontier-balance"}, Small)
	if err != nil {
		t.Fatal(err)
	}
	e := found[0]
	play := func(parallel int) evaluation.Experiment {
		calls := 0
		result, err := Play(t.Context(), e, d, 2, parallel, func(done, all int) {
			if calls++; done != calls || done > all {
				t.Errorf("call %d has %d of %d", calls, done, all)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if calls != len(result.Runs) {
			t.Errorf("%d calls, %d runs", calls, len(result.Runs))
		}
		for i := range result.Runs {
			result.Runs[i].Seconds = 0
		}
		return result
	}
	first := play(1)
	if again := play(4); !reflect.DeepEqual(first, again) {
		t.Error("another result with 4 runs at the same time")
	}
	next := 0
	for _, c := range e.Cases {
		for seed := uint64(1); seed <= 2; seed++ {
			for _, p := range c.Policies {
				run := first.Runs[next]
				if run.Scenario != c.Scenario.Name || run.X != c.X || run.Seed != seed || run.Policy != p.Name || run.Pods == 0 {
					t.Errorf("run %d is %s at %v with seed %d by %s of %d pods", next, run.Scenario, run.X, run.Seed, run.Policy, run.Pods)
				}
				next++
			}
		}
	}
}

func TestPlayWithFewerSeeds(t *testing.T) {
	needsLayers(t)
	one := Case{Scenario: tiny(t), Policies: named("default"), Model: sim.DefaultModel(), Seeds: 1}
	all := one
	all.Scenario.Name, all.Seeds = "all", 0
	result, err := Play(t.Context(), Experiment{Cases: []Case{one, all}}, nil, 3, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	seeds := map[string]int{}
	for _, run := range result.Runs {
		seeds[run.Scenario]++
	}
	if seeds["tiny"] != 1 || seeds["all"] != 3 {
		t.Errorf("runs by scenario: %v", seeds)
	}
}

// After the first error no further run begins.
func TestPlayEndsOnError(t *testing.T) {
	broken := errors.New("no images left")
	drawn := 0
	e := Experiment{Experiment: evaluation.Experiment{Name: "e"}}
	for _, name := range []string{"first", "second", "third"} {
		e.Cases = append(e.Cases, Case{
			Scenario: Scenario{Name: name, Plan: func(*rand.Rand, *Data) (*workload.Plan, error) {
				drawn++
				return nil, broken
			}},
			Policies: named("default", "greedy"),
		})
	}
	progress := func(int, int) { t.Error("progress without a run") }
	_, err := Play(t.Context(), e, nil, 3, 1, progress)
	if !errors.Is(err, broken) || err.Error() != "experiment e: scenario first, seed 1: no images left" {
		t.Errorf("got %v", err)
	}
	if drawn != 1 {
		t.Errorf("%d workloads drawn after the error", drawn-1)
	}

	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Play(interrupted, e, nil, 1, 2, progress); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if drawn != 1 {
		t.Error("workloads drawn though interrupted")
	}
	for _, n := range [][2]int{{0, 1}, {1, 0}} {
		if _, err := Play(t.Context(), e, nil, n[0], n[1], nil); err == nil || !strings.Contains(err.Error(), "want at least one of both") {
			t.Errorf("%d seeds, %d at the same time: %v", n[0], n[1], err)
		}
	}
}

// A policy with a wrong setting fails before anything runs.
func TestPlayRefusesSettings(t *testing.T) {
	needsLayers(t)
	e := Experiment{Cases: []Case{{Scenario: tiny(t), Policies: named("layerlocality:speed=9"), Model: sim.DefaultModel()}}}
	if _, err := Play(t.Context(), e, nil, 1, 1, nil); err == nil || !strings.Contains(err.Error(), "speed") {
		t.Errorf("got %v", err)
	}
}
