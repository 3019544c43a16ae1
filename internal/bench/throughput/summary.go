package throughput

import (
	"errors"
	"fmt"
	"io"
)

// Write writes a line for each measurement, a line after the last measurement
// of each workload and number of nodes, and a line of key=value pairs: for the
// workload with the smaller ratio, at the largest number of nodes.
func (r *Result) Write(w io.Writer) error {
	if len(r.Measurements) == 0 {
		return errors.New("nothing was measured")
	}
	most := 0
	for _, m := range r.Measurements {
		most = max(most, m.Nodes)
	}
	smallest, last := 0.0, ""
	for rest := r.Measurements; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Workload == rest[0].Workload && rest[n].Nodes == rest[0].Nodes {
			n++
		}
		measured := rest[:n]
		rest = rest[n:]
		for _, m := range measured {
			fmt.Fprintf(w, "run workload=%s nodes=%d pods=%d profile=%s pods_s=%.1f seconds=%.1f cpu_s=%.1f attempt_ms=%.3f\n",
				m.Workload, m.Nodes, m.Pods, m.Profile, m.PodsPerSecond, m.Seconds, m.CPUSeconds, m.Attempt)
		}
		of := func(profile string, field func(Measurement) float64) float64 {
			return meanOf(measured, profile, field)
		}
		speed := func(m Measurement) float64 { return m.PodsPerSecond }
		cpu := func(m Measurement) float64 { return 1e3 * m.CPUSeconds / float64(m.Pods) }
		stock, ours := of(defaultProfile, speed), of(ourProfile, speed)
		result := fmt.Sprintf("default_pods_s=%.1f ours_pods_s=%.1f ratio=%.3f", stock, ours, ours/stock)
		fmt.Fprintf(w, "throughput workload=%s nodes=%d %s default_cpu_ms_pod=%.3f ours_cpu_ms_pod=%.3f\n",
			measured[0].Workload, measured[0].Nodes, result, of(defaultProfile, cpu), of(ourProfile, cpu))
		if measured[0].Nodes == most && (last == "" || ours/stock < smallest) {
			smallest, last = ours/stock, result
		}
	}
	_, err := fmt.Fprintf(w, "scheduler_perf %s\n", last)
	return err
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
