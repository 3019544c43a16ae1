package startup

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// goalError is how far the simulated ratio of bytes may be from the measured
// one.
const goalError = 0.10

// measure computes the metrics of a run.
func measure(plan *workload.Plan, starts []Start, pulled int64) evaluation.Metrics {
	m := evaluation.Metrics{Pods: len(starts), PulledBytes: pulled, DiskBytes: needed(plan, starts)}
	m.SetBalance(balance(plan.Nodes, starts))
	m.SetStartups(startups(starts))
	return m
}

// startups returns the times from creation to readiness in seconds.
func startups(starts []Start) []float64 {
	seconds := make([]float64, 0, len(starts))
	for _, s := range starts {
		seconds = append(seconds, (s.Ready - s.Created).Seconds())
	}
	return seconds
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// needed returns the bytes of the different layers in the images of each node's
// pods, summed over all nodes.
func needed(plan *workload.Plan, starts []Start) int64 {
	images := map[string]dataset.Image{}
	for _, image := range plan.Images {
		images[image.Image] = image
	}
	type copied struct {
		node  string
		layer dataset.Layer
	}
	seen := map[copied]bool{}
	var sum int64
	for _, s := range starts {
		for _, layer := range images[s.Image].Layers {
			if c := (copied{s.Node, layer}); !seen[c] {
				seen[c] = true
				sum += layer.Size
			}
		}
	}
	return sum
}

// balance returns the balance over the moments after each placement.
func balance(nodes []workload.Node, starts []Start) (b evaluation.Balance) {
	number := map[string]int{}
	for i, node := range nodes {
		number[node.Name] = i
	}
	loads := make([]evaluation.Load, len(nodes))
	for _, s := range slices.SortedFunc(slices.Values(starts), func(a, b Start) int { return cmp.Compare(a.Placed, b.Placed) }) {
		i := number[s.Node]
		loads[i].CPU += float64(s.MilliCPU) / float64(nodes[i].MilliCPU)
		loads[i].Pods++
		b.Add(loads)
	}
	return b
}

// of returns the runs of a side.
func (r *Result) of(side Side) []Turn {
	return slices.DeleteFunc(slices.Clone(r.Runs), func(run Turn) bool { return run.Side != side })
}

// pulled returns the mean number of bytes that a side pulled in a run.
func (r *Result) pulled(side Side) float64 {
	var bytes []float64
	for _, run := range r.of(side) {
		bytes = append(bytes, float64(run.PulledBytes))
	}
	return mean(bytes)
}

// ratio returns the ratio of bytes pulled, ours to stock.
func (r *Result) ratio() float64 { return r.pulled(Ours) / r.pulled(Stock) }

// simulated returns the runs of a side in the simulator.
func (r *Result) simulated(side Side) []evaluation.Run {
	var runs []evaluation.Run
	for _, experiment := range r.Simulated.Experiments {
		for _, run := range experiment.Runs {
			if run.Policy == string(side) {
				runs = append(runs, run)
			}
		}
	}
	return runs
}

func describe(m *evaluation.Metrics) string {
	return fmt.Sprintf("%.0f MB pulled, start-up %.1f s (mean), %.1f s (p50), %.1f s (p99), CPU std %.3f",
		float64(m.PulledBytes)/1e6, m.StartupMean, m.StartupP50, m.StartupP99, m.CPUStd)
}

// Write writes a table, the simulator's results for the same plan if they were
// requested, and a line of key=value pairs. Start-up times of a side are over
// the pods of all its runs.
func (r *Result) Write(w io.Writer) error {
	for _, side := range Sides {
		if len(r.of(side)) == 0 {
			return fmt.Errorf("%s was not measured", side)
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "round\t\tstart-up, s: mean\tp50\tp99\tMB pulled\tof it twice\tCPU std\tpods max/mean\t")
	row := func(round string, side Side, m *evaluation.Metrics) {
		fmt.Fprintf(table, "%s\t%s\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.3f\t%.2f\t\n", round, side, m.StartupMean, m.StartupP50, m.StartupP99,
			float64(m.PulledBytes)/1e6, float64(m.PulledBytes-m.DiskBytes)/1e6, m.CPUStd, m.MaxMeanPods)
	}
	for i := range r.Runs {
		row(fmt.Sprint(r.Runs[i].Round), r.Runs[i].Side, &r.Runs[i].Metrics)
	}
	pooled := map[Side]evaluation.Metrics{}
	for _, side := range Sides {
		m := r.pool(side)
		pooled[side] = m
		row("all", side, &m)
	}
	if r.Simulated != nil {
		for _, side := range Sides {
			runs := r.simulated(side)
			if len(runs) == 0 {
				return fmt.Errorf("the simulator's report has no run of the policy %s", side)
			}
			m := average(runs)
			row("simulated", side, &m)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	ratio := r.ratio()
	if r.Simulated != nil {
		if err := r.writePrediction(w, ratio); err != nil {
			return err
		}
	}
	burst := ""
	if r.Config.Bursts > 0 {
		stock, ours := r.burstStartup(Stock), r.burstStartup(Ours)
		burst = fmt.Sprintf(" stock_burst_s=%.3f ours_burst_s=%.3f burst_ratio=%.3f", stock, ours, ours/stock)
	}
	stock, ours := pooled[Stock].StartupP50, pooled[Ours].StartupP50
	_, err := fmt.Fprintf(w, "startup stock_p50_s=%.3f ours_p50_s=%.3f speedup=%.2f bytes_ratio=%.3f%s\n", stock, ours, stock/ours, ratio, burst)
	return err
}

// burstStartup returns the mean start-up of the pods of bursts, which are the last of a plan, over all runs of a side.
func (r *Result) burstStartup(side Side) float64 {
	var seconds []float64
	for _, run := range r.of(side) {
		seconds = append(seconds, startups(run.Starts[r.Config.Pods:])...)
	}
	return mean(seconds)
}

func (r *Result) writePrediction(w io.Writer, ratio float64) error {
	// variance is the relative variance of the measured ratio: decisions depend on
	// chance, and a side is measured only a few times.
	var bytes [2]float64
	var variance float64
	for i, side := range Sides {
		runs := r.simulated(side)
		bytes[i] = float64(average(runs).PulledBytes)
		for _, run := range runs {
			off := float64(run.PulledBytes)/bytes[i] - 1
			variance += off * off / float64(len(runs)) / float64(len(r.of(side)))
		}
	}
	simulated := bytes[1] / bytes[0]
	if !(simulated > 0) || math.IsInf(simulated, 0) {
		return errors.New("the simulator pulls nothing: is it the same plan?")
	}
	deviation := simulated/ratio - 1
	verdict := "met"
	if math.Abs(deviation) > goalError {
		verdict = "missed"
	}
	fmt.Fprintf(w, "goal %s: the simulator predicts the ratio of bytes within %.0f %%; chance alone moves what is measured by %.1f %% (standard deviation)\n",
		verdict, 100*goalError, 100*math.Sqrt(variance))
	_, err := fmt.Fprintf(w, "predicted bytes_ratio=%.3f simulated=%.3f error=%+.1f%%\n", ratio, simulated, 100*deviation)
	return err
}

// pool returns the metrics over all runs of a side: start-up times over all
// pods, means of the rest.
func (r *Result) pool(side Side) evaluation.Metrics {
	var starts []Start
	var runs []evaluation.Run
	for _, run := range r.of(side) {
		starts = append(starts, run.Starts...)
		runs = append(runs, evaluation.Run{Metrics: run.Metrics})
	}
	m := average(runs)
	m.SetStartups(startups(starts))
	return m
}

// average returns the means of the metrics that are shown.
func average(runs []evaluation.Run) evaluation.Metrics {
	of := func(value func(*evaluation.Metrics) float64) float64 {
		var values []float64
		for i := range runs {
			values = append(values, value(&runs[i].Metrics))
		}
		return mean(values)
	}
	return evaluation.Metrics{
		StartupMean: of(func(m *evaluation.Metrics) float64 { return m.StartupMean }),
		StartupP50:  of(func(m *evaluation.Metrics) float64 { return m.StartupP50 }),
		StartupP99:  of(func(m *evaluation.Metrics) float64 { return m.StartupP99 }),
		PulledBytes: int64(of(func(m *evaluation.Metrics) float64 { return float64(m.PulledBytes) })),
		DiskBytes:   int64(of(func(m *evaluation.Metrics) float64 { return float64(m.DiskBytes) })),
		CPUStd:      of(func(m *evaluation.Metrics) float64 { return m.CPUStd }),
		MaxMeanPods: of(func(m *evaluation.Metrics) float64 { return m.MaxMeanPods }),
	}
}
