package resolver

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Goals for the first row, and for the one with tokens.
const (
	goalImagesPerSecond  = 200
	goalTokensPerSecond  = 150
	goalRequestsPerImage = 2.1
)

// goalRSS is the goal for the memory (MiB) with that many images.
func goalRSS(images int) float64 {
	if images <= 5000 {
		return 150
	}
	return 400 // 50,000
}

// Goals for the flood.
const (
	goalFloodObjects = 2000
	goalFloodRSS     = 300 // MiB
	goalHonest       = 5 * time.Second
)

// imagesPerSecond returns the rate from the start of the process to the last
// image seen.
func (r *Result) imagesPerSecond(phase *Phase) float64 {
	return float64(r.Config.Images) / phase.Done.Seconds()
}

// peakRSS returns the peak over all processes of a row, in bytes.
func (r *Row) peakRSS() int64 {
	return max(r.Resolve.PeakRSS, r.Restart.PeakRSS, r.Confirm.PeakRSS, r.Single.PeakRSS)
}

// writes returns the number of writes of all verbs.
func (p *Phase) writes() int {
	sum := 0
	for _, n := range p.Writes {
		sum += n
	}
	return sum
}

// serverCPU returns the processor time of the API server and its etcd, in
// milliseconds.
func (p *Phase) serverCPU() float64 { return ms(p.AroundCPU["kube-apiserver"] + p.AroundCPU["etcd"]) }

