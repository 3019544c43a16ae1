package prefetch

import (
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/scenario"
)

// The last line is the one that results quote: means of all rounds, beside the default profile and beside LayerLocality alone, first those
// of a moved tag.
func TestWrite(t *testing.T) {
	r := &Result{Runs: []Turn{
		{Side: Stock, Update: MovedTag, Startups: []float64{8, 10}, Nodes: scenario.Bytes{"n1": 50e6, "n2": 50e6}},
		{Side: Stock, Update: NewTemplate, Startups: []float64{10}, Nodes: scenario.Bytes{"n1": 80e6}},
		{Side: Ours, Update: MovedTag, Startups: []float64{7}, Nodes: scenario.Bytes{"n1": 100e6}},
		{Side: Ours, Update: NewTemplate, Startups: []float64{7}, Nodes: scenario.Bytes{"n1": 80e6}},
		{Side: Prefetch, Update: MovedTag, Startups: []float64{3}, Nodes: scenario.Bytes{"n1": 110e6}, MovedBytes: 60e6, UsedBytes: 60e6},
		{Side: Prefetch, Update: NewTemplate, Startups: []float64{6}, Nodes: scenario.Bytes{"n1": 80e6}, MovedBytes: 60e6, UsedBytes: 60e6},
		{Side: Prefetch, Update: MovedTag, Startups: []float64{6}, Nodes: scenario.Bytes{"n1": 100e6}, MovedBytes: 40e6, UsedBytes: 20e6},
		{Side: Ours, Update: MovedTag, Startups: []float64{7}, Nodes: scenario.Bytes{"n1": 100e6}},
		{Side: Stock, Update: MovedTag, Startups: []float64{9}, Nodes: scenario.Bytes{"n1": 100e6}},
	}}
	var text strings.Builder
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"tag       default        9.0 s          100 MB  0 %\n", "tag       prefetch       4.5 s          105 MB  20 %\n", "template  prefetch       6.0 s          80 MB   0 %\n",
		"\nprefetch start_ratio=0.50 bytes_ratio=1.05 wasted=0.20 template_start_ratio=0.60 template_bytes_ratio=1.00 template_wasted=0.00\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s\nhas not %q", text.String(), want)
		}
	}
}
