package page

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// metric is one column of the tables. Some are also panels of the figures. For
// all of them but one, less is better.
type metric struct {
	Key, Title, Unit string
	// About is an explanation for the reader.
	About string
	// value is that of a run. For a metric that compares, base is the default policy's run
	// with the same seed; for others it is not looked at.
	value    func(m, base *evaluation.Metrics) float64
	compares bool
	// more means that more is better.
	more bool
	// text formats a value.
	text func(float64) string
}

var metrics = []metric{
	compared("bytes", "Bytes", aboutPulled, pulled),
	{
		Key: "avoided", Title: "Avoided", Unit: "of avoidable",
		About: "share of the bytes that the default policy pulls beyond the distinct ones (each layer that pods need once in the cluster) and that are not pulled; more is better, 1 is the most that a placement can reach",
		value: (*evaluation.Metrics).Avoided, compares: true, more: true, text: decimals(3),
	},
	compared("startup", "Start-up mean", aboutStartup+"mean over pods", startup),
	compared("p99", "Start-up p99", aboutStartup+"99 % of the pods do not exceed it", p99),
	compared("fromRegistry", "From registry", aboutPulled+" that did not come from other nodes", fromRegistry),
	plainly("cpu", "CPU std. dev.", "", "standard deviation over nodes of the share of CPU that is requested", func(m *evaluation.Metrics) float64 { return m.CPUStd }, decimals(3)),
	plainly("pods", "Pods max / mean", "", "pods on the fullest node, divided by the mean", func(m *evaluation.Metrics) float64 { return m.MaxMeanPods }, decimals(2)),
	plainly("pulled", "Pulled", "GB", aboutPulled, func(m *evaluation.Metrics) float64 { return pulled(m) / 1e9 }, digits),
	plainly("startupMean", "Start-up mean", "s", aboutStartup+"mean over pods", startup, digits),
	plainly("startupP50", "Start-up p50", "s", aboutStartup+"half of the pods do not exceed it", func(m *evaluation.Metrics) float64 { return m.StartupP50 }, digits),
	plainly("startupP99", "Start-up p99", "s", aboutStartup+"99 % of the pods do not exceed it", p99, digits),
	plainly("disk", "Disk", "GB", "compressed bytes of the images on all disks at the end", func(m *evaluation.Metrics) float64 { return float64(m.DiskBytes) / 1e9 }, digits),
	plainly("unstarted", "Not started", "pods", "pods that found a node, but never started or were deleted before", func(m *evaluation.Metrics) float64 { return float64(m.Unstarted) }, digits),
	plainly("unschedulable", "No node", "pods", "pods that never found a node", func(m *evaluation.Metrics) float64 { return float64(m.Unschedulable) }, digits),
}

const (
	aboutPulled  = "compressed bytes over all links"
	aboutStartup = "from the creation of a pod to the start of its container; "
)

// compared is a metric divided by the default policy's value.
func compared(key, title, about string, value func(*evaluation.Metrics) float64) metric {
	return metric{
		Key: key, Title: title, Unit: "× default", About: about, compares: true, text: decimals(3),
		value: func(m, base *evaluation.Metrics) float64 { return ratio(value(m), value(base)) },
	}
}

// plainly is a metric as it was measured.
func plainly(key, title, unit, about string, value func(*evaluation.Metrics) float64, text func(float64) string) metric {
	return metric{
		Key: key, Title: title, Unit: unit, About: about, text: text,
		value: func(m, _ *evaluation.Metrics) float64 { return value(m) },
	}
}

func pulled(m *evaluation.Metrics) float64 { return float64(m.PulledBytes) }
func fromRegistry(m *evaluation.Metrics) float64 {
	return float64(m.PulledBytes - m.PeerBytes)
}
func startup(m *evaluation.Metrics) float64 { return m.StartupMean }
func p99(m *evaluation.Metrics) float64     { return m.StartupP99 }

// shape of an experiment; it decides which runs are compared.
type shape string

const (
	// plain: only scenario and policy vary.
	plain shape = "plain"
	// varied: X is a property of the workload, and every policy ran at each.
	varied shape = "varied"
	// tuned: X is a setting of policies (a weight). Policies without it, such as
	// the default, ran once. The workload is the same for all X.
	tuned shape = "tuned"
)

