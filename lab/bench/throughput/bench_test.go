package throughput

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	const result = `{"version": "v1", "dataItems": [
		{"data": {"Average": 270.5, "Perc50": 260}, "unit": "pods/s", "labels": {"Metric": "SchedulingThroughput"}},
		{"data": {"Duration": 37.5}, "unit": "s", "labels": {"Metric": "SchedulingDuration"}},
		{"data": {"Average": 900}, "unit": "ms", "labels": {"Metric": "scheduler_scheduling_attempt_duration_seconds", "result": "error"}},
		{"data": {"Average": 3.5}, "unit": "ms", "labels": {"Metric": "scheduler_scheduling_attempt_duration_seconds", "result": "scheduled"}},
		{"data": {"Average": 0.25}, "unit": "ms", "labels": {"Metric": "scheduler_plugin_execution_duration_seconds", "plugin": "LayerLocality", "extension_point": "Score"}}
	]}`
	dir := func(files ...string) string {
		dir := t.TempDir()
		for i, content := range files {
			if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}

	run := Measurement{Profile: ourProfile}
	if err := run.read(dir(result)); err != nil {
		t.Fatal(err)
	}
	if run.PodsPerSecond != 270.5 || run.Seconds != 37.5 || run.Attempt != 3.5 || run.Plugin["LayerLocality/Score"] != 0.25 {
		t.Errorf("read %+v", run)
	}

	for name, test := range map[string]struct {
		profile string
		files   []string
		want    string
	}{
		"no result":   {ourProfile, nil, "0 results"},
		"not JSON":    {ourProfile, []string{"?"}, "invalid character"},
		"no sample":   {ourProfile, []string{`{"dataItems": []}`}, "no sample"},
		"two results": {ourProfile, []string{result, result}, "2 results"},
	} {
		run := Measurement{Profile: test.profile}
		if err := run.read(dir(test.files...)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		}
	}
}

func TestWrite(t *testing.T) {
	measured := func(workload string, nodes int, profile string, speed float64) Measurement {
		return Measurement{Workload: workload, Profile: profile, Nodes: nodes, Pods: 100, PodsPerSecond: speed, Seconds: 1, CPUSeconds: 0.5, Attempt: 2}
	}
	r := &Result{Measurements: []Measurement{
		measured("Basic", 50, defaultProfile, 100), measured("Basic", 50, ourProfile, 50),
		measured("Basic", 500, defaultProfile, 100), measured("Basic", 500, ourProfile, 120),
		measured("Layers", 500, defaultProfile, 100), measured("Layers", 500, ourProfile, 80),
		measured("Layers", 500, ourProfile, 120), measured("Layers", 500, defaultProfile, 100),
		measured("Layers", 5000, defaultProfile, 100), measured("Layers", 5000, ourProfile, 90), measured("Layers", 5000, extenderProfile, 60),
		measured("Layers", 5000, extenderProfile, 80), measured("Layers", 5000, ourProfile, 90), measured("Layers", 5000, defaultProfile, 100),
		measured(grouped, 5000, defaultProfile, 100), measured(grouped, 5000, ourProfile, 40),
	}}
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range map[int]string{
		0:  "run workload=Basic nodes=50 pods=100 profile=default pods_s=100.0 seconds=1.0 cpu_s=0.5 attempt_ms=2.000",
		2:  "throughput workload=Basic nodes=50 default_pods_s=100.0 ours_pods_s=50.0 ratio=0.500 spread=+Inf rounds=1 default_cpu_ms_pod=5.000 ours_cpu_ms_pod=5.000",
		5:  "throughput workload=Basic nodes=500 default_pods_s=100.0 ours_pods_s=120.0 ratio=1.200 spread=+Inf rounds=1 default_cpu_ms_pod=5.000 ours_cpu_ms_pod=5.000",
		10: "throughput workload=Layers nodes=500 default_pods_s=100.0 ours_pods_s=100.0 ratio=1.000 spread=0.200 rounds=2 default_cpu_ms_pod=5.000 ours_cpu_ms_pod=5.000",
		17: "throughput workload=Layers nodes=5000 profile=extender default_pods_s=100.0 ours_pods_s=70.0 ratio=0.700 spread=0.100 rounds=2 default_cpu_ms_pod=5.000 ours_cpu_ms_pod=5.000",
		18: "throughput workload=Layers nodes=5000 default_pods_s=100.0 ours_pods_s=90.0 ratio=0.900 spread=0.000 rounds=2 default_cpu_ms_pod=5.000 ours_cpu_ms_pod=5.000",
		// The smallest ratio of all but groups, and theirs.
		22: "scheduler_perf default_pods_s=100.0 ours_pods_s=50.0 ratio=0.500 spread=+Inf workload=Basic nodes=50 group_ratio=0.400 group_spread=+Inf",
	} {
		if len(lines) != 24 || lines[i] != want {
			t.Errorf("line %d is not %q in\n%s", i, want, &out)
		}
	}
	if raw, err := json.Marshal(r); err != nil || !strings.HasPrefix(string(raw), `[{"workload":"Basic",`) {
		t.Errorf("as JSON: %v, %s", err, raw)
	}
	out.Reset()
	alone := &Result{Measurements: r.Measurements[len(r.Measurements)-2:]}
	if err := alone.Write(&out); err != nil || !strings.HasSuffix(out.String(), "\nscheduler_perf group_ratio=0.400 group_spread=+Inf\n") {
		t.Errorf("only groups: %v, %s", err, &out)
	}
	out.Reset()
	theirs := func(workload, profile string, speed float64) Measurement {
		m := measured(workload, 0, profile, speed)
		m.Threshold = 70
		return m
	}
	// Both below, only ours, none.
	upstream := &Result{Measurements: []Measurement{
		theirs("misc/a/1", defaultProfile, 60), theirs("misc/a/1", ourProfile, 50), theirs("misc/a/2", defaultProfile, 80), theirs("misc/a/2", ourProfile, 60),
		theirs("misc/a/3", defaultProfile, 60), theirs("misc/a/3", ourProfile, 80),
	}}
	if err := upstream.Write(&out); err != nil || !strings.Contains(out.String(), "\nthroughput workload=misc/a/2 threshold=70 default_pods_s=80.0 ours_pods_s=60.0 ratio=0.750 ") ||
		!strings.HasSuffix(out.String(), "\nscheduler_perf upstream_thresholds=3 only_ours_below=1\n") {
		t.Errorf("upstream's: %v, %s", err, &out)
	}
	if err := (&Result{}).Write(&out); err == nil {
		t.Error("nothing was measured, and there is no error")
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		profiles []string
		want     string
	}{
		{[]string{ourProfile}, ""},
		{[]string{extenderProfile}, ""},
		{[]string{ourProfile, extenderProfile}, ""},
		{[]string{"safe", "packing", "congestion", promisingProfile, promisedProfile}, ""},
		{nil, "--profiles"},
		{[]string{defaultProfile}, "--profiles=default: want some of congestion, extender, layerlocality, packing, qosaware, qosaware-slo, safe"},
		{[]string{"other"}, "--profiles=other"},
		{[]string{ourProfile, ourProfile}, "--profiles=layerlocality,layerlocality"},
	} {
		config := Config{Nodes: []int{50}, Rounds: 1, MaxRounds: 1, Pods: 1, Profiles: c.profiles}
		if err := config.check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.profiles, err, c.want)
		}
	}
	config := Config{Nodes: []int{500, 5000}, Pods: 10000, Profiles: []string{ourProfile, extenderProfile}}
	for _, c := range []struct {
		workload    string
		nodes, pods int
		sides       []string
	}{
		{"Basic", 100, 2000, []string{ourProfile, extenderProfile}},
		{"Basic", 5000, 10000, []string{ourProfile, extenderProfile}},
		{grouped, 5000, 2560, []string{ourProfile}},
		{grouped, 50, 960, nil}, // 1,000 are no whole groups
	} {
		if pods, sides := config.pods(c.workload, c.nodes), config.sides(c.workload, c.nodes); pods != c.pods || !slices.Equal(sides, c.sides) {
			t.Errorf("%s with %d nodes: %d pods, %v", c.workload, c.nodes, pods, sides)
		}
	}
	// What is measured is what is installed.
	for profile, file := range configurations {
		if _, err := os.Stat(filepath.Join("../../..", file)); err != nil {
			t.Errorf("%s: %v", profile, err)
		}
	}
}

