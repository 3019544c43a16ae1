package peers

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
)

// The goals, beside LayerLocality alone: bytes from the registry and start-up in a burst, and pulls of what no other node has.
const (
	goalRegistry = 0.40
	goalBurst    = 0.70
	goalSingle   = 1.02
)

// of returns what all turns of a side have together, and the bytes of one.
func (r *Result) of(side Side) (all Turn, bytes float64) {
	turns := 0
	for i := range r.Runs {
		if t := &r.Runs[i]; t.Side == side {
			all.New, all.Held, all.Burst = append(all.New, t.New...), append(all.Held, t.Held...), append(all.Burst, t.Burst...)
			bytes += float64(t.Nodes.Total())
			turns++
		}
	}
	return all, bytes / float64(turns)
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
	fmt.Fprintf(t, "side\tpull, on no node\tpull, on another\tburst mean\tp50\tp99\tregistry\n")
	for _, side := range Sides {
		all, bytes := r.of(side)
		fmt.Fprintf(t, "%s\t%.2f s\t%.2f s\t%.1f s\t%.1f s\t%.1f s\t%.0f MB\n", side, mean(all.New), mean(all.Held),
			mean(all.Burst), timing.Percentile(all.Burst, 50), timing.Percentile(all.Burst, 99), bytes/1e6)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	alone, most := r.of(Alone)
	peers, bytes := r.of(Peers)
	registry, start, pull := bytes/most, mean(peers.Burst)/mean(alone.Burst), mean(peers.New)/mean(alone.New)
	_, err := fmt.Fprintf(w, "goals beside LayerLocality alone: registry at most %.2f: %.2f; burst at most %.2f: %.2f; pull of what no node has at most %.2f: %.2f\n"+
		"peers registry_ratio=%.2f burst_ratio=%.2f single_ratio=%.2f\n",
		goalRegistry, registry, goalBurst, start, goalSingle, pull, registry, start, pull)
	return err
}
