package startup

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

func at(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func TestMeasure(t *testing.T) {
	t.Parallel()
	plan := &workload.Plan{
		Nodes: []workload.Node{{Name: "n1", MilliCPU: 1000}, {Name: "n2", MilliCPU: 1000}},
		Images: []dataset.Image{
			image("one", layer("base", 60), layer("own-1", 20)),
			image("two", layer("base", 60), layer("own-2", 30), layer("own-2", 30)),
		},
	}
	// In the order of the plan; the third is placed before the second.
	starts := []Start{
		{Image: "one", MilliCPU: 200, Node: "n1", Created: at(0), Placed: at(0.1), Ready: at(4)},
		{Image: "two", MilliCPU: 400, Node: "n1", Created: at(1), Placed: at(3.0), Ready: at(11)},
		{Image: "two", MilliCPU: 200, Node: "n2", Created: at(2), Placed: at(2.1), Ready: at(3)},
	}
	m := measure(plan, starts, 500)
	// n1: base, own-1, own-2; n2: base, own-2.
	if m.Pods != 3 || m.PulledBytes != 500 || m.DiskBytes != 110+90 {
		t.Errorf("%d pods, pulled %d, on disk %d; want 3, 500, 200", m.Pods, m.PulledBytes, m.DiskBytes)
	}
	// Start-up times 1, 4, 10.
	if m.StartupMean != 5 || m.StartupP50 != 4 || m.StartupP99 != 10 {
		t.Errorf("start-up mean %v, p50 %v, p99 %v", m.StartupMean, m.StartupP50, m.StartupP99)
	}
	// Shares after each placement: 0.2 0; 0.2 0.2; 0.6 0.2. Pods: 1 0; 1 1; 2 1.
	if want := (0.1 + 0 + 0.2) / 3; math.Abs(m.CPUStd-want) > 1e-9 {
		t.Errorf("CPU std %v, want %v", m.CPUStd, want)
	}
	if want := (2 + 1 + 2/1.5) / 3; math.Abs(m.MaxMeanPods-want) > 1e-9 {
		t.Errorf("pods max/mean %v, want %v", m.MaxMeanPods, want)
	}
}

// twoRounds returns a result in which stock pulls 1000 and 3000 bytes, ours 500
// each.
func twoRounds() *Result {
	run := func(round int, side Side, pulled int64, seconds ...float64) Turn {
		r := Turn{Round: round, Side: side, Metrics: evaluation.Metrics{PulledBytes: pulled}}
		for _, s := range seconds {
			r.Starts = append(r.Starts, Start{Created: at(10), Ready: at(10 + s)})
		}
		return r
	}
	return &Result{Runs: []Turn{
		run(1, Stock, 1000, 2, 4), run(1, Ours, 500, 1, 1),
		run(2, Ours, 500, 1, 9), run(2, Stock, 3000, 4, 8),
	}}
}

// policy returns a run of the simulator.
func policy(name string, pulled int64) evaluation.Run {
	return evaluation.Run{Policy: name, Metrics: evaluation.Metrics{PulledBytes: pulled}}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	const last = "startup stock_p50_s=4.000 ours_p50_s=1.000 speedup=4.00 bytes_ratio=0.250\n"
	for _, test := range []struct {
		name      string
		simulated []evaluation.Run
		want      []string // the last lines
	}{
		{"not simulated", nil, []string{last}},
		{"as predicted", []evaluation.Run{policy("default", 100), policy("default", 300), policy("layerlocality", 54)}, []string{
			// Stock is 50 % off its mean of 200 in each of its runs; two are measured.
			"goal met: the simulator predicts the ratio of bytes within 10 %; chance alone moves what is measured by 35.4 % (standard deviation)\n",
			"predicted bytes_ratio=0.250 simulated=0.270 error=+8.0%\n", last,
		}},
		{"too few", []evaluation.Run{policy("default", 100), policy("layerlocality", 22)}, []string{
			"goal missed: the simulator predicts the ratio of bytes within 10 %; chance alone moves what is measured by 0.0 % (standard deviation)\n",
			"predicted bytes_ratio=0.250 simulated=0.220 error=-12.0%\n", last,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := twoRounds()
			if test.simulated != nil {
				r.Simulated = &evaluation.Report{Experiments: []evaluation.Experiment{{Runs: test.simulated}}}
			}
			var out bytes.Buffer
			if err := r.Write(&out); err != nil {
				t.Fatal(err)
			}
			if want := strings.Join(test.want, ""); !strings.HasSuffix(out.String(), want) {
				t.Errorf("got\n%s\nwant at the end\n%s", &out, want)
			}
		})
	}
}

// The pods of bursts are those after the first Config.Pods of each run.
func TestWriteBursts(t *testing.T) {
	t.Parallel()
	r := twoRounds()
	r.Config.Pods, r.Config.Bursts, r.Config.BurstPods = 1, 1, 1
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	// Stock's are the pods of 4 and 8 s, ours those of 1 and 9 s.
	if want := " bytes_ratio=0.250 stock_burst_s=6.000 ours_burst_s=5.000 burst_ratio=0.833\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got\n%s\nwant at the end %s", &out, want)
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	half := twoRounds()
	half.Runs = half.of(Stock)
	strange := twoRounds()
	strange.Simulated = &evaluation.Report{Experiments: []evaluation.Experiment{{Runs: []evaluation.Run{policy("default", 1)}}}}
	idle := twoRounds()
	idle.Simulated = &evaluation.Report{Experiments: []evaluation.Experiment{{Runs: []evaluation.Run{policy("default", 0), policy("layerlocality", 0)}}}}
	for name, r := range map[string]*Result{"one side only": half, "another policy": strange, "nothing pulled": idle} {
		if err := r.Write(&bytes.Buffer{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := Config{Rounds: 2, Nodes: 4, Images: 24, Pods: 60, Bytes: 400e6, Interval: time.Second, Bandwidth: 50e6, Exponent: 1, CRIO: cluster.Patched}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"no rounds":       func(c *Config) { c.Rounds = 0 },
		"no pods":         func(c *Config) { c.Pods = 0 },
		"no bandwidth":    func(c *Config) { c.Bandwidth = 0 },
		"no time between": func(c *Config) { c.Interval = 0 },
		"too large":       func(c *Config) { c.Bytes = 1 << 40 },
		"no such CRI-O":   func(c *Config) { c.CRIO = "theirs" },
		"too many bursts": func(c *Config) { c.Bursts = 24 },
	} {
		bad := good
		change(&bad)
		if err := bad.check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