func TestUpstream(t *testing.T) {
	folder := t.TempDir()
	for topic, text := range map[string]string{
		"misc": `
- name: Basic
  workloads:
  - {name: small, labels: [short], params: {measurePods: 10}}
  - {name: large, threshold: 270, params: {measurePods: 10000}}
  - {name: of-topics, threshold: {misc: 5}}`,
		"affinity": "- {name: Pod, workloads: [{name: large, threshold: 35.5}]}",
	} {
		if err := os.MkdirAll(filepath.Join(folder, topic), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, topic, "performance-config.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := &benchmark{Config: Config{Nodes: []int{50, 500}, Profiles: []string{ourProfile, extenderProfile}, Workloads: []string{"upstream"}}}
	if err := b.expand(folder); err != nil {
		t.Fatal(err)
	}
	if want := []string{"affinity/Pod/large", "misc/Basic/large"}; !slices.Equal(b.Workloads, want) {
		t.Errorf("%q, want %q", b.Workloads, want)
	}
	if want := map[string]upstreamCase{"affinity/Pod/large": {1, 35.5}, "misc/Basic/large": {10000, 270}}; !maps.Equal(b.upstream, want) {
		t.Errorf("%v, want %v", b.upstream, want)
	}
	for nodes, want := range map[int][]string{50: {ourProfile}, 500: nil} {
		if got := b.sides("misc/Basic/large", nodes); !slices.Equal(got, want) {
			t.Errorf("with %d nodes: %q, want %q", nodes, got, want)
		}
	}
	b.Workloads = []string{"misc/Basic/small"}
	if err := b.expand(folder); err == nil || !strings.Contains(err.Error(), "misc/Basic/small") {
		t.Errorf("a workload without a threshold: %v", err)
	}
	if err := b.expand(t.TempDir()); err == nil {
		t.Error("a folder without workloads, and there is no error")
	}
	b.Workloads = []string{"SchedulingBasic"}
	if err := b.expand(t.TempDir()); err != nil || len(b.Workloads) != 1 {
		t.Errorf("without upstream's: %v, %v", b.Workloads, err)
	}
}
