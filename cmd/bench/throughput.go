package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// throughputCommand measures pods a second with test/bench/throughput.
func throughputCommand() *cobra.Command {
	var b throughputBench
	c := &cobra.Command{
		Use:   "throughput",
		Short: "Pods a second with the default profile and with LayerLocality, by turns (scheduler_perf)",
		Long: `Runs Kubernetes' scheduler_perf by turns with the default profile and with one that
has LayerLocality (weight 4) in the place of ImageLocality: the workload SchedulingBasic,
and the same with nodes that state 50 images and pods of those images. Every run has an
apiserver, an etcd and a scheduler of its own.

The last line is that of the workload with the smaller ratio, at the largest number of
nodes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := c.Flags()
	f.IntSliceVar(&b.nodes, "nodes", []int{5000}, "numbers of nodes to measure with")
	f.StringSliceVar(&b.workloads, "workloads", []string{"SchedulingBasic", "SchedulingLayers"}, "workloads to measure")
	f.IntVar(&b.rounds, "rounds", 2, "rounds; one measures each profile once")
	f.IntVar(&b.pods, "pods", 10000, "pods to place; at most 20 a node")
	f.StringVar(&b.logs, "log-dir", "_out/bench/log-throughput", "folder for logs and the results of scheduler_perf")
	f.StringVar(&b.out, "out", "_out/bench/throughput.json", "file for all that was measured")
	return c
}

// throughputBench is a run of the benchmark.
type throughputBench struct {
	nodes        []int
	workloads    []string
	rounds, pods int
	logs, out    string

	// program is the compiled benchmark, source the folder by which the apiserver
	// in it finds the Kubernetes tree.
	program, source string
}

// The profiles: files of test/bench/throughput.
const (
	defaultProfile = "default"
	ourProfile     = "layerlocality"
)

// throughputRun is one run, and a line of the raw results.
type throughputRun struct {
	Workload string `json:"workload"`
	Profile  string `json:"profile"`
	Nodes    int    `json:"nodes"`
	Pods     int    `json:"pods"`
	// PodsPerSecond is scheduler_perf's: the mean over samples of one second.
	PodsPerSecond float64 `json:"podsPerSecond"`
	// Seconds is the time in which all pods were created and placed.
	Seconds float64 `json:"seconds"`
	// CPUSeconds is the processor time of scheduler, apiserver and etcd for the
	// whole run, with the creation of nodes.
	CPUSeconds float64 `json:"cpuSeconds"`
	// Attempt and Plugin are means in milliseconds: of a scheduling attempt, and
	// of a call of the locality plugin, by extension point. scheduler_perf gives
	// those of calls when it has seen enough of them.
	Attempt float64            `json:"attemptMillis"`
	Plugin  map[string]float64 `json:"pluginMillis"`
}

func (b *throughputBench) run(ctx context.Context, w io.Writer) error {
	if b.rounds < 1 || b.pods < 1 || len(b.nodes) == 0 || slices.Min(b.nodes) < 50 {
		return fmt.Errorf("--nodes=%v --rounds=%d --pods=%d: want at least 50 nodes, and 1 of the others", b.nodes, b.rounds, b.pods)
	}
	dir, err := os.MkdirTemp("", "throughput-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := b.prepare(ctx, dir); err != nil {
		return err
	}
	var runs []throughputRun
	var last string
	for _, nodes := range b.nodes {
		smallest := 0.0
		for _, workload := range b.workloads {
			var measured []throughputRun
			for round := range b.rounds {
				// A B B A: a drift of the machine hits both alike.
				profiles := []string{defaultProfile, ourProfile}
				if round%2 == 1 {
					slices.Reverse(profiles)
				}
				for _, profile := range profiles {
					run, err := b.measure(ctx, throughputRun{Workload: workload, Profile: profile, Nodes: nodes, Pods: min(b.pods, 20*nodes)}, round)
					if err != nil {
						return err
					}
					fmt.Fprintf(w, "run workload=%s nodes=%d pods=%d profile=%s pods_s=%.1f seconds=%.1f cpu_s=%.1f attempt_ms=%.3f\n",
						run.Workload, run.Nodes, run.Pods, run.Profile, run.PodsPerSecond, run.Seconds, run.CPUSeconds, run.Attempt)
					measured = append(measured, run)
				}
			}
			runs = append(runs, measured...)
			if err := writeJSON(b.out, runs); err != nil {
				return err
			}
			of := func(profile string, field func(throughputRun) float64) float64 {
				return meanOf(measured, profile, field)
			}
			speed := func(r throughputRun) float64 { return r.PodsPerSecond }
			cpu := func(r throughputRun) float64 { return 1e3 * r.CPUSeconds / float64(r.Pods) }
			stock, ours := of(defaultProfile, speed), of(ourProfile, speed)
			result := fmt.Sprintf("default_pods_s=%.1f ours_pods_s=%.1f ratio=%.3f", stock, ours, ours/stock)
			fmt.Fprintf(w, "throughput workload=%s nodes=%d %s default_cpu_ms_pod=%.3f ours_cpu_ms_pod=%.3f\n",
				workload, nodes, result, of(defaultProfile, cpu), of(ourProfile, cpu))
			if nodes == slices.Max(b.nodes) && (smallest == 0 || ours/stock < smallest) {
				smallest, last = ours/stock, result
			}
		}
	}
	fmt.Fprintf(w, "scheduler_perf %s\n", last)
	return nil
}

// prepare compiles the benchmark into dir.
func (b *throughputBench) prepare(ctx context.Context, dir string) error {
	workspace, err := schedulerWorkspace(ctx)
	if err != nil {
		return err
	}
	b.program = filepath.Join(dir, "throughput.test")
	fmt.Fprintln(os.Stderr, "compiling scheduler_perf with the plugin: minutes, the first time")
	build, err := goCommand(ctx, workspace, "test", "-c", "-tags", "imagelayers,bench", "-o", b.program, "./test/bench/throughput")
	if err != nil {
		return err
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling test/bench/throughput in %s: %w\n%s", workspace, err, out)
	}
	// The apiserver of the tests looks for files beside its source. Programs built
	// with -trimpath do not know where that is; these variables of Bazel tell.
	b.source = filepath.Join(dir, "src")
	if err := os.MkdirAll(filepath.Join(b.source, "k8s.io"), 0o755); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(workspace, "../../kubernetes"), filepath.Join(b.source, "k8s.io/kubernetes"))
}

// limit is how long one run may take.
const limit = 30 * time.Minute

// measure runs scheduler_perf once.
func (b *throughputBench) measure(ctx context.Context, run throughputRun, round int) (throughputRun, error) {
	name := fmt.Sprintf("%s-%d-%s-%d", run.Workload, run.Nodes, run.Profile, round)
	logs, err := filepath.Abs(filepath.Join(b.logs, name))
	if err != nil {
		return run, err
	}
	if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(logs, 0o755)); err != nil {
		return run, err
	}
	tools, err := filepath.Abs("_build/bin/tools")
	if err != nil {
		return run, err
	}
	data, err := layerData()
	if err != nil {
		return run, err
	}
	log, err := os.Create(filepath.Join(logs, "log"))
	if err != nil {
		return run, err
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	program := exec.CommandContext(ctx, b.program, "-test.run=^$", "-test.bench=.", "-test.benchtime=1ns",
		"-workload", run.Workload, "-profile", run.Profile, "-nodes", strconv.Itoa(run.Nodes),
		"-initial-pods", strconv.Itoa(max(1, run.Pods/10)), "-pods", strconv.Itoa(run.Pods), "-data-items-dir", logs)
	program.Dir = logs
	program.Env = append(os.Environ(), data, "ARTIFACTS="+logs, "TMPDIR="+filepath.Dir(b.program), "PATH="+tools+":"+os.Getenv("PATH"),
		"TEST_SRCDIR="+filepath.Dir(b.source), "TEST_WORKSPACE="+filepath.Base(b.source))
	program.Stdout, program.Stderr = log, log
	// Its etcd goes with it, and what that stored with the folder.
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	program.Cancel = func() error { return syscall.Kill(-program.Process.Pid, syscall.SIGKILL) }
	if err := program.Run(); err != nil {
		return run, fmt.Errorf("%s: %w; see %s", name, err, log.Name())
	}
	run.CPUSeconds = (program.ProcessState.UserTime() + program.ProcessState.SystemTime()).Seconds()
	if err := run.read(logs); err != nil {
		return run, fmt.Errorf("%s: %w; see %s", name, err, log.Name())
	}
	return run, nil
}

// read takes the results that scheduler_perf wrote.
func (r *throughputRun) read(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	if len(files) != 1 {
		return fmt.Errorf("%d results of scheduler_perf, want 1", len(files))
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	var results struct {
		DataItems []struct {
			Data   map[string]float64 `json:"data"`
			Labels map[string]string  `json:"labels"`
		} `json:"dataItems"`
	}
	if err := json.Unmarshal(data, &results); err != nil {
		return fmt.Errorf("%s: %w", files[0], err)
	}
	r.Plugin = map[string]float64{}
	for _, item := range results.DataItems {
		switch item.Labels["Metric"] {
		case "SchedulingThroughput":
			r.PodsPerSecond = item.Data["Average"]
		case "SchedulingDuration":
			r.Seconds = item.Data["Duration"]
		case "scheduler_scheduling_attempt_duration_seconds":
			if item.Labels["result"] == "scheduled" {
				r.Attempt = item.Data["Average"]
			}
		case "scheduler_plugin_execution_duration_seconds":
			r.Plugin[item.Labels["plugin"]+"/"+item.Labels["extension_point"]] = item.Data["Average"]
		}
	}
	if r.PodsPerSecond == 0 {
		return errors.New("scheduler_perf took no sample: more pods are needed")
	}
	return nil
}

func meanOf(runs []throughputRun, profile string, field func(throughputRun) float64) float64 {
	var sum, n float64
	for _, run := range runs {
		if run.Profile == profile {
			sum += field(run)
			n++
		}
	}
	return sum / n
}
