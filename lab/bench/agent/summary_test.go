package agent

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench/process"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

func times(ms ...int) (all []time.Duration) {
	for _, n := range ms {
		all = append(all, time.Duration(n)*time.Millisecond)
	}
	return all
}

// The last line has, of each figure, that of the worse node.
func TestWrite(t *testing.T) {
	r := &Result{
		Config: Config{Images: 1000, Idle: 100 * time.Second},
		Nodes: []*Node{
			{
				Runtime: cluster.Containerd, Agent: true, First: times(400, 300, 350), Lists: times(10, 20, 30), CRI: times(8, 10, 12), Without: times(500, 600, 700), With: times(660, 630, 650),
				Seen: times(1300, 1400), Gone: times(1200), Burst: times(5000), BurstGone: times(5000, 8100), Status: times(20_000),
				Reader: process.Memory{RSS: 20 << 20, Anonymous: 5 << 20}, Publisher: process.Memory{RSS: 15 << 20}, Idle: 100 * time.Millisecond,
			},
			{
				Runtime: cluster.CRIO, Agent: true, First: times(12), Lists: times(2), CRI: times(4), Without: times(500), With: times(505),
				Seen: times(1500, 3100), Gone: times(1250, 2900), Burst: times(6400), BurstGone: times(6000), Status: times(30_000),
				Reader: process.Memory{RSS: 16 << 20}, Publisher: process.Memory{RSS: 15 << 20}, Idle: 250 * time.Millisecond,
			},
		},
	}
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	const want = "agent images=1000 first_ms=350 list_ms=20.0 list_ratio=2.00 rss_mib=35.0 seen_p50_ms=1400 seen_p99_ms=3100 pull_ratio=1.083 idle_mcpu=2.50"
	if got := lines[len(lines)-1]; got != want {
		t.Errorf("last line: got %q, want %q", got, want)
	}
	for _, want := range []string{
		"goal met: first_ms <= 1000, measured 350.000", "goal met: list_ratio <= 2, measured 2.000", "goal missed: seen_p99_ms <= 3000, measured 3100.000",
		"goal met: seen_p99_ms of a burst <= 6500, measured 6400.000", "goal missed: pull_ratio <= 1.02, measured 1.083", "goal missed: idle_mcpu",
		"goal met: gone_p99_ms <= 3000, measured 2900.000", "goal missed: gone_p99_ms of a burst <= 8000, measured 8100.000",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, &out)
		}
	}
	if want := "counted once (MiB) 20.0 16.0 "; !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
		t.Errorf("it lacks %q:\n%s", want, &out)
	}
}

// The pulls of a node without an agent are in the table, and count for no goal.
func TestNodeWithoutAgent(t *testing.T) {
	r := &Result{
		Config: Config{Images: 1000, Idle: time.Minute},
		Nodes: []*Node{
			{Runtime: cluster.Containerd, Without: times(500), With: times(800)},
			{Runtime: cluster.CRIO, Agent: true, First: times(12), Without: times(500), With: times(505)},
		},
	}
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`containerd, no agent +crio\n`, `\n +first reading \(ms\) +- +12\n`, `\n +ratio +1\.600 +1\.010\n`, `\ngoal met: pull_ratio <= 1\.02, measured 1\.010\n`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("it lacks %q:\n%s", want, &out)
		}
	}
}

// More pulls make the error of the ratio smaller, and pulls that differ make it larger.
func TestRatioError(t *testing.T) {
	node := func(repeat int, ms ...int) *Node {
		all := slices.Repeat(times(ms...), repeat)
		return &Node{With: all, Without: all}
	}
	if e := node(4, 100, 100, 100, 100).ratioError(); e != 0 {
		t.Errorf("equal pulls: %v", e)
	}
	// Quartiles of 90 and 110: 0.929 * 20 / 100 / √20 of each median.
	twenty := node(4, 80, 90, 100, 110, 120).ratioError()
	if twenty < 0.058 || twenty > 0.059 {
		t.Errorf("20 pulls: %v", twenty)
	}
	if more := node(16, 80, 90, 100, 110, 120).ratioError(); math.Abs(more-twenty/2) > 1e-9 {
		t.Errorf("80 pulls: %v, 20 pulls: %v", more, twenty)
	}
	if e := (&Node{}).ratioError(); e != 0 {
		t.Errorf("no pulls: %v", e)
	}
}

// What an agent logs of its readings.
func TestReadings(t *testing.T) {
	const line = `I1124 06:00:00.000000       1 loop.go:157] "Read" images=1000 took="325.1ms"` + "\n"
	got, err := readings(line+"I1124 something else\n"+strings.Replace(line, `1000 took="325.1ms"`, `1001 took="950µs"`, 1), 1000)
	if err != nil || len(got) != 2 || got[0] != 325100*time.Microsecond || got[1] != 950*time.Microsecond {
		t.Errorf("%v, %v", got, err)
	}
	for why, log := range map[string]string{
		"read 1 times": line, "read 0 times": "", "read 999 images": line + strings.Replace(line, "1000", "999", 1), "duration": line + strings.Replace(line, "ms", "", 1),
	} {
		if got, err := readings(log, 1000); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v", why, got, err)
		}
	}
}

func TestCheck(t *testing.T) {
	good := Config{Images: 1, Layers: 1, Rounds: 1, Pulls: 1, Changes: 1, Burst: 1, Idle: time.Second, Agents: []string{"cri-o"}}
	if err := good.check(); err != nil {
		t.Errorf("the least of everything: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"--images": func(c *Config) { c.Images = 0 }, "--layers": func(c *Config) { c.Layers = 101 }, "--rounds": func(c *Config) { c.Rounds = 0 },
		"--pulls": func(c *Config) { c.Pulls = 0 }, "--changes": func(c *Config) { c.Changes = 31 }, "--burst": func(c *Config) { c.Burst = 0 }, "--idle": func(c *Config) { c.Idle = 0 },
		"--agents": func(c *Config) { c.Agents = nil },
	} {
		bad := good
		change(&bad)
		if err := bad.check(); err == nil || !strings.HasPrefix(err.Error(), name+"=") {
			t.Errorf("%s: got %v, want an error that names it", name, err)
		}
	}
	good.Agents = []string{"cri-o", "crio"}
	if err := good.check(); err == nil || !strings.HasPrefix(err.Error(), "--agents=cri-o,crio: want some of containerd, cri-o") {
		t.Error(err)
	}
}