// shapeOf distinguishes a setting from a property of the workload. It uses the
// default policy, which runs on every workload and has no settings.
func shapeOf(experiment *evaluation.Experiment) shape {
	at := map[[2]string]map[float64]bool{} // scenario, policy
	for _, run := range experiment.Runs {
		k := [2]string{run.Scenario, run.Policy}
		if at[k] == nil {
			at[k] = map[float64]bool{}
		}
		at[k][run.X] = true
	}
	most, ofBaseline := 0, 0
	for k, xs := range at {
		most = max(most, len(xs))
		if k[1] == baseline {
			ofBaseline = max(ofBaseline, len(xs))
		}
	}
	switch {
	case experiment.Axis == "":
		return plain
	case ofBaseline == 1 && most > 1:
		return tuned
	default:
		return varied
	}
}

// summary of an experiment: means of its runs over seeds.
type summary struct {
	Shape  shape
	Axis   string
	Groups []group
}

// group has the cells that may be compared with each other, because they have the
// same workload.
type group struct {
	Scenario string
	// X is 0 for experiments whose shape is not varied.
	X     float64
	Cells []cell
}

// cell is one policy with one setting on one workload.
type cell struct {
	Policy string
	// X is that of the group, or the policy's setting.
	X     float64
	Seeds int
	// Values are by the key of the metric.
	Values map[string]estimate
}

// workload is what the runs of a group have in common, except for the seed.
type workload struct {
	scenario string
	x        float64
}

// variant is a policy with a setting.
type variant struct {
	policy string
	x      float64
}

// summarise groups by scenario (in the order of the report), X (ascending), and
// policy (in the given order).
func summarise(experiment *evaluation.Experiment, policies []policy) summary {
	s := summary{Shape: shapeOf(experiment), Axis: experiment.Axis}
	scenarios, order := ranks{}, ranks{}
	for _, p := range policies {
		order.add(p.Name)
	}
	runs := map[workload]map[variant][]*evaluation.Run{}
	for i := range experiment.Runs {
		run := &experiment.Runs[i]
		scenarios.add(run.Scenario)
		at := workload{scenario: run.Scenario}
		if s.Shape == varied {
			at.x = run.X
		}
		if runs[at] == nil {
			runs[at] = map[variant][]*evaluation.Run{}
		}
		v := variant{run.Policy, run.X}
		runs[at][v] = append(runs[at][v], run)
	}
	places := slices.SortedFunc(maps.Keys(runs), func(a, b workload) int {
		return cmp.Or(cmp.Compare(scenarios[a.scenario], scenarios[b.scenario]), cmp.Compare(a.x, b.x))
	})
	for _, at := range places {
		variants := slices.SortedFunc(maps.Keys(runs[at]), func(a, b variant) int {
			return cmp.Or(cmp.Compare(order[a.policy], order[b.policy]), cmp.Compare(a.x, b.x))
		})
		base := map[uint64]*evaluation.Metrics{} // by seed
		for _, v := range variants {
			if v.policy == baseline {
				for _, run := range runs[at][v] {
					base[run.Seed] = &run.Metrics
				}
			}
		}
		g := group{Scenario: at.scenario, X: at.x}
		for _, v := range variants {
			g.Cells = append(g.Cells, cell{
				Policy: v.policy,
				X:      v.x,
				Seeds:  len(runs[at][v]),
				Values: estimates(runs[at][v], base),
			})
		}
		s.Groups = append(s.Groups, g)
	}
	return s
}

// ranks are places in an order.
type ranks map[string]int

func (r ranks) add(name string) {
	if _, ok := r[name]; !ok {
		r[name] = len(r)
	}
}

// estimates returns those of all metrics. base has the default policy's metrics
// by seed; comparisons leave out seeds that it did not run.
func estimates(runs []*evaluation.Run, base map[uint64]*evaluation.Metrics) map[string]estimate {
	all := map[string]estimate{}
	for _, m := range metrics {
		values := make([]float64, len(runs))
		for i, run := range runs {
			other := base[run.Seed]
			if values[i] = math.NaN(); other != nil || !m.compares {
				values[i] = m.value(&run.Metrics, other)
			}
		}
		all[m.Key] = estimateOf(values)
	}
	return all
}
