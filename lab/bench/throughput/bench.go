// Package throughput measures pods a second with Kubernetes' scheduler_perf.
// The package in the folder perf uses scheduler_perf for a benchmark of this
// project. It is compiled against the patched Kubernetes; runs alternate
// between the default profile and LayerLocality, or a default scheduler that
// asks layer-extender.
package throughput

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Nodes are the numbers of nodes of the clusters, each at least 50.
	Nodes []int
	// Workloads are names of workloads in perf, and of upstream's.
	Workloads []string
	// Profiles are measured beside the default one: names of configurations.
	Profiles []string
	// Rounds is how often each profile is measured at least. It goes on until the Spread
	// is at most MaxSpread, up to MaxRounds.
	Rounds, MaxRounds int
	MaxSpread         float64
	// Pods to place, at most podsPerNode per node.
	Pods int
	// LogDir gets logs and the results of scheduler_perf, in a folder for each
	// run.
	LogDir string
}

// podsPerNode limits the number of pods, so that all can be placed.
const podsPerNode = 20

// grouped is the workload of pod groups. Each of a group's pods is tried in each of the racks, so there are fewer of them.
const (
	grouped         = "SchedulingGroups"
	podsPerGroup    = 64
	mostGroupedPods = 40 * podsPerGroup
)

// sides returns the profiles that a workload is measured with beside the default one: pod groups with LayerLocality, in
// the largest cluster.
func (c *Config) sides(workload string, nodes int) []string {
	switch {
	case ofUpstream(workload) && nodes != c.Nodes[0]: // it has its own numbers of nodes
		return nil
	case ofUpstream(workload): // and its own pods, which state no SLO
		return slices.DeleteFunc(slices.Clone(c.Profiles), func(profile string) bool { return profile == extenderProfile || profile == promisedProfile })
	case workload != grouped:
		return c.Profiles
	case nodes == slices.Max(c.Nodes) && slices.Contains(c.Profiles, ourProfile):
		return []string{ourProfile}
	}
	return nil
}

// pods returns how many a workload places.
func (c *Config) pods(workload string, nodes int) int {
	n := min(c.Pods, podsPerNode*nodes)
	if workload == grouped {
		return max(1, min(n, mostGroupedPods)/podsPerGroup) * podsPerGroup
	}
	return n
}

func (c *Config) check() error {
	if c.Rounds < 1 || c.MaxRounds < c.Rounds || c.Pods < 1 || len(c.Nodes) == 0 || slices.Min(c.Nodes) < 50 {
		return fmt.Errorf("--nodes=%v --rounds=%d --max-rounds=%d --pods=%d: want at least 50 nodes, 1 of the others, and not less rounds at most than at least",
			c.Nodes, c.Rounds, c.MaxRounds, c.Pods)
	}
	for i, profile := range c.Profiles {
		if profile == defaultProfile || configurations[profile] == "" || slices.Contains(c.Profiles[:i], profile) {
			return fmt.Errorf("--profiles=%s: want some of %s", strings.Join(c.Profiles, ","), strings.Join(Profiles(), ", "))
		}
	}
	if len(c.Profiles) == 0 {
		return fmt.Errorf("--profiles: want some of %s", strings.Join(Profiles(), ", "))
	}
	return nil
}

// The profiles.
const (
	defaultProfile  = "default"
	ourProfile      = "layerlocality"
	extenderProfile = "extender"
	// The same profile with pods that state no SLO, and with pods that do.
	promisingProfile = "qosaware"
	promisedProfile  = "qosaware-slo"
)

// sloWorkloads is how many workloads there are in which all pods state an SLO.
const sloWorkloads = 500

// Profiles returns the names of those that can be measured beside the default one.
func Profiles() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(configurations)), func(name string) bool { return name == defaultProfile })
}

// configurations are the files with the profiles. Those of LayerLocality and layer-extender
// are what is installed; QosAware takes the place of PrioritySort and DefaultPreemption, the
// others are the default profile with one plugin more.
var configurations = map[string]string{
	defaultProfile:   "lab/bench/throughput/default.yaml",
	ourProfile:       "deploy/scheduler/default-scheduler/config.yaml",
	extenderProfile:  "deploy/extender/distributions/kubeadm/scheduler.yaml",
	promisingProfile: "lab/bench/throughput/qosaware.yaml",
	promisedProfile:  "lab/bench/throughput/qosaware.yaml",
	"safe":           "lab/bench/throughput/safe.yaml",
	"packing":        "lab/bench/throughput/packing.yaml",
	"congestion":     "lab/bench/throughput/congestion.yaml",
}

