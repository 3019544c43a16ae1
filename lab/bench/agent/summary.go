package agent

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
)

// Summary has, of each figure, that of the node on which it is largest. Only nodes with agents
// count.
type Summary struct {
	First, List time.Duration // medians
	RSS         int64         // of both containers, in bytes
	// Of pulls and removals of all nodes, percentiles from the end of the change until the
	// plugin's index had it; Status is the same for NodeStatus.
	SeenP50, SeenP99       time.Duration
	GoneP50, GoneP99       time.Duration
	BurstP99, BurstGoneP99 time.Duration
	StatusP50, StatusP99   time.Duration
	// ListRatio is List beside the runtime's own list of the same images.
	ListRatio    float64
	PullRatio    float64
	IdleMilliCPU float64
}

// Summary returns the summary of the result.
func (r *Result) Summary() Summary {
	var s Summary
	var seen, burst, gone, burstGone, status []time.Duration
	for _, n := range r.Nodes {
		if !n.Agent {
			continue
		}
		s.First = max(s.First, median(n.First))
		s.List = max(s.List, median(n.Lists))
		s.ListRatio = max(s.ListRatio, n.listRatio())
		s.RSS = max(s.RSS, n.Reader.RSS+n.Publisher.RSS)
		s.PullRatio = max(s.PullRatio, n.pullRatio())
		s.IdleMilliCPU = max(s.IdleMilliCPU, n.milliCPU(r.Config.Idle))
		seen, gone, status = append(seen, n.Seen...), append(gone, n.Gone...), append(status, n.Status...)
		burst, burstGone = append(burst, n.Burst...), append(burstGone, n.BurstGone...)
	}
	s.SeenP50, s.SeenP99 = timing.Percentile(seen, 50), timing.Percentile(seen, 99)
	s.BurstP99, s.BurstGoneP99 = timing.Percentile(burst, 99), timing.Percentile(burstGone, 99)
	s.GoneP50, s.GoneP99 = timing.Percentile(gone, 50), timing.Percentile(gone, 99)
	s.StatusP50, s.StatusP99 = timing.Percentile(status, 50), timing.Percentile(status, 99)
	return s
}

func (n *Node) listRatio() float64 { return float64(median(n.Lists)) / float64(max(1, median(n.CRI))) }

func (n *Node) pullRatio() float64 {
	return float64(median(n.With)) / float64(max(1, median(n.Without)))
}

// ratioError returns the standard error of the pull ratio, as if pulls did not depend on each other.
func (n *Node) ratioError() float64 {
	return n.pullRatio() * math.Hypot(medianError(n.With), medianError(n.Without))
}

// medianError returns the standard error of a median as a share of it. It goes by the quartiles, of
// which one pull that took long changes little: in a normal distribution they are 1.349 standard
// deviations apart, and the error is 1.253 of these by the root of the number.
func medianError(times []time.Duration) float64 {
	between := timing.Percentile(times, 75) - timing.Percentile(times, 25)
	return 1.253 / 1.349 * float64(between) / float64(max(1, median(times))) / math.Sqrt(float64(max(1, len(times))))
}

// milliCPU returns the thousandths of a processor that a node's agent took while nothing changed.
func (n *Node) milliCPU(window time.Duration) float64 {
	return 1000 * n.Idle.Seconds() / window.Seconds()
}

// goals returns, for each goal, its name, what was measured, and what it should be at most.
func (s Summary) goals() []goal {
	return []goal{
		{"first_ms", ms(s.First), 1000},
		{"list_ms", ms(s.List), 50},
		{"list_ratio", s.ListRatio, 2},
		{"rss_mib", mib(s.RSS), 40},
		{"seen_p50_ms", ms(s.SeenP50), 1500},
		{"seen_p99_ms", ms(s.SeenP99), 3000},
		{"seen_p99_ms of a burst", ms(s.BurstP99), 6500},
		{"gone_p99_ms", ms(s.GoneP99), 3000},
		{"gone_p99_ms of a burst", ms(s.BurstGoneP99), 8000},
		{"pull_ratio", s.PullRatio, 1.02},
		{"idle_mcpu", s.IdleMilliCPU, 2},
	}
}

type goal struct {
	name         string
	value, limit float64
}

