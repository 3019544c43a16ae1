package prefetch

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// The goals: start-up beside that of the default profile, bytes beside those of LayerLocality alone.
const (
	goalStart = 0.5
	goalBytes = 1.05
)

// of returns the mean start-up of a side in seconds, its bytes of an update, and the share of what came ahead that no pod used.
func (r *Result) of(side Side) (seconds, bytes, wasted float64) {
	var startups []float64
	var moved, used, turns int64
	for i := range r.Runs {
		if t := &r.Runs[i]; t.Side == side {
			startups = append(startups, t.Startups...)
			bytes += float64(t.Nodes.Total())
			moved, used = moved+t.MovedBytes, used+t.UsedBytes
			turns++
		}
	}
	if moved > 0 {
		wasted = float64(moved-used) / float64(moved)
	}
	return mean(startups), bytes / float64(turns), wasted
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Write implements bench.Result.
func (r *Result) Write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "side\tmean start-up\tpulled\tunused\n")
	for _, side := range Sides {
		seconds, bytes, wasted := r.of(side)
		fmt.Fprintf(t, "%s\t%.1f s\t%.0f MB\t%.0f %%\n", side, seconds, bytes/1e6, 100*wasted)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	stock, _, _ := r.of(Stock)
	_, alone, _ := r.of(Ours)
	seconds, bytes, wasted := r.of(Prefetch)
	start, more := seconds/stock, bytes/alone
	_, err := fmt.Fprintf(w, "goals: start-up at most %.2f of the default profile's: %.2f; bytes at most %.2f of LayerLocality's: %.2f\nprefetch start_ratio=%.2f bytes_ratio=%.2f wasted=%.2f\n",
		goalStart, start, goalBytes, more, start, more, wasted)
	return err
}
