package page

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// run returns a run with only the fields that ratios use.
func run(scenario, policy string, x float64, seed uint64, pulled int64) evaluation.Run {
	return evaluation.Run{Scenario: scenario, Policy: policy, X: x, Seed: seed, Metrics: evaluation.Metrics{PulledBytes: pulled}}
}

// bytesOf lists the bytes of a summary, as "scenario x: policy x mean n".
func bytesOf(s summary) []string {
	var list []string
	for _, g := range s.Groups {
		for _, c := range g.Cells {
			e := c.Values["bytes"]
			list = append(list, fmt.Sprintf("%s %v: %s %v %v %d", g.Scenario, g.X, c.Policy, c.X, e.Mean, e.Seeds))
		}
	}
	return list
}

func TestSummarise(t *testing.T) {
	for name, test := range map[string]struct {
		axis  string
		runs  []evaluation.Run
		shape shape
		want  []string
	}{
		// Runs are compared seed by seed: the mean of 1/2 and 1/4, not 110/220.
		"paired by seed": {"", []evaluation.Run{
			run("b", "layerlocality", 0, 1, 100), run("b", "layerlocality", 0, 2, 10),
			run("b", "default", 0, 2, 40), run("b", "default", 0, 1, 200),
			run("a", "mine", 0, 1, 3), run("a", "default", 0, 1, 1),
		}, plain, []string{"b 0: default 0 1 2", "b 0: layerlocality 0 0.375 2", "a 0: default 0 1 1", "a 0: mine 0 3 1"}},
		"a seed without default": {"", []evaluation.Run{
			run("a", "greedy", 0, 1, 1), run("a", "greedy", 0, 2, 1), run("a", "default", 0, 2, 2),
		}, plain, []string{"a 0: default 0 1 1", "a 0: greedy 0 0.5 1"}},
		"no default": {"", []evaluation.Run{run("a", "greedy", 0, 1, 1)}, plain, []string{"a 0: greedy 0 NaN 0"}},
		// Leaving out the seed in which only the policy pulled would flatter the
		// policy.
		"default pulls nothing": {"", []evaluation.Run{
			run("a", "greedy", 0, 1, 1), run("a", "default", 0, 1, 0), run("a", "greedy", 0, 2, 1), run("a", "default", 0, 2, 2),
			run("b", "greedy", 0, 1, 0), run("b", "default", 0, 1, 0),
		}, plain, []string{"a 0: default 0 1 2", "a 0: greedy 0 NaN 0", "b 0: default 0 1 1", "b 0: greedy 0 1 1"}},
		"a property of the workload": {"nodes", []evaluation.Run{
			run("a", "default", 10, 1, 4), run("a", "greedy", 10, 1, 1), run("a", "default", 3, 1, 2), run("a", "greedy", 3, 1, 1),
			run("a", "default", 50, 1, 2), // greedy takes too long there
		}, varied, []string{"a 3: default 3 1 1", "a 3: greedy 3 0.5 1", "a 10: default 10 1 1", "a 10: greedy 10 0.25 1", "a 50: default 50 1 1"}},
		"a setting of policies": {"weight", []evaluation.Run{
			run("a", "layerlocality", 4, 1, 1), run("a", "layerlocality", 1, 1, 2), run("a", "default", 0, 1, 4), run("a", "greedy", 0, 1, 1),
		}, tuned, []string{"a 0: default 0 1 1", "a 0: layerlocality 1 0.5 1", "a 0: layerlocality 4 0.25 1", "a 0: greedy 0 0.25 1"}},
		"nothing": {"", nil, plain, nil},
	} {
		experiment := evaluation.Experiment{Name: "e", Axis: test.axis, Runs: test.runs}
		s := summarise(&experiment, policiesOf(&evaluation.Report{Experiments: []evaluation.Experiment{experiment}}))
		if got := bytesOf(s); s.Shape != test.shape || !slices.Equal(got, test.want) {
			t.Errorf("%s: %s %q, want %s %q", name, s.Shape, got, test.shape, test.want)
		}
	}
}

func TestPolicies(t *testing.T) {
	var runs []evaluation.Run
	for i := range 10 {
		runs = append(runs, run("a", fmt.Sprintf("new-%d", i), 0, 1, 1))
	}
	runs = append(runs, run("a", "greedy", 0, 1, 1), run("a", "default", 0, 1, 1), run("a", "new-0", 0, 2, 1))
	got := policiesOf(&evaluation.Report{Experiments: []evaluation.Experiment{{Runs: runs}}})
	if len(got) != 12 || got[0].Name != "default" || got[1].Name != "greedy" || !got[1].Bound {
		t.Errorf("the known are not first: %+v", got)
	}
	for i, p := range got[2:] {
		if want := fmt.Sprintf("new-%d", i); p.Name != want {
			t.Errorf("%+v, want %s", p, want)
		}
	}
}

