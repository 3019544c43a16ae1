package peers

import (
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/scenario"
)

// The last line is the one that results quote: means of all rounds, beside LayerLocality alone.
func TestWrite(t *testing.T) {
	r := &Result{Runs: []Turn{
		{Side: Alone, New: []float64{8, 12}, Held: []float64{10}, Burst: []float64{10, 30}, Nodes: scenario.Bytes{"n1": 50e6, "n2": 150e6}},
		{Side: Peers, New: []float64{10.1}, Held: []float64{2}, Burst: []float64{12}, Nodes: scenario.Bytes{"n1": 60e6}},
		{Side: Peers, New: []float64{10.1}, Held: []float64{4}, Burst: []float64{14}, Nodes: scenario.Bytes{"n2": 80e6}},
		{Side: Alone, New: []float64{10}, Held: []float64{10}, Burst: []float64{20}, Nodes: scenario.Bytes{"n1": 200e6}},
	}}
	var text strings.Builder
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"layerlocality  10.00 s           10.00 s           20.0 s      20.0 s  30.0 s  200 MB\n",
		"peers          10.10 s           3.00 s            13.0 s      12.0 s  14.0 s  70 MB\n",
		"\npeers registry_ratio=0.35 burst_ratio=0.65 single_ratio=1.01\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s\nhas not %q", text.String(), want)
		}
	}
}