// Write writes a table, the goals, and a line of key=value pairs, which is for
// the first row.
func (r *Result) Write(w io.Writer) error {
	if len(r.Rows) == 0 {
		return fmt.Errorf("nothing was measured")
	}
	images := float64(r.Config.Images)
	perImage := func(n int) float64 { return float64(n) / images }
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(name, format string, value func(*Row) float64) {
		cells := make([]string, 0, len(r.Rows))
		for i := range r.Rows {
			cells = append(cells, fmt.Sprintf(format, value(&r.Rows[i])))
		}
		fmt.Fprintf(table, "%s\t%s\t\n", name, strings.Join(cells, "\t"))
	}
	heads := make([]string, 0, len(r.Rows))
	for _, row := range r.Rows {
		heads = append(heads, map[bool]string{false: "open", true: "tokens"}[row.Tokens])
	}
	fmt.Fprintf(table, "%d images; a registry that is\t%s\t\n", r.Config.Images, strings.Join(heads, "\t"))
	line("none known: images a second from the start", "%.1f", func(row *Row) float64 { return r.imagesPerSecond(&row.Resolve) })
	line("images a second from the first request", "%.1f", func(row *Row) float64 {
		return images / (row.Resolve.Done - row.Resolve.FirstRequest).Seconds()
	})
	line("requests an image", "%.4f", func(row *Row) float64 { return perImage(row.Resolve.Requests.Total()) })
	line("of these for tokens", "%.4f", func(row *Row) float64 { return perImage(row.Resolve.Requests.Tokens) })
	line("writes an image", "%.4f", func(row *Row) float64 { return perImage(row.Resolve.writes()) })
	line("processor time an image (ms)", "%.2f", func(row *Row) float64 { return ms(row.Resolve.CPU) / images })
	line("of kube-apiserver and etcd (ms)", "%.2f", func(row *Row) float64 { return row.Resolve.serverCPU() / images })
	line("peak memory (MiB)", "%.1f", func(row *Row) float64 { return mib(row.Resolve.PeakRSS) })
	line("restart, all known: requests", "%.0f", func(row *Row) float64 { return float64(row.Restart.Requests.Total()) })
	line("writes", "%.0f", func(row *Row) float64 { return float64(row.Restart.writes()) })
	line("ready after (s)", "%.2f", func(row *Row) float64 { return row.Restart.Ready.Seconds() })
	line("all counted after (s)", "%.2f", func(row *Row) float64 { return row.Restart.Done.Seconds() })
	line("processor time (s)", "%.2f", func(row *Row) float64 { return row.Restart.CPU.Seconds() })
	line("peak memory (MiB)", "%.1f", func(row *Row) float64 { return mib(row.Restart.PeakRSS) })
	line("all tags confirmed, as once an hour: HEAD requests", "%.0f", func(row *Row) float64 { return float64(row.Confirm.Requests.Heads) })
	line("other requests", "%.0f", func(row *Row) float64 {
		return float64(row.Confirm.Requests.Total() - row.Confirm.Requests.Heads)
	})
	line("writes", "%.0f", func(row *Row) float64 { return float64(row.Confirm.writes()) })
	line("tags a second, all due at the start", "%.1f", func(row *Row) float64 { return r.imagesPerSecond(&row.Confirm) })
	line("processor time (s)", "%.2f", func(row *Row) float64 { return row.Confirm.CPU.Seconds() })
	line("of kube-apiserver and etcd (s)", "%.2f", func(row *Row) float64 { return row.Confirm.serverCPU() / 1000 })
	line("peak memory (MiB)", "%.1f", func(row *Row) float64 { return mib(row.Confirm.PeakRSS) })
	line("one new image: from Deployment to ImageManifest, median (ms)", "%.1f", func(row *Row) float64 { return ms(median(row.Latencies)) })
	line("worst (ms)", "%.1f", func(row *Row) float64 { return ms(slices.Max(row.Latencies)) })
	if err := table.Flush(); err != nil {
		return err
	}

	first := &r.Rows[0]
	speed, requests, memory := r.imagesPerSecond(&first.Resolve), perImage(first.Resolve.Requests.Total()), mib(first.peakRSS())
	verdict := func(met bool) string {
		if met {
			return "met"
		}
		return "missed"
	}
	fmt.Fprintf(w, "goal %s: images_s >= %d, measured %.1f\n", verdict(speed >= goalImagesPerSecond), goalImagesPerSecond, speed)
	fmt.Fprintf(w, "goal %s: requests_per_image <= %.1f, measured %.4f\n", verdict(requests <= goalRequestsPerImage), goalRequestsPerImage, requests)
	fmt.Fprintf(w, "goal %s: rss_mib <= %.0f, measured %.1f\n", verdict(memory <= goalRSS(r.Config.Images)), goalRSS(r.Config.Images), memory)
	for i := range r.Rows[1:] {
		tokens := &r.Rows[1+i]
		speed := r.imagesPerSecond(&tokens.Resolve)
		fmt.Fprintf(w, "goal %s: with tokens images_s >= %d, measured %.1f\n", verdict(speed >= goalTokensPerSecond), goalTokensPerSecond, speed)
	}
	flood := ""
	if f := r.Flood; f != nil {
		fmt.Fprintf(w, "flood: %d updates with %d names each in %.0f s, %d images of another namespace resolved meanwhile, %d objects left after %d restarts\n",
			f.Updates, FloodNames, f.Took.Seconds(), len(f.Honest), f.Left, floodRestarts)
		worst := slices.Max(f.Honest)
		fmt.Fprintf(w, "goal %s: flood_objects < %d, measured %d\n", verdict(f.Objects < goalFloodObjects), goalFloodObjects, f.Objects)
		fmt.Fprintf(w, "goal %s: flood_rss_mib < %d, measured %.1f\n", verdict(mib(f.PeakRSS) < goalFloodRSS), goalFloodRSS, mib(f.PeakRSS))
		fmt.Fprintf(w, "goal %s: honest_s <= %.0f, measured %.2f\n", verdict(worst <= goalHonest), goalHonest.Seconds(), worst.Seconds())
		fmt.Fprintf(w, "goal %s: objects left = 0, measured %d\n", verdict(f.Left == 0), f.Left)
		flood = fmt.Sprintf(" flood_objects=%d flood_rss_mib=%.1f honest_s=%.2f", f.Objects, mib(f.PeakRSS), worst.Seconds())
	}
	_, err := fmt.Fprintf(w, "resolver images=%d images_s=%.1f requests_per_image=%.4f rss_mib=%.1f%s\n", r.Config.Images, speed, requests, memory, flood)
	return err
}

// median returns the smallest value that half of all values do not exceed.
func median(values []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func mib(bytes int64) float64    { return float64(bytes) / (1 << 20) }
