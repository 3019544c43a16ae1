package crio

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench/process"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// measurements returns measurements of both flavours in which the patched one
// is worse by known amounts.
func measurements() []Measurement {
	const ms = time.Millisecond
	one := func(flavour cluster.Flavour, extra time.Duration, layers int, rss int64) Measurement {
		return Measurement{
			Flavour:    flavour,
			FirstLists: []time.Duration{100*ms + 2*extra},
			Lists:      []time.Duration{10*ms + extra, 11*ms + extra, 90*ms + extra},
			ListCPU:    9*ms + extra/2,
			Layers:     layers,
			Memory:     process.Memory{RSS: rss, Anonymous: rss / 2},
			Pulls:      []time.Duration{500*ms + extra},
			Bare:       []time.Duration{3*ms + extra/2},
			Shared:     PullAtOnce{Bytes: 500e6 - int64(extra/ms)*62e6, Took: time.Second},
			Apart:      []PullAtOnce{{Took: time.Second + 2*extra}},
		}
	}
	return []Measurement{
		one(cluster.Stock, 0, 0, 60<<20),
		one(cluster.Patched, 5*ms, 10_000, 64<<20),
		one(cluster.Patched, 5*ms, 10_000, 64<<20),
		one(cluster.Stock, 0, 0, 60<<20),
	}
}

func TestSummary(t *testing.T) {
	s := (&Result{Measurements: measurements()}).Summary()
	if got, want := s.AddedPerLayer(), 500*time.Nanosecond; got != want {
		t.Errorf("added per layer: got %s, want %s", got, want)
	}
	if got, want := s.AddedCPUPerLayer(), 250*time.Nanosecond; got != want {
		t.Errorf("added processor time per layer: got %s, want %s", got, want)
	}
	if got, want := s.Stock.ListP99, 90*time.Millisecond; got != want {
		t.Errorf("p99: got %s, want %s", got, want)
	}
	var out strings.Builder
	if err := s.Write(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	want := "list_images stock_ms=11.000 patched_ms=16.000 added_us_per_layer=0.500 list_over_bare=1.185 list_over_bare_spread=0.000 first_ratio=1.100 first_spread=0.000 pull_ratio=1.010 pull_spread=0.000 rss_added_mib=4.0 shared_ratio=0.380 apart_ratio=1.010 apart_spread=0.000"
	if got := lines[len(lines)-1]; got != want {
		t.Errorf("last line: got %q, want %q", got, want)
	}
	if !strings.Contains(out.String(), "goal missed: first_ratio <= 1.05, measured 1.100 ± 0.000") {
		t.Errorf("a missed goal is not named in:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "goal met: pull_ratio <= 1.02, measured 1.010 ± 0.000") {
		t.Errorf("a goal that is met is not named in:\n%s", out.String())
	}
}

func TestRatioOf(t *testing.T) {
	for _, tc := range []struct {
		pairs []float64
		want  Ratio
	}{
		{nil, Ratio{}},
		{[]float64{1.5}, Ratio{Mean: 1.5}},
		{[]float64{1, 1, 1}, Ratio{Mean: 1}},
		{[]float64{0.5, 2}, Ratio{1, 3}}, // each is 2 away, and so is the mean's error
		{[]float64{0.8, 1.25, 0.8, 1.25}, Ratio{1, 0.294}},
	} {
		got := ratioOf(tc.pairs)
		if math.Abs(got.Mean-tc.want.Mean) > 0.001 || math.Abs(got.Spread-tc.want.Spread) > 0.001 {
			t.Errorf("%v: got %v, want %v", tc.pairs, got, tc.want)
		}
	}
}

func TestResultOfTheWrongPrograms(t *testing.T) {
	config := Config{Images: 1000, Layers: 10}
	good := &Result{Config: config, Measurements: measurements()}
	if err := good.check(); err != nil {
		t.Errorf("both as they should be: %v", err)
	}
	for name, change := range map[string]func([]Measurement){
		"stock CRI-O reports":   func(m []Measurement) { m[3].Layers = 1 },
		"patched CRI-O reports": func(m []Measurement) { m[2].Layers = 9_999 },
	} {
		bad := measurements()
		change(bad)
		err := (&Result{Config: config, Measurements: bad}).check()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error with %q, got %v", name, err)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	good := Config{Images: 1, Layers: 1, Rounds: 1, Lists: listsBeforeRSS, Starts: 1}
	if err := good.check(); err != nil {
		t.Errorf("the least of everything: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"images": func(c *Config) { c.Images = 0 },
		"layers": func(c *Config) { c.Layers = 513 },
		"rounds": func(c *Config) { c.Rounds = -1 },
		"lists":  func(c *Config) { c.Lists = listsBeforeRSS - 1 },
		"starts": func(c *Config) { c.Starts = 0 },
	} {
		bad := good
		change(&bad)
		if err := bad.check(); err == nil || !strings.HasPrefix(err.Error(), name+":") {
			t.Errorf("%s: got %v, want an error that names it", name, err)
		}
	}
}
