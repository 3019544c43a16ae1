package resolver

import (
	"strings"
	"testing"
	"time"
)

// result returns a result of 100 images resolved in half a second, with that
// many requests and MiB.
func result(requests int, peak int64) *Result {
	return &Result{Config: Config{Images: 100}, Rows: []Row{
		{
			Resolve: Phase{FirstRequest: 100 * time.Millisecond, Done: 500 * time.Millisecond, Requests: Requests{Pings: 1, Gets: requests - 1}, Writes: map[string]int{"POST": 100}},
			Confirm: Phase{Done: time.Second, PeakRSS: peak << 20}, Latencies: []time.Duration{3, 1, 2, 4},
		},
		// Not the row that counts.
		{Tokens: true, Resolve: Phase{Done: time.Hour, PeakRSS: 1 << 40}, Confirm: Phase{Done: time.Hour}, Latencies: []time.Duration{1}},
	}}
}

func TestWrite(t *testing.T) {
	for _, tc := range []struct {
		result *Result
		want   []string
	}{
		{result(201, 99), []string{
			"goal met: images_s >= 200", "goal met: requests_per_image <= 2.1", "goal met: rss_mib <= 150", "goal missed: with tokens images_s >= 150",
			"resolver images=100 images_s=200.0 requests_per_image=2.0100 rss_mib=99.0",
		}},
		{result(250, 151), []string{
			"goal met: images_s", "goal missed: requests_per_image", "goal missed: rss_mib", "goal missed: with tokens",
			"resolver images=100 images_s=200.0 requests_per_image=2.5000 rss_mib=151.0",
		}},
	} {
		var b strings.Builder
		if err := tc.result.Write(&b); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) < 5 {
			t.Fatalf("%q", lines)
		}
		for i, got := range lines[len(lines)-5:] {
			if !strings.HasPrefix(got, tc.want[i]) {
				t.Errorf("line %q, want %q", got, tc.want[i])
			}
		}
	}
	flooded := result(201, 99)
	flooded.Flood = &Flood{Left: 3, Objects: 1999, PeakRSS: 301 << 20, Honest: []time.Duration{time.Second, 5001 * time.Millisecond}}
	var b strings.Builder
	if err := flooded.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"goal met: flood_objects < 2000", "goal missed: flood_rss_mib < 300", "goal missed: honest_s <= 5", "goal missed: objects left = 0, measured 3",
		"rss_mib=99.0 flood_objects=1999 flood_rss_mib=301.0 honest_s=5.00\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q lacks %q", b.String(), want)
		}
	}
	many := result(1, 399)
	many.Config.Images = 50_000
	b.Reset()
	if err := many.Write(&b); err != nil || !strings.Contains(b.String(), "goal met: rss_mib <= 400, measured 399.0") {
		t.Errorf("%v, %q lacks the goal for many images", err, b.String())
	}
	if err := (&Result{}).Write(&strings.Builder{}); err == nil {
		t.Error("nothing was measured, without an error")
	}
}

func TestMedian(t *testing.T) {
	values := []time.Duration{3, 1, 2, 4}
	if got := median(values); got != 2 || values[0] != 3 {
		t.Errorf("median %d of %d", got, values)
	}
}

// The end is compared with the time after the first ten sixtieths; what comes before that, while the API server starts
// again, and what a process had that began later, do not count.
func TestGrowth(t *testing.T) {
	r := TenantsResult{Config: TenantsConfig{Duration: time.Hour}, RSS: map[string][]Sample{
		"a":       {{5 * time.Minute, 500}, {11 * time.Minute, 80}, {12 * time.Minute, 130}},
		"b":       {{5 * time.Minute, 500}, {17 * time.Minute, 100}, {19 * time.Minute, 900}, {49 * time.Minute, 900}, {50 * time.Minute, 110}, {60 * time.Minute, 105}},
		"a-again": {{13 * time.Minute, 10}, {55 * time.Minute, 90}},
	}}
	if got := r.growth(); got < .099 || got > .101 {
		t.Errorf("it has grown by %.3f, want 0.1", got)
	}
	if got := (&TenantsResult{Config: r.Config}).growth(); got == got {
		t.Errorf("without samples it has grown by %.3f", got)
	}
}