// extender is the program that the scheduler asks with extenderProfile.
const extender = "_build/bin/patched/layer-extender"

// Result is everything that was measured, in order. Encoded as JSON, it holds
// the measurements.
type Result struct {
	Measurements []Measurement
}

// MarshalJSON returns the measurements.
func (r *Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.Measurements) }

// Measurement is one run of scheduler_perf.
type Measurement struct {
	Workload string `json:"workload"`
	Profile  string `json:"profile"`
	// Nodes of the cluster, 0 for those of a workload of upstream's, and pods that were placed.
	Nodes int `json:"nodes"`
	Pods  int `json:"pods"`
	// Threshold is that of upstream for PodsPerSecond of the default scheduler, if there is one.
	Threshold float64 `json:"threshold,omitempty"`
	// PodsPerSecond is scheduler_perf's figure: the mean over samples of one
	// second.
	PodsPerSecond float64 `json:"podsPerSecond"`
	// Seconds is the time in which all pods were created and placed.
	Seconds float64 `json:"seconds"`
	// CPUSeconds is the processor time of scheduler, apiserver, etcd and
	// layer-extender for the whole run, including the creation of nodes.
	CPUSeconds float64 `json:"cpuSeconds"`
	// Attempt and Plugin are means in milliseconds: of a scheduling attempt, and
	// of a call of the locality plugin, by extension point. scheduler_perf reports
	// means of calls only if it has seen enough of them.
	Attempt float64            `json:"attemptMillis"`
	Plugin  map[string]float64 `json:"pluginMillis"`
}

// Run compiles scheduler_perf with the plugin and runs it. If a run fails, the
// Result has the runs before it.
func Run(ctx context.Context, config Config) (*Result, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "throughput-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &benchmark{Config: config}
	if err := b.prepare(ctx, dir); err != nil {
		return nil, err
	}
	result := &Result{}
	for _, nodes := range b.Nodes {
		for _, workload := range b.Workloads {
			first, sides := len(result.Measurements), b.sides(workload, nodes)
			if len(sides) == 0 {
				continue
			}
			least, most := b.Rounds, b.MaxRounds
			if ofUpstream(workload) { // there are many
				least, most = 1, 1
			}
			for round := 0; round < least || round < most && mostSpread(result.Measurements[first:], sides) > b.MaxSpread; round++ {
				for _, profile := range bench.InTurns(round, append([]string{defaultProfile}, sides...)) {
					of := Measurement{Workload: workload, Profile: profile, Nodes: nodes, Pods: b.pods(workload, nodes)}
					if theirs, ok := b.upstream[workload]; ok {
						of.Nodes, of.Pods, of.Threshold = 0, theirs.pods, theirs.threshold
					}
					m, err := b.measure(ctx, of, round)
					if err != nil {
						if len(result.Measurements) == 0 {
							return nil, err
						}
						return result, err
					}
					b.Logf("round %d, %s, %d nodes, %s: %.1f pods a second", round+1, workload, nodes, profile, m.PodsPerSecond)
					result.Measurements = append(result.Measurements, m)
				}
			}
		}
	}
	return result, nil
}

// benchmark is a running benchmark.
type benchmark struct {
	Config
	// program is the compiled benchmark. source is the folder through which the
	// apiserver in it finds the Kubernetes tree.
	program, source string
	// upstream are scheduler_perf's own workloads, by name, if they are measured.
	upstream map[string]upstreamCase
}

// prepare compiles the benchmark into dir.
func (b *benchmark) prepare(ctx context.Context, dir string) error {
	if slices.Contains(b.Profiles, extenderProfile) {
		if _, err := os.Stat(extender); err != nil {
			return fmt.Errorf("%w: build it with 'scripts/build.sh patched layer-extender'", err)
		}
	}
	workspace, err := bench.SchedulerWorkspace(ctx)
	if err != nil {
		return err
	}
	b.program = filepath.Join(dir, "throughput.test")
	b.Logf("compiling scheduler_perf with the plugin: minutes, the first time")
	build, err := bench.GoCommand(ctx, workspace, "test", "-c", "-tags", "imagelayers,bench", "-o", b.program, "./lab/bench/throughput/perf")
	if err != nil {
		return err
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling lab/bench/throughput/perf in %s: %w\n%s", workspace, err, out)
	}
	// The apiserver of the tests looks for files beside its source. Programs built
	// with -trimpath do not have its location, so it is set through variables of
	// Bazel.
	b.source = filepath.Join(dir, "src")
	if err := os.MkdirAll(filepath.Join(b.source, "k8s.io"), 0o755); err != nil {
		return err
	}
	tree := filepath.Join(workspace, "../../kubernetes")
	if err := b.expand(filepath.Join(tree, "test/integration/scheduler_perf")); err != nil {
		return err
	}
	return os.Symlink(tree, filepath.Join(b.source, "k8s.io/kubernetes"))
}

