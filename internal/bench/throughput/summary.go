package throughput

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// Write writes a line for each measurement, a line after the last measurement of each
// workload, number of nodes and profile, and a line of key=value pairs: that of the smallest
// ratio. LayerLocality is what is meant where no profile is named.
func (r *Result) Write(w io.Writer) error {
	if len(r.Measurements) == 0 {
		return errors.New("nothing was measured")
	}
	smallest, last := 0.0, ""
	for rest := r.Measurements; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Workload == rest[0].Workload && rest[n].Nodes == rest[0].Nodes && rest[n].Compared == rest[0].Compared {
			n++
		}
		measured := rest[:n]
		rest = rest[n:]
		for _, m := range measured {
			fmt.Fprintf(w, "run workload=%s nodes=%d pods=%d profile=%s pods_s=%.1f seconds=%.1f cpu_s=%.1f attempt_ms=%.3f\n",
				m.Workload, m.Nodes, m.Pods, m.Profile, m.PodsPerSecond, m.Seconds, m.CPUSeconds, m.Attempt)
		}
		cpu := func(m Measurement) float64 { return 1e3 * m.CPUSeconds / float64(m.Pods) }
		compared := measured[0].Compared
		stock, ours := meanOf(measured, defaultProfile, speed), meanOf(measured, compared, speed)
		where := fmt.Sprintf("workload=%s nodes=%d", measured[0].Workload, measured[0].Nodes)
		if compared != ourProfile {
			where += " profile=" + compared
		}
		result := fmt.Sprintf("default_pods_s=%.1f ours_pods_s=%.1f ratio=%.3f spread=%.3f", stock, ours, ours/stock, spread(measured))
		fmt.Fprintf(w, "throughput %s %s rounds=%d default_cpu_ms_pod=%.3f ours_cpu_ms_pod=%.3f\n",
			where, result, n/2, meanOf(measured, defaultProfile, cpu), meanOf(measured, compared, cpu))
		if last == "" || ours/stock < smallest {
			smallest, last = ours/stock, result+" "+where
		}
	}
	_, err := fmt.Fprintf(w, "scheduler_perf %s\n", last)
	return err
}

func speed(m Measurement) float64 { return m.PodsPerSecond }

// spread returns how sure the ratio of one profile's measurements is: the standard error of
// the mean of the rounds' ratios. It is infinite for a single round.
func spread(measured []Measurement) float64 {
	var ratios []float64
	for i := 0; i+1 < len(measured); i += 2 {
		round := measured[i : i+2]
		ratios = append(ratios, meanOf(round, round[0].Compared, speed)/meanOf(round, defaultProfile, speed))
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
	for _, m := range measured {
		if m.Profile == profile {
			sum += field(m)
			n++
		}
	}
	return sum / n
}
