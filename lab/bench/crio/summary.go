package crio

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench/timing"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// Summary compares the flavours.
type Summary struct {
	Stock, Patched Numbers

	// Ratios of the patched one to stock. A pair is of one start of each, and of one round for lists.
	// ListOverBare compares a list with stock's and what its layers add to the answer of a server that
	// does nothing else than to send them.
	ListOverBare, First, Pull, Apart Ratio
}

// Ratio is the geometric mean of the ratios of pairs, and twice its standard error: the true mean is within
// that 19 times of 20.
type Ratio struct{ Mean, Spread float64 }

// Numbers of one flavour, over all of its measurements: percentiles of
// ListImages calls, medians of everything else.
type Numbers struct {
	ListP50, ListP99 time.Duration
	ListCPU          time.Duration
	FirstList        time.Duration
	Pull             time.Duration
	BareP50          time.Duration
	SharedBytes      int64
	SharedTook       time.Duration
	ApartTook        time.Duration
	RSS, Anonymous   int64 // bytes
	Layers, Bytes    int   // of the answer
}

// Summary returns the summary of the result.
func (r *Result) Summary() Summary {
	s := Summary{Stock: numbers(r.Measurements, cluster.Stock), Patched: numbers(r.Measurements, cluster.Patched)}
	var list, first, pull, apart []float64
	stock, patched := of(r.Measurements, cluster.Stock), of(r.Measurements, cluster.Patched)
	for i := range min(len(stock), len(patched)) {
		a, b := stock[i], patched[i]
		list = append(list, ratio(median(b.Lists), median(a.Lists)+median(b.Bare)-median(a.Bare)))
		first = append(first, ratios(b.FirstLists, a.FirstLists)...)
		pull = append(pull, ratios(b.Pulls, a.Pulls)...)
		apart = append(apart, ratios(tooks(b.Apart), tooks(a.Apart))...)
	}
	s.ListOverBare, s.First, s.Pull, s.Apart = ratioOf(list), ratioOf(first), ratioOf(pull), ratioOf(apart)
	return s
}

func of(all []Measurement, flavour cluster.Flavour) (some []Measurement) {
	for _, m := range all {
		if m.Flavour == flavour {
			some = append(some, m)
		}
	}
	return some
}

// ratios returns a[i] / b[i].
func ratios(a, b []time.Duration) (all []float64) {
	for i := range min(len(a), len(b)) {
		all = append(all, ratio(a[i], b[i]))
	}
	return all
}

func ratioOf(pairs []float64) Ratio {
	if len(pairs) == 0 {
		return Ratio{}
	}
	var mean, squares float64 // of logarithms
	for _, pair := range pairs {
		mean += math.Log(pair) / float64(len(pairs))
	}
	for _, pair := range pairs {
		squares += (math.Log(pair) - mean) * (math.Log(pair) - mean)
	}
	r := Ratio{Mean: math.Exp(mean)}
	if n := float64(len(pairs)); n > 1 {
		r.Spread = r.Mean * (math.Exp(2*math.Sqrt(squares/(n-1)/n)) - 1)
	}
	return r
}

// Write writes the Summary.
func (r *Result) Write(w io.Writer) error { return r.Summary().Write(w) }

func numbers(all []Measurement, flavour cluster.Flavour) Numbers {
	var lists, cpu, first, pulls, bare, sharedTook, apartTook []time.Duration
	var rss, anonymous, sharedBytes []int64
	var n Numbers
	for _, m := range of(all, flavour) {
		lists = append(lists, m.Lists...)
		cpu = append(cpu, m.ListCPU)
		first = append(first, m.FirstLists...)
		pulls = append(pulls, m.Pulls...)
		bare = append(bare, m.Bare...)
		sharedBytes = append(sharedBytes, m.Shared.Bytes)
		sharedTook = append(sharedTook, m.Shared.Took)
		apartTook = append(apartTook, tooks(m.Apart)...)
		rss = append(rss, m.Memory.RSS)
		anonymous = append(anonymous, m.Memory.Anonymous)
		n.Layers, n.Bytes = m.Layers, m.Bytes
	}
	n.ListP50, n.ListP99 = timing.Percentile(lists, 50), timing.Percentile(lists, 99)
	n.ListCPU, n.FirstList, n.Pull = median(cpu), median(first), median(pulls)
	n.BareP50, n.SharedBytes, n.SharedTook, n.ApartTook = median(bare), median(sharedBytes), median(sharedTook), median(apartTook)
	n.RSS, n.Anonymous = median(rss), median(anonymous)
	return n
}

// AddedPerLayer returns the time that one reported layer adds to a ListImages
// call, as the client sees it.
func (s Summary) AddedPerLayer() time.Duration {
	return (s.Patched.ListP50 - s.Stock.ListP50) / time.Duration(max(1, s.Patched.Layers))
}

// SharedRatio returns the bytes of images with a common base that are pulled at once,
// divided by those that stock pulls.
func (s Summary) SharedRatio() float64 {
	return float64(s.Patched.SharedBytes) / float64(max(1, s.Stock.SharedBytes))
}

