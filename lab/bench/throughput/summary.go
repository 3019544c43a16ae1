package throughput

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Write writes a line for each measurement, a line after the last measurement of each
// workload and number of nodes for each profile beside the default one, and a line of
// key=value pairs: that of the smallest ratio, the ratio of pod groups, which have a goal of their own, and in how many of
// upstream's workloads only our profile is below upstream's threshold. LayerLocality is what is meant where no profile is
// named.
func (r *Result) Write(w io.Writer) error {
	if len(r.Measurements) == 0 {
		return errors.New("nothing was measured")
	}
	smallest, last, groups := 0.0, "", ""
	thresholds, below := 0, 0
	for rest := r.Measurements; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Workload == rest[0].Workload && rest[n].Nodes == rest[0].Nodes {
			n++
		}
		measured := rest[:n]
		rest = rest[n:]
		var profiles []string // beside the default one
		for _, m := range measured {
			fmt.Fprintf(w, "run workload=%s nodes=%d pods=%d profile=%s pods_s=%.1f seconds=%.1f cpu_s=%.1f attempt_ms=%.3f\n",
				m.Workload, m.Nodes, m.Pods, m.Profile, m.PodsPerSecond, m.Seconds, m.CPUSeconds, m.Attempt)
			if m.Profile != defaultProfile && !slices.Contains(profiles, m.Profile) {
				profiles = append(profiles, m.Profile)
			}
		}
		cpu := func(m Measurement) float64 { return 1e3 * m.CPUSeconds / float64(m.Pods) }
		slices.Sort(profiles) // rounds begin with different ones
		for _, profile := range profiles {
			stock, ours := meanOf(measured, defaultProfile, speed), meanOf(measured, profile, speed)
			where := fmt.Sprintf("workload=%s nodes=%d", measured[0].Workload, measured[0].Nodes)
			if measured[0].Threshold > 0 {
				where = fmt.Sprintf("workload=%s threshold=%.0f", measured[0].Workload, measured[0].Threshold)
			}
			if profile != ourProfile {
				where += " profile=" + profile
			}
			result := fmt.Sprintf("default_pods_s=%.1f ours_pods_s=%.1f ratio=%.3f spread=%.3f", stock, ours, ours/stock, spread(measured, profile))
			fmt.Fprintf(w, "throughput %s %s rounds=%d default_cpu_ms_pod=%.3f ours_cpu_ms_pod=%.3f\n",
				where, result, len(of(measured, profile)), meanOf(measured, defaultProfile, cpu), meanOf(measured, profile, cpu))
			if measured[0].Workload == grouped {
				groups = fmt.Sprintf(" group_ratio=%.3f group_spread=%.3f", ours/stock, spread(measured, profile))
				continue
			}
			if threshold := measured[0].Threshold; threshold > 0 {
				thresholds++
				if stock >= threshold && ours < threshold {
					below++
				}
				continue
			}
			if last == "" || ours/stock < smallest {
				smallest, last = ours/stock, " "+result+" "+where
			}
		}
	}
	if thresholds > 0 {
		groups += fmt.Sprintf(" upstream_thresholds=%d only_ours_below=%d", thresholds, below)
	}
	_, err := fmt.Fprintf(w, "scheduler_perf%s%s\n", last, groups)
	return err
}

func speed(m Measurement) float64 { return m.PodsPerSecond }

// of returns the measurements of a profile.
func of(measured []Measurement, profile string) []Measurement {
	return slices.DeleteFunc(slices.Clone(measured), func(m Measurement) bool { return m.Profile != profile })
}

// mostSpread returns how sure the least certain ratio of one workload's measurements is.
func mostSpread(measured []Measurement, profiles []string) (most float64) {
	for _, profile := range profiles {
		most = max(most, spread(measured, profile))
	}
	return most
}

// spread returns how sure the ratio of one workload's measurements is, of a profile beside the
// default one: the standard error of the mean of the rounds' ratios. It is infinite for a
// single round.
func spread(measured []Measurement, profile string) float64 {
	var ratios []float64
	stock, ours := of(measured, defaultProfile), of(measured, profile)
	for i := range min(len(stock), len(ours)) {
		ratios = append(ratios, speed(ours[i])/speed(stock[i]))
	}
	n := float64(len(ratios))
	if n < 2 {
		return math.Inf(1)
	}
	var mean, squares float64
	for _, ratio := range ratios {
		mean += ratio / n
	}
	for _, ratio := range ratios {
		squares += (ratio - mean) * (ratio - mean)
	}
	return math.Sqrt(squares / (n - 1) / n)
}

func meanOf(measured []Measurement, profile string, field func(Measurement) float64) float64 {
	var sum, n float64
	for _, m := range of(measured, profile) {
		sum += field(m)
		n++
	}
	return sum / n
}