func TestTable(t *testing.T) {
	base := run("a", "default", 0, 1, 100e9)
	base.CPUStd, base.StartupMean, base.DistinctBytes = 0.1, 1, 1e9
	mine := run("a", "layerlocality", 0, 1, 25e9)
	mine.CPUStd, mine.StartupMean = 0.2, 1
	bound := run("a", "greedy", 0, 1, 1e9)
	bound.CPUStd, bound.StartupMean = 0.05, 1
	other := run("a", "layerlocality", 0, 2, 1e9)
	experiment := evaluation.Experiment{Name: "e", Runs: []evaluation.Run{base, mine, bound, other}}
	policies := policiesOf(&evaluation.Report{Experiments: []evaluation.Experiment{experiment}})
	table := tableOf(summarise(&experiment, policies), policies)
	if len(table.Blocks) != 1 || table.Blocks[0].Seeds != "1 to 2 seeds" {
		t.Fatalf("%+v", table)
	}
	column := func(key string) (values []value) {
		i := slices.IndexFunc(metrics, func(m metric) bool { return m.Key == key })
		for _, r := range table.Blocks[0].Rows {
			values = append(values, r.Values[i])
		}
		return values
	}
	for key, want := range map[string][]value{
		// The bound is not marked as best.
		"bytes": {{Text: "1.000"}, {Text: "0.250", Note: "of 1 of 2 seeds", Best: true}, {Text: "0.010"}},
		// The most is the best.
		"avoided": {{Text: "0.000"}, {Text: "0.758", Note: "of 1 of 2 seeds", Best: true}, {Text: "1.000"}},
		// For 13 the half interval is 12.7 times the standard error of 12.
		"pulled": {{Text: "100"}, {Text: "13", Half: "152", Best: true}, {Text: "1"}},
		// All are the same except the bound.
		"startup": {{Text: "1.000"}, {Text: "1.000", Note: "of 1 of 2 seeds"}, {Text: "1.000"}},
		"disk":    {{Text: "0"}, {Text: "0"}, {Text: "0"}},
	} {
		if got := column(key); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", key, got, want)
		}
	}
}