// AddedCPUPerLayer returns the processor time that one reported layer adds in
// CRI-O.
func (s Summary) AddedCPUPerLayer() time.Duration {
	return (s.Patched.ListCPU - s.Stock.ListCPU) / time.Duration(max(1, s.Patched.Layers))
}

// goal is a limit for one of the numbers. Microseconds are the machine's: the goals are ratios.
type goal struct {
	name  string
	value Ratio
	limit float64
}

func (s Summary) goals() []goal {
	return []goal{
		{"list_over_bare", s.ListOverBare, 1.10},
		{"first_ratio", s.First, 1.05},
		{"pull_ratio", s.Pull, 1.02},
		{"rss_added_mib", Ratio{Mean: mib(s.Patched.RSS - s.Stock.RSS)}, 16},
		// Five images of which 80 % are one base have 0.36 of the bytes once.
		{"shared_ratio", Ratio{Mean: s.SharedRatio()}, 0.35},
		{"apart_ratio", s.Apart, 1.02},
	}
}

// Write writes a table, the goals, and a line of key=value pairs.
func (s Summary) Write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tstock\tpatched\tadded\t")
	for _, row := range []struct {
		name           string
		stock, patched float64
		format         string
	}{
		{"ListImages p50 (ms)", msf(s.Stock.ListP50), msf(s.Patched.ListP50), "%.3f"},
		{"ListImages p99 (ms)", msf(s.Stock.ListP99), msf(s.Patched.ListP99), "%.3f"},
		{"processor time of CRI-O a list (ms)", msf(s.Stock.ListCPU), msf(s.Patched.ListCPU), "%.3f"},
		{"first list after a restart (ms)", msf(s.Stock.FirstList), msf(s.Patched.FirstList), "%.1f"},
		{"pull of 100 MB (ms)", msf(s.Stock.Pull), msf(s.Patched.Pull), "%.0f"},
		{"the same list by bare gRPC p50 (ms)", msf(s.Stock.BareP50), msf(s.Patched.BareP50), "%.3f"},
		{"5 images on one base at once (MB)", float64(s.Stock.SharedBytes) / 1e6, float64(s.Patched.SharedBytes) / 1e6, "%.1f"},
		{"until all are there (ms)", msf(s.Stock.SharedTook), msf(s.Patched.SharedTook), "%.0f"},
		{"5 images with nothing in common at once (ms)", msf(s.Stock.ApartTook), msf(s.Patched.ApartTook), "%.0f"},
		{"resident memory after 20 lists (MiB)", mib(s.Stock.RSS), mib(s.Patched.RSS), "%.1f"},
		{"of it heap and stacks (MiB)", mib(s.Stock.Anonymous), mib(s.Patched.Anonymous), "%.1f"},
		{"layers in the answer", float64(s.Stock.Layers), float64(s.Patched.Layers), "%.0f"},
		{"size of the answer (KiB)", float64(s.Stock.Bytes) / 1024, float64(s.Patched.Bytes) / 1024, "%.0f"},
	} {
		f := row.format
		fmt.Fprintf(table, "%s\t"+f+"\t"+f+"\t"+f+"\t\n", row.name, row.stock, row.patched, row.patched-row.stock)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "a layer adds %.3f µs to a list, %.3f µs of it processor time of CRI-O\n", us(s.AddedPerLayer()), us(s.AddedCPUPerLayer()))
	for _, g := range s.goals() {
		verdict := "met"
		switch {
		case g.value.Mean-g.value.Spread > g.limit:
			verdict = "missed"
		case g.value.Mean > g.limit:
			verdict = "open, within the spread"
		}
		fmt.Fprintf(w, "goal %s: %s <= %g, measured %.3f ± %.3f\n", verdict, g.name, g.limit, g.value.Mean, g.value.Spread)
	}
	_, err := fmt.Fprintf(w, "list_images stock_ms=%.3f patched_ms=%.3f added_us_per_layer=%.3f %s %s %s rss_added_mib=%.1f shared_ratio=%.3f %s\n",
		msf(s.Stock.ListP50), msf(s.Patched.ListP50), us(s.AddedPerLayer()),
		s.ListOverBare.text("list_over_bare"), s.First.text("first_ratio"), s.Pull.text("pull_ratio"), mib(s.Patched.RSS-s.Stock.RSS),
		s.SharedRatio(), s.Apart.text("apart_ratio"))
	return err
}

// text returns both figures, the spread as NAME_spread.
func (r Ratio) text(name string) string {
	return fmt.Sprintf("%s=%.3f %s_spread=%.3f", name, r.Mean, strings.TrimSuffix(name, "_ratio"), r.Spread)
}

func tooks(pulls []PullAtOnce) (took []time.Duration) {
	for _, pull := range pulls {
		took = append(took, pull.Took)
	}
	return took
}

// median returns the 50th percentile.
func median[T cmp.Ordered](values []T) T { return timing.Percentile(values, 50) }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(1, b)) }
func us(d time.Duration) float64       { return float64(d) / float64(time.Microsecond) }
func msf(d time.Duration) float64      { return float64(d) / float64(time.Millisecond) }
func ms(d time.Duration) string        { return fmt.Sprintf("%.1f ms", msf(d)) }
func mib(bytes int64) float64          { return float64(bytes) / (1 << 20) }