// Write implements bench.Result.
func (r *Result) Write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name, format string, of func(*Node) float64) {
		fmt.Fprintf(table, "%s\t", name)
		for _, n := range r.Nodes {
			value := of(n)
			if value == 0 && !n.Agent {
				fmt.Fprint(table, "-\t")
				continue
			}
			fmt.Fprintf(table, format+"\t", value)
		}
		fmt.Fprintln(table)
	}
	fmt.Fprint(table, "\t")
	for _, n := range r.Nodes {
		name := string(n.Runtime)
		if !n.Agent {
			name += ", no agent"
		}
		fmt.Fprintf(table, "%s\t", name)
	}
	fmt.Fprintln(table)
	row("first reading (ms)", "%.0f", func(n *Node) float64 { return ms(median(n.First)) })
	row("readings after it p50 (ms)", "%.1f", func(n *Node) float64 { return ms(median(n.Lists)) })
	row("p99", "%.1f", func(n *Node) float64 { return ms(timing.Percentile(n.Lists, 99)) })
	row("the runtime's own list p50 (ms)", "%.1f", func(n *Node) float64 { return ms(median(n.CRI)) })
	row("pull of 100 MB without agents p50 (ms)", "%.0f", func(n *Node) float64 { return ms(median(n.Without)) })
	row("with agents", "%.0f", func(n *Node) float64 { return ms(median(n.With)) })
	row("ratio", "%.3f", (*Node).pullRatio)
	row("its standard error", "%.3f", (*Node).ratioError)
	for _, change := range []struct {
		name  string
		times func(*Node) []time.Duration
	}{
		{fmt.Sprintf("a pull every %s: from its end to the index", apart), func(n *Node) []time.Duration { return n.Seen }},
		{"to NodeStatus", func(n *Node) []time.Duration { return n.Status }},
		{fmt.Sprintf("a removal every %s: from its end to the index", apart), func(n *Node) []time.Duration { return n.Gone }},
		{fmt.Sprintf("a pull every %s: from its end to the index", hurry), func(n *Node) []time.Duration { return n.Burst }},
		{fmt.Sprintf("a removal every %s: from its end to the index", hurry), func(n *Node) []time.Duration { return n.BurstGone }},
	} {
		row(change.name+" p50 (ms)", "%.0f", func(n *Node) float64 { return ms(median(change.times(n))) })
		row("p99", "%.0f", func(n *Node) float64 { return ms(timing.Percentile(change.times(n), 99)) })
	}
	row("resident memory of read (MiB)", "%.1f", func(n *Node) float64 { return mib(n.Reader.RSS) })
	row("of it heap and stacks", "%.1f", func(n *Node) float64 { return mib(n.Reader.Anonymous) })
	row("resident memory of publish (MiB)", "%.1f", func(n *Node) float64 { return mib(n.Publisher.RSS) })
	row("of it heap and stacks", "%.1f", func(n *Node) float64 { return mib(n.Publisher.Anonymous) })
	row("of both, the program's pages counted once (MiB)", "%.1f", func(n *Node) float64 { return mib(n.onNode()) })
	row("processor time without changes (thousandths)", "%.2f", func(n *Node) float64 { return n.milliCPU(r.Config.Idle) })
	if err := table.Flush(); err != nil {
		return err
	}
	s := r.Summary()
	for _, g := range s.goals() {
		verdict := "met"
		if g.value > g.limit {
			verdict = "missed"
		}
		fmt.Fprintf(w, "goal %s: %s <= %g, measured %.3f\n", verdict, g.name, g.limit, g.value)
	}
	_, err := fmt.Fprintf(w, "agent images=%d first_ms=%.0f list_ms=%.1f list_ratio=%.2f rss_mib=%.1f seen_p50_ms=%.0f seen_p99_ms=%.0f pull_ratio=%.3f idle_mcpu=%.2f\n",
		r.Config.Images, ms(s.First), ms(s.List), s.ListRatio, mib(s.RSS), ms(s.SeenP50), ms(s.SeenP99), s.PullRatio, s.IdleMilliCPU)
	return err
}

// onNode returns what both containers take of the node, in bytes: they map the same file.
func (n *Node) onNode() int64 {
	r, p := n.Reader, n.Publisher
	return r.Anonymous + p.Anonymous + max(r.RSS-r.Anonymous, p.RSS-p.Anonymous)
}

func median[T cmp.Ordered](values []T) T { return timing.Percentile(values, 50) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func mib(bytes int64) float64    { return float64(bytes) / (1 << 20) }