// limit is how long one run may take.
const limit = 30 * time.Minute

// measure runs scheduler_perf once.
func (b *benchmark) measure(ctx context.Context, m Measurement, round int) (Measurement, error) {
	name := fmt.Sprintf("%s-%d-%s-%d", strings.ReplaceAll(m.Workload, "/", "-"), m.Nodes, m.Profile, round)
	logs, err := filepath.Abs(filepath.Join(b.LogDir, name))
	if err != nil {
		return m, err
	}
	if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(logs, 0o755)); err != nil {
		return m, err
	}
	tools, err := filepath.Abs("_build/bin/tools")
	if err != nil {
		return m, err
	}
	data, err := bench.LayerData()
	if err != nil {
		return m, err
	}
	config, err := filepath.Abs(configurations[m.Profile])
	if err != nil {
		return m, err
	}
	log, err := os.Create(filepath.Join(logs, "log"))
	if err != nil {
		return m, err
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := []string{"-test.run=^$", "-test.bench=.", "-test.benchtime=1ns",
		"-workload", m.Workload, "-profile", m.Profile, "-config", config, "-nodes", strconv.Itoa(m.Nodes),
		"-initial-pods", strconv.Itoa(max(1, m.Pods/10)), "-pods", strconv.Itoa(m.Pods), "-data-items-dir", logs}
	if m.Profile == extenderProfile {
		path, err := filepath.Abs(extender)
		if err != nil {
			return m, err
		}
		args = append(args, "-extender", path)
	}
	if m.Profile == promisedProfile {
		args = append(args, "-slo-workloads", strconv.Itoa(sloWorkloads))
	}
	program := exec.CommandContext(ctx, b.program, args...)
	program.Dir = logs
	program.Env = append(os.Environ(), data, "ARTIFACTS="+logs, "TMPDIR="+filepath.Dir(b.program), "PATH="+tools+":"+os.Getenv("PATH"),
		"TEST_SRCDIR="+filepath.Dir(b.source), "TEST_WORKSPACE="+filepath.Base(b.source))
	program.Stdout, program.Stderr = log, log
	// Its etcd and layer-extender are killed with it, and etcd's data is removed with the folder.
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	program.Cancel = func() error { return syscall.Kill(-program.Process.Pid, syscall.SIGKILL) }
	err = program.Run()
	if program.Process != nil {
		_ = syscall.Kill(-program.Process.Pid, syscall.SIGKILL) // what it left, if it failed half way
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w; see %s", name, err, log.Name())
	}
	m.CPUSeconds = (program.ProcessState.UserTime() + program.ProcessState.SystemTime()).Seconds()
	if err := m.read(logs); err != nil {
		return m, fmt.Errorf("%s: %w; see %s", name, err, log.Name())
	}
	return m, nil
}

// read reads the results that scheduler_perf wrote.
func (m *Measurement) read(dir string) error {
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
	m.Plugin = map[string]float64{}
	for _, item := range results.DataItems {
		switch item.Labels["Metric"] {
		case "SchedulingThroughput":
			m.PodsPerSecond = item.Data["Average"]
		case "SchedulingDuration":
			m.Seconds = item.Data["Duration"]
		case "scheduler_scheduling_attempt_duration_seconds":
			if item.Labels["result"] == "scheduled" {
				m.Attempt = item.Data["Average"]
			}
		case "scheduler_plugin_execution_duration_seconds":
			m.Plugin[item.Labels["plugin"]+"/"+item.Labels["extension_point"]] = item.Data["Average"]
		}
	}
	if m.PodsPerSecond == 0 {
		return errors.New("scheduler_perf took no sample: more pods are needed")
	}
	return nil
}
