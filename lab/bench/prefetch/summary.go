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
func (r *Result) of(side Side, update Update) (seconds, bytes, wasted float64) {
	var startups []float64
	var moved, used, turns int64
	for i := range r.Runs {
		if t := &r.Runs[i]; t.Side == side && t.Update == update {
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
	fmt.Fprintf(t, "update\tside\tmean start-up\tpulled\tunused\n")
	goals, line := "", "prefetch"
	for _, update := range Updates {
		for _, side := range Sides {
			seconds, bytes, wasted := r.of(side, update)
			fmt.Fprintf(t, "%s\t%s\t%.1f s\t%.0f MB\t%.0f %%\n", update, side, seconds, bytes/1e6, 100*wasted)
		}
		stock, _, _ := r.of(Stock, update)
		_, alone, _ := r.of(Ours, update)
		seconds, bytes, wasted := r.of(Prefetch, update)
		start, more, prefix := seconds/stock, bytes/alone, ""
		if update != MovedTag {
			prefix = string(update) + "_"
		}
		goals += fmt.Sprintf("goals, %s: start-up at most %.2f of the default profile's: %.2f; bytes at most %.2f of LayerLocality's: %.2f\n", update, goalStart, start, goalBytes, more)
		line += fmt.Sprintf(" %[1]sstart_ratio=%.2[2]f %[1]sbytes_ratio=%.2[3]f %[1]swasted=%.2[4]f", prefix, start, more, wasted)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, goals+line)
	return err
}
