package page

import (
	"fmt"
	"math"
	"strconv"
)

// table of an experiment, as text: policies below each other in blocks that may
// be compared, one column per metric.
type table struct {
	Metrics []metric
	// Columns is their number: the policy and the metrics.
	Columns int
	Blocks  []block
}

type block struct {
	Title string
	// Seeds describes which seeds were run.
	Seeds string
	Rows  []row
}

type row struct {
	Policy policy
	// Setting of the policy, if it has one.
	Setting string
	Values  []value
}

type value struct {
	Text string
	// Half is half of the confidence interval.
	Half string
	// Note describes what is special about the value.
	Note string
	Best bool
}

func tableOf(s summary, policies []policy) table {
	byName := map[string]policy{}
	for _, p := range policies {
		byName[p.Name] = p
	}
	t := table{Metrics: metrics, Columns: len(metrics) + 1}
	for _, g := range s.Groups {
		b := block{Title: s.title(g), Seeds: seedsOf(g.Cells)}
		settings := map[string]int{}
		for _, c := range g.Cells {
			settings[c.Policy]++
		}
		for _, c := range g.Cells {
			r := row{Policy: byName[c.Policy]}
			if settings[c.Policy] > 1 {
				r.Setting = s.setting(c)
			}
			for _, m := range metrics {
				r.Values = append(r.Values, valueOf(m, c))
			}
			b.Rows = append(b.Rows, r)
		}
		for i := range metrics {
			b.markBest(i, g.Cells)
		}
		t.Blocks = append(t.Blocks, b)
	}
	return t
}

// title of a group: its workload.
func (s *summary) title(g group) string {
	if s.Shape == varied {
		return fmt.Sprintf("%s, %s %v", g.Scenario, s.Axis, g.X)
	}
	return g.Scenario
}

// setting of a policy.
func (s *summary) setting(c cell) string { return fmt.Sprintf("%s %v", s.Axis, c.X) }

func seedsOf(cells []cell) string {
	least, most := math.MaxInt, 0
	for _, c := range cells {
		least, most = min(least, c.Seeds), max(most, c.Seeds)
	}
	switch {
	case least < most:
		return fmt.Sprintf("%d to %d seeds", least, most)
	case most == 1:
		return "1 seed"
	default:
		return fmt.Sprintf("%d seeds", most)
	}
}

func valueOf(m metric, c cell) value {
	e := c.Values[m.Key]
	if !e.finite() {
		v := value{Text: "–", Note: "not known"}
		if m.compares {
			v.Note = "nothing to compare with: no run of the default policy, or one with 0"
		}
		return v
	}
	v := value{Text: m.text(e.Mean)}
	if half := e.half(); half > 0 && !math.IsInf(half, 0) {
		v.Half = m.text(half)
	}
	if e.Seeds < c.Seeds {
		v.Note = fmt.Sprintf("of %d of %d seeds", e.Seeds, c.Seeds)
	}
	return v
}

// markBest marks the best values of a column, unless all are the same. Bounds do not
// count.
func (b *block) markBest(column int, cells []cell) {
	least, most := math.Inf(1), math.Inf(-1)
	for i, c := range cells {
		if mean := c.Values[metrics[column].Key].Mean; !b.Rows[i].Policy.Bound && !math.IsNaN(mean) {
			least, most = min(least, mean), max(most, mean)
		}
	}
	text := metrics[column].text
	if math.IsInf(least, 0) || text(least) == text(most) {
		return
	}
	best := least
	if metrics[column].more {
		best = most
	}
	for i := range b.Rows {
		if v := &b.Rows[i].Values[column]; !b.Rows[i].Policy.Bound && v.Text == text(best) {
			v.Best = true
		}
	}
}

// decimals shows n digits after the point.
func decimals(n int) func(float64) string {
	return func(v float64) string {
		if math.Abs(v) >= 1e15 {
			return strconv.FormatFloat(v, 'g', 3, 64)
		}
		return strconv.FormatFloat(v, 'f', n, 64)
	}
}

// digits shows three significant digits, or all digits before the point.
func digits(v float64) string {
	switch size := math.Abs(v); {
	case v == math.Trunc(v), size >= 100:
		return decimals(0)(v)
	case size >= 10:
		return decimals(1)(v)
	default:
		return decimals(2)(v)
	}
}
