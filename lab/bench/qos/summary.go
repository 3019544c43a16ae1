package qos

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is everything that was measured.
type Result struct {
	Settings
	Outcomes []Outcome `json:"outcomes"`
	Cost     *Costs    `json:"cost,omitempty"`
}

// of returns the Outcome of an arm; nil if it was not measured.
func (r *Result) of(arm string) *Outcome {
	for i := range r.Outcomes {
		if r.Outcomes[i].Arm == arm {
			return &r.Outcomes[i]
		}
	}
	return nil
}

// orNothing returns nil if nothing was measured.
func (r *Result) orNothing() *Result {
	if len(r.Outcomes) == 0 && r.Cost == nil {
		return nil
	}
	return r
}

// goal is one of what has to be reached. Name is the key in the last line.
type goal struct {
	name, format, want string
	// value is what was measured, if it was.
	value func(*Result) (float64, bool)
	// met reports whether a value reaches it; nil if nothing has to be reached.
	met func(float64) bool
}

// goals are what the last line has, in its order.
func goals() []goal {
	outcome := func(name string, value func(*Outcome) float64) func(*Result) (float64, bool) {
		return func(r *Result) (float64, bool) {
			o := r.of(name)
			if o == nil {
				return 0, false
			}
			return value(o), true
		}
	}
	cost := func(value func(*Costs) float64) func(*Result) (float64, bool) {
		return func(r *Result) (float64, bool) {
			if r.Cost == nil {
				return 0, false
			}
			return value(r.Cost), true
		}
	}
	atLeast := func(want float64) func(float64) bool { return func(v float64) bool { return v >= want } }
	atMost := func(want float64) func(float64) bool { return func(v float64) bool { return v <= want } }
	missed := func(o *Outcome) float64 { return float64(o.missed()) }
	some, many := qosaware+"-160", qosaware+"-200"
	return []goal{
		{"missed_priority", "%.0f", "", outcome(priorities+"-160", missed), nil},
		{"missed", "%.0f", "0 of 160 workloads get less than they were promised", outcome(some, missed), atMost(0)},
		{"service", "%.3f", "pods run in .94 of the room", outcome(some, func(o *Outcome) float64 { return o.Service }), atLeast(.94)},
		{"gold_min", "%.4f", "each workload of SLO 1 gets .995, with 160 others and with 200", func(r *Result) (float64, bool) {
			a, b := r.of(some), r.of(many)
			if a == nil || b == nil {
				return 0, false
			}
			return min(a.Gold[0], b.Gold[0]), true
		}, atLeast(.995)},
		{"overload_met", "%.0f", "140 of 200 workloads get what they were promised", outcome(many, func(o *Outcome) float64 {
			return float64(len(o.Silver) - o.missed())
		}), atLeast(140)},
		{"starved", "%.0f", "each of 200 workloads gets something", outcome(many, func(o *Outcome) float64 {
			return float64(len(slices.DeleteFunc(slices.Clone(o.Silver), func(got float64) bool { return got > 0 })))
		}), atMost(0)},
		{"added_us", "%.2f", "the queue takes 2 µs longer for a pod", cost(func(c *Costs) float64 { return c.AddedMicros }), atMost(2)},
		{"added_slo_us", "%.2f", "the queue takes 5 µs longer for a pod with an SLO", cost(func(c *Costs) float64 { return c.AddedSLOMicros }), atMost(5)},
		{"heap_mib", "%.1f", "50,000 pods of 5,000 workloads need 64 MiB", cost(func(c *Costs) float64 { return c.HeapMiB }), atMost(64)},
		{"restart_error", "%.4f", "a restart changes what is known of a workload by .01", outcome(some, func(o *Outcome) float64 {
			if o.Restarts == nil {
				return 1
			}
			return max(o.Restarts.Stopped, o.Restarts.Killed)
		}), atMost(.01)},
	}
}

// Write writes a table, what all workloads got, the goals, and a line of key=value pairs; what
// was not measured is "-" there.
func (r *Result) Write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "arm\tworkloads\tbelow .5\tof .5: least\tmedian\tof 1: least\tservice\tpreempted\tQosAware is off by\t")
	for _, arm := range Arms {
		o := r.of(arm.Name)
		if o == nil {
			continue
		}
		preempted, off := "", ""
		if arm.Promises {
			n := 0
			for _, count := range o.Preempted {
				n += count
			}
			preempted, off = fmt.Sprint(n), fmt.Sprintf("%.4f", o.Off)
		}
		fmt.Fprintf(table, "%s\t%d + %d\t%d\t%.3f\t%.3f\t%.4f\t%.3f\t%s\t%s\t\n", arm.Name, len(o.Gold), len(o.Silver), o.missed(),
			o.Silver[0], o.Silver[len(o.Silver)/2], o.Gold[0], o.Service, preempted, off)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		fmt.Fprintf(w, "\n%s, after %.0f s, SLO .5: %s\nSLO 1: %s\n", o.Arm, o.Seconds, join(o.Silver, "%.2f"), join(o.Gold, "%.3f"))
		if len(o.Preempted) > 0 {
			fmt.Fprintf(w, "preempted, by reason:%s\n", counts(o.Preempted))
		}
		if o.Restarts != nil {
			fmt.Fprintf(w, "off after a restart by %.4f at most, after SIGKILL by %.4f\n", o.Restarts.Stopped, o.Restarts.Killed)
		}
	}
	if c := r.Cost; c != nil {
		fmt.Fprintf(w, "\nqueue sort_us=%.2f added_us=%.2f added_slo_us=%.2f; heap of %d pods of %d workloads: %.1f MiB\n",
			c.SortMicros, c.AddedMicros, c.AddedSLOMicros, c.HeapPods, c.HeapWorkloads, c.HeapMiB)
	}
	fmt.Fprintf(w, "\nscale %g, %g minutes an arm, %d nodes\n", r.Scale, r.Minutes, r.Nodes)
	var pairs strings.Builder
	for _, g := range goals() {
		value, known := g.value(r)
		text := "-"
		if known {
			text = fmt.Sprintf(g.format, value)
		}
		fmt.Fprintf(&pairs, " %s=%s", g.name, text)
		switch {
		case !known || g.met == nil:
		case g.met(value):
			fmt.Fprintf(w, "goal met: %s: %s\n", g.want, text)
		default:
			fmt.Fprintf(w, "goal missed: %s: %s\n", g.want, text)
		}
	}
	_, err := fmt.Fprintf(w, "qosaware%s\n", &pairs)
	return err
}

func join(values []float64, format string) string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = fmt.Sprintf(format, value)
	}
	return strings.Join(texts, " ")
}

func counts(by map[string]int) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(&text, " %s %d", name, by[name])
	}
	return text.String()
}
