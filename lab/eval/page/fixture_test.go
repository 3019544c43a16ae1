package page

import (
	"math"
	"math/rand/v2"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// fixture is a report with an experiment of every shape. Its numbers are made
// up, with a seed: they look real but mean nothing.
func fixture(hostile string) *evaluation.Report {
	random := rand.New(rand.NewPCG(1, 2))
	// Bytes relative to default, and standard deviation of CPU.
	policies := []struct {
		name       string
		bytes, cpu float64
	}{
		{"default", 1, 0.06},
		{"imagelocality-full", 0.71, 0.085},
		{"image-name", 0.6, 0.11},
		{"prototype", 0.58, 0.13},
		{"lrscheduler", 0.44, 0.12},
		{"layerlocality-no-resolver", 0.61, 0.09},
		{"layerlocality", 0.37, 0.1},
		{"greedy", 0.35, 0.17},
		{"layerlocality-no-arriving", 0.41, 0.1},
		{hostile, 0.8, 0.1},
	}
	run := func(scenario string, x float64, seed uint64, policy string, bytes, cpu float64) evaluation.Run {
		noise := func() float64 { return 1 + 0.04*random.NormFloat64() }
		// Default's bytes differ much between seeds, ratios do not.
		pulled := 250e9 * (1 + 0.2*float64(seed)) * bytes * noise()
		m := evaluation.Metrics{
			Pods: 1000, PulledBytes: int64(pulled), CPUStd: cpu * noise(), MaxMeanPods: 1 + 4*cpu*noise(),
			DiskBytes: int64(180e9 * math.Sqrt(bytes) * noise()), RemovedBytes: int64(pulled / 3), Seconds: 2 * noise(),
			StartupMean: 12 * bytes * noise(), StartupP50: 8 * bytes * noise(), StartupP99: 90 * bytes * noise(),
			DistinctBytes: int64(50e9 * (1 + 0.2*float64(seed))),
		}
		return evaluation.Run{Scenario: scenario, Policy: policy, X: x, Seed: seed, Metrics: m}
	}
	const seeds = 5
	var plain, zipf, links, weights []evaluation.Run
	for i, scenario := range []string{"10 nodes, single pods", "10 nodes, ReplicaSets", "rolling updates, 1 replica", "burst of 30 pods", hostile} {
		for _, p := range policies {
			for seed := range uint64(seeds) {
				plain = append(plain, run(scenario, 0, seed, p.name, math.Pow(p.bytes, 1-float64(i)/6), p.cpu))
			}
		}
	}
	for _, p := range policies[:8] {
		for seed := range uint64(seeds) {
			for _, x := range []float64{0, 0.6, 1, 1.4} {
				for _, scenario := range []string{"10 nodes", "50 nodes"} {
					zipf = append(zipf, run(scenario, x, seed, p.name, math.Pow(p.bytes, 1.3-x/2), p.cpu))
				}
			}
			for _, x := range []float64{10, 50, 200, 1000} {
				links = append(links, run("10 nodes", x, seed, p.name, p.bytes, p.cpu))
			}
			for _, scenario := range []string{"single pods", "ReplicaSets"} {
				if p.name != "lrscheduler" && p.name != "layerlocality" {
					weights = append(weights, run(scenario, 0, seed, p.name, p.bytes, p.cpu))
					continue
				}
				for _, weight := range []float64{1, 2, 4, 8, 16, 32} {
					weights = append(weights, run(scenario, weight, seed, p.name, p.bytes*(0.9+1/weight), p.cpu*(0.7+0.1*math.Log2(weight))))
				}
			}
		}
	}
	command := func(name string) string {
		return "layersim --experiment " + name + " --seeds 5 --data images.jsonl"
	}
	return &evaluation.Report{
		Version: "v0.0.0-test", Data: "generated: 976 images", Command: "make eval LAYER_DATA=images.jsonl",
		Experiments: []evaluation.Experiment{
			{Name: "overview", Title: "What does it save?", Text: "1,000 pods on 10 nodes, Zipf exponent 1, 20 GB of disk. " + hostile, Command: command("overview"), Runs: plain},
			{Name: "frontier", Title: "What does it cost in balance?", Text: "The same workload with different weights of the plugin.", Command: command("frontier"), Axis: "weight", Runs: weights},
			{Name: "zipf", Title: "How skewed must popularity be?", Text: "Pods use images by a Zipf distribution.", Command: command("zipf"), Axis: "Zipf exponent", Runs: zipf},
			{Name: "links", Title: "Do fast links make it pointless?", Text: "Links of different bandwidth.", Command: command("links"), Axis: "Mbit/s", Runs: links},
			{Name: "nothing", Title: "An experiment that was not run", Text: "No runs."},
		},
	}
}

const hostileName = "</script><script>alert(1)</script>"
