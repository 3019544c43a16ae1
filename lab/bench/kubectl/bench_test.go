package kubectl

import (
	"strings"
	"testing"
)

// The last line is for scripts; medians and the most memory count.
func TestWrite(t *testing.T) {
	r := &Result{Config: Config{Nodes: 5000}, Runs: []Run{
		{Command: "nodes", Seconds: []float64{3, 1.5, 1}, Processors: []float64{3, 1, 2}, RSSMiB: 300}, {Command: "node", Seconds: []float64{.25}, Processors: []float64{.2}, RSSMiB: 50},
		{Command: "plan", Seconds: []float64{1.5}, Processors: []float64{6}, RSSMiB: 350}, {Command: "why", Seconds: []float64{.5}, Processors: []float64{.1}, RSSMiB: 60}, {Command: alone, Seconds: []float64{3}, Processors: []float64{1}, RSSMiB: 60}, {Command: forgotten, Seconds: []float64{9}, Processors: []float64{7}, RSSMiB: 401},
	}}
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	const want = `nodes                  1.50 s (goal 2: met),  2.00 s of processors,  300 MiB
node                   0.25 s (goal 0.5: met),  0.20 s of processors,   50 MiB
plan                   1.50 s (goal 1: missed),  6.00 s of processors,  350 MiB
why                    0.50 s (goal 0.3: missed),  0.10 s of processors,   60 MiB
plan, alone            3.00 s (goal 4: met),  1.00 s of processors,   60 MiB
why, not remembered    9.00 s (no goal),  7.00 s of processors,  401 MiB
memory  401 MiB (goal 200: missed)
kubectl_layers nodes=5000 nodes_s=1.50 node_s=0.25 plan_s=1.50 why_s=0.50 plan_alone_s=3.00 rss_mib=401
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}
