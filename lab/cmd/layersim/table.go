package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// printTable prints means over the seeds; ratios are ratios of sums, to the first policy in
// the scenario.
func printTable(w io.Writer, e evaluation.Experiment) error {
	type key struct{ scenario, policy string }
	sums := map[key]evaluation.Metrics{}
	count := map[key]float64{}
	var order []key
	for _, r := range e.Runs {
		k := key{r.Scenario, r.Policy}
		if count[k] == 0 {
			order = append(order, k)
		}
		count[k]++
		s := sums[k]
		s.PulledBytes += r.PulledBytes
		s.PeerBytes += r.PeerBytes
		s.DistinctBytes += r.DistinctBytes
		s.StartupMean += r.StartupMean
		s.StartupP99 += r.StartupP99
		s.StartupNew += r.StartupNew
		s.CPUStd += r.CPUStd
		s.MaxMeanPods += r.MaxMeanPods
		s.RemovedBytes += r.RemovedBytes
		s.Unschedulable += r.Unschedulable
		sums[k] = s
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "scenario\tpolicy\tGB\tfrom registry\tof first\tavoided\tmean s\tof first\tp99 s\tnew nodes s\tcpu std\tmax/mean pods\tremoved GB\tno node")
	for _, k := range order {
		s, n := sums[k], count[k]
		var first evaluation.Metrics
		for _, other := range order {
			if other.scenario == k.scenario {
				first = sums[other]
				break
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%.2f\t%.2f\t%.3f\t%.3f\t%.2f\t%.3f\t%.2f\t%.2f\t%.3f\t%.2f\t%.1f\t%.1f\n", k.scenario, k.policy,
			float64(s.PulledBytes)/n/1e9, float64(s.PulledBytes-s.PeerBytes)/n/1e9,
			float64(s.PulledBytes)/float64(first.PulledBytes), s.Avoided(&first),
			s.StartupMean/n, s.StartupMean/first.StartupMean, s.StartupP99/n, s.StartupNew/n, s.CPUStd/n, s.MaxMeanPods/n,
			float64(s.RemovedBytes)/n/1e9, float64(s.Unschedulable)/n)
	}
	return table.Flush()
}