func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 0.123: "0.12", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234.5: "1234", -12.34: "-12.3",
		math.MaxFloat64: "1.8e+308", 1e15: "1e+15", 1e-9: "0.00",
	} {
		if got := digits(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

// parsed is what the tests read of a page.
type parsed struct {
	Sections []struct {
		Figures []struct {
			Marks []struct{} `xml:"circle"`
		} `xml:"svg"`
		Blocks []struct {
			Rows []struct {
				Head  markup   `xml:"th"`
				Cells []markup `xml:"td"`
			} `xml:"tr"`
		} `xml:"div>table>tbody"`
	} `xml:"body>section"`
}

type markup struct {
	XML string `xml:",innerxml"`
}

var tag = regexp.MustCompile("<[^>]*>")

func (m markup) text() string { return html.UnescapeString(tag.ReplaceAllString(m.XML, "")) }

func write(t *testing.T, report *evaluation.Report) (string, parsed) {
	t.Helper()
	var page strings.Builder
	if err := Write(&page, report); err != nil {
		t.Fatal(err)
	}
	var p parsed
	decoder := xml.NewDecoder(strings.NewReader(page.String()))
	decoder.Strict, decoder.AutoClose, decoder.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	if err := decoder.Decode(&p); err != nil {
		t.Fatalf("%v in\n%s", err, page.String())
	}
	if len(p.Sections) != len(report.Experiments) {
		t.Fatalf("%d experiments on the page, %d in the report", len(p.Sections), len(report.Experiments))
	}
	return page.String(), p
}

// rowsOn lists the rows of a section as "block | policy setting"; each has a cell for every metric.
func rowsOn(t *testing.T, p parsed, section int) (rows []string) {
	t.Helper()
	for _, block := range p.Sections[section].Blocks {
		title, _, _ := strings.Cut(block.Rows[0].Head.XML, " <small>")
		for _, row := range block.Rows[1:] {
			rows = append(rows, markup{title}.text()+" | "+row.Head.text())
			if len(row.Cells) != len(metrics) || slices.Contains(row.Cells, markup{}) {
				t.Errorf("row %s has cells %q", row.Head.text(), row.Cells)
			}
		}
	}
	return rows
}

// Each experiment has a row for every policy, setting and workload, with a number in every
// column, and a figure.
func TestWrite(t *testing.T) {
	report := fixture(hostileName)
	page, p := write(t, report)
	for i, e := range report.Experiments {
		want := map[string]bool{}
		for _, run := range e.Runs {
			block, name := run.Scenario, run.Policy
			switch s := shapeOf(&e); {
			case s == varied:
				block = fmt.Sprintf("%s, %s %v", block, e.Axis, run.X)
			case s == tuned && run.X > 0:
				name = fmt.Sprintf("%s %s %v", name, e.Axis, run.X)
			}
			want[block+" | "+name] = true
		}
		got := rowsOn(t, p, i)
		slices.Sort(got)
		if want := slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
			t.Errorf("%s has rows\n%q\nwant\n%q", e.Name, got, want)
		}
		if n := len(p.Sections[i].Figures); n != min(len(e.Runs), 1) {
			t.Errorf("%s has %d figures", e.Name, n)
		}
	}
	for _, want := range []string{
		report.Version, report.Data, report.Command, report.Experiments[1].Title, report.Experiments[2].Command, hostileName,
		"There are no runs of this experiment.", known[3].About,
	} {
		if !strings.Contains(page, html.EscapeString(want)) {
			t.Errorf("no %q in the page", want)
		}
	}
	for _, text := range []string{"<script", "://", "–</td>", "ZgotmplZ"} {
		if strings.Contains(strings.ReplaceAll(page, "http://www.w3.org/2000/svg", ""), text) {
			t.Errorf("%s in the page", text)
		}
	}
}

func TestWriteNothing(t *testing.T) {
	if page, _ := write(t, &evaluation.Report{}); !strings.Contains(page, "The report has no experiments.") {
		t.Error(page)
	}
}

// A report with little in it, or with values that are no numbers, has all rows.
func TestWriteLittle(t *testing.T) {
	one := evaluation.Run{Scenario: "s", Policy: "layerlocality", Seed: 1, Metrics: evaluation.Metrics{Pods: 1, PulledBytes: 1, StartupMean: 1, CPUStd: 0.1}}
	change := func(f func(*evaluation.Run)) evaluation.Run {
		r := one
		f(&r)
		return r
	}
	base := change(func(r *evaluation.Run) { r.Policy, r.PulledBytes, r.StartupMean = "default", 0, 0 })
	at := func(x float64) evaluation.Run { return change(func(r *evaluation.Run) { r.X = x }) }
	huge := change(func(r *evaluation.Run) { r.CPUStd, r.StartupMean, r.X = math.MaxFloat64, -1, math.MaxFloat64 })
	again := change(func(r *evaluation.Run) { r.CPUStd, r.X, r.Seed = math.MaxFloat64, math.MaxFloat64, 2 })
	bad := change(func(r *evaluation.Run) {
		r.Policy, r.CPUStd, r.StartupMean, r.StartupP50, r.MaxMeanPods = "greedy", nan, inf, -inf, nan
	})
	for name, e := range map[string]evaluation.Experiment{
		"no runs":           {},
		"one run":           {Runs: []evaluation.Run{one}},
		"default is 0":      {Runs: []evaluation.Run{base, one}},
		"one x":             {Axis: "nodes", Runs: []evaluation.Run{base, one}},
		"frontier of zeros": {Axis: "weight", Runs: []evaluation.Run{base, at(1), at(2)}},
		"huge distances":    {Axis: "weight", Runs: []evaluation.Run{huge, at(-math.MaxFloat64)}},
		"no default":        {Axis: "weight", Runs: []evaluation.Run{at(-1), at(1)}},
		"no numbers":        {Axis: "weight", Runs: []evaluation.Run{base, bad, huge, at(1)}},
	} {
		for _, more := range [][]evaluation.Run{nil, {again}} {
			runs := append(slices.Clone(e.Runs), more...)
			page, p := write(t, &evaluation.Report{Experiments: []evaluation.Experiment{{Name: "e", Axis: e.Axis, Runs: runs}}})
			variants := map[variant]bool{}
			for _, r := range runs {
				variants[variant{r.Policy, r.X}] = true
			}
			if n := len(rowsOn(t, p, 0)); n != len(variants) {
				t.Errorf("%s: %d rows, want %d", name, n, len(variants))
			}
			for _, text := range []string{"NaN", "Inf", "ZgotmplZ"} {
				if strings.Contains(page, text) {
					t.Errorf("%s: %s in the page", name, text)
				}
			}
		}
	}
}

// What the figures of experiments have, counted from the fixture.
func TestDraw(t *testing.T) {
	report := fixture(hostileName)
	policies := policiesOf(report)
	of := func(e *evaluation.Experiment) *drawing {
		return draw(summarise(e, policies), "a label", "bytes", "cpu")
	}
	for i, want := range []struct {
		rows, marks int
		second      string
	}{
		{5, 5 * 5, "10 nodes, ReplicaSets"},
		{2 * 7, 2 * (3 + 2*6), "single pods, weight 1"},
		{2 * 4, 2 * 4 * 5, "10 nodes, Zipf exponent 0.6"},
		{4, 4 * 5, "10 nodes, Mbit/s 50"},
	} {
		d := of(&report.Experiments[i])
		if len(d.Rows) != want.rows || d.Rows[1].Name != want.second || len(d.Panels) != 2 || len(d.Legend) != 5 || d.Names < float64(figureLetter*len(want.second)) {
			t.Errorf("%s: %+v", report.Experiments[i].Name, d)
		}
		for _, p := range d.Panels {
			if len(p.Marks) != want.marks || len(p.Intervals) != len(d.Rows) && i != 1 {
				t.Errorf("%s: %s has %d marks, %d intervals", report.Experiments[i].Name, p.Title, len(p.Marks), len(p.Intervals))
			}
		}
	}
	if d := of(&report.Experiments[4]); d != nil {
		t.Errorf("of no runs: %+v", d)
	}
	// Two policies are too few; axes are as long as the largest value needs.
	base, mine, bound := run("a", "default", 0, 1, 100), run("a", "layerlocality", 0, 1, 640), run("a", "greedy", 0, 1, 50)
	base.CPUStd, mine.CPUStd = 0.05, 0.25
	if d := of(&evaluation.Experiment{Name: "e", Runs: []evaluation.Run{base, mine, run("a", "other", 0, 1, 1)}}); d != nil {
		t.Errorf("of two policies: %+v", d)
	}
	d := of(&evaluation.Experiment{Name: "e", Runs: []evaluation.Run{base, mine, bound}})
	left := d.Names + 10
	for i, want := range []struct {
		title, tick    string
		one, end, mean float64
	}{
		{"Bytes, × default", "6.00", left + 300/6.6, left + 300/1.1, left + 300*6.4/6.6},
		{"CPU std. dev.", "0.300", 0, left + 330 + 300/1.1, left + 330 + 300*0.25/0.33},
	} {
		p := d.Panels[i]
		last := p.Ticks[len(p.Ticks)-1]
		if p.Title != want.title || last.Text != want.tick || !same(last.X, want.end) || !same(p.One, want.one) || !same(p.Marks[1].X, want.mean) {
			t.Errorf("got %+v, want %+v", p, want)
		}
	}
}

func TestWriteFigure(t *testing.T) {
	report := fixture(hostileName)
	if err := WriteFigure(&strings.Builder{}, report); !errors.Is(err, ErrNoFigure) {
		t.Errorf("without its experiment: %v", err)
	}
	report.Experiments[0].Name = figureOf
	var out strings.Builder
	if err := WriteFigure(&out, report); err != nil {
		t.Fatal(err)
	}
	figure := out.String()
	var circles, lines int
	var texts []string
	for d := xml.NewDecoder(strings.NewReader(figure)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no XML: %v\n%s", err, figure)
		}
		switch e := token.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "circle":
				circles++
			case "line":
				lines++
			case "script":
				t.Error("a script is in the figure")
			}
		case xml.CharData:
			texts = append(texts, string(e))
		}
	}
	// The legend; five policies in five scenarios, twice. Intervals of one policy, five ticks and
	// the line of the default policy in each panel.
	if circles != 5+2*5*5 || lines != 2*(5+5+1) {
		t.Errorf("%d circles, %d lines", circles, lines)
	}
	for _, want := range []string{"layerlocality", "greedy", "10 nodes, ReplicaSets", "Bytes, × default", "Start-up mean, × default", hostileName} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q in\n%s", want, figure)
		}
	}
	for _, text := range []string{"ZgotmplZ", "NaN", "http://www.w3.org/1999"} {
		if strings.Contains(figure, text) {
			t.Errorf("%s in the figure", text)
		}
	}
	// Every colour that is used is defined, for light and dark.
	for _, name := range figurePolicies {
		i := slices.IndexFunc(known, func(p policy) bool { return p.Name == name })
		if i < 0 || strings.Count(figure, fmt.Sprintf("--p%d:", i)) != 2 || !strings.Contains(figure, fmt.Sprintf(".p%d {", i)) {
			t.Errorf("%s has no colour in the figure", name)
		}
	}
}
