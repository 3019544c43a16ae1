package page

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
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

func TestQuantilesAreMeans(t *testing.T) {
	runs := []*evaluation.Run{{}, {}, {}}
	for i := range 101 {
		runs[0].Quantiles = append(runs[0].Quantiles, float64(i))
		runs[1].Quantiles = append(runs[1].Quantiles, float64(3*i))
	}
	got := meanQuantiles(runs) // the third has none
	if len(got) != 101 || got[0] != 0 || got[50] != 100 || got[100] != 200 {
		t.Errorf("got %v", got)
	}
	if got := meanQuantiles(runs[2:]); got != nil {
		t.Errorf("of none: %v", got)
	}
}

func TestPolicies(t *testing.T) {
	var runs []evaluation.Run
	for i := range 10 {
		runs = append(runs, run("a", fmt.Sprintf("new-%d", i), 0, 1, 1))
	}
	runs = append(runs, run("a", "greedy", 0, 1, 1), run("a", "default", 0, 1, 1), run("a", "new-0", 0, 2, 1))
	got := policiesOf(&evaluation.Report{Experiments: []evaluation.Experiment{{Runs: runs}}})
	if len(got) != 12 || got[0].Name != "default" || got[0].Slot != 0 || got[1].Name != "greedy" || got[1].Slot != 7 || !got[1].Bound {
		t.Errorf("the known are first, in their colours: %+v", got)
	}
	for i, p := range got[2:] {
		if want := len(known) + i%(slots-len(known)); p.Name != fmt.Sprintf("new-%d", i) || p.Slot != want {
			t.Errorf("%+v, want slot %d", p, want)
		}
	}
}

// page.css and page.js have every slot.
func TestSlotsHaveLooks(t *testing.T) {
	for i := range slots {
		if n := strings.Count(pageCSS, fmt.Sprintf("--p%d:", i)); n != 2 {
			t.Errorf("colour of slot %d: %d times in page.css, not for light and dark", i, n)
		}
	}
	_, list, _ := strings.Cut(pageJS, "const symbols = [")
	list, _, _ = strings.Cut(list, "]")
	if n := strings.Count(list, `"`) / 2; n != slots {
		t.Errorf("%d symbols in page.js, want %d", n, slots)
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
	if len(table.Blocks) != 1 || table.Blocks[0].Seeds != "1 to 2 seeds" || !table.Open {
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

func testAssets() *Assets {
	return &Assets{Scripts: []string{"var d3 = 1;\r\n", "var Plot = 2;"}, Licences: []Licence{{Packages: []string{"d3", "plot"}, Text: "as is <b>"}}}
}

func write(t *testing.T, report *evaluation.Report) string {
	t.Helper()
	var page strings.Builder
	if err := Write(&page, report, testAssets()); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

func TestWrite(t *testing.T) {
	report := fixture(hostileName)
	page := write(t, report)
	if strings.Contains(page, hostileName) {
		t.Error("the hostile name is in the page as it is")
	}
	_, data, ok := strings.Cut(page, `<script type="application/json" id="data">`)
	data, _, end := strings.Cut(data, "</script>")
	if !ok || !end {
		t.Fatal("no data in the page")
	}
	var parsed struct {
		Policies    []struct{ Name string }
		Experiments []struct {
			Shape  string
			Groups []struct {
				Scenario string
				Cells    []struct {
					Values    map[string][]*float64
					Quantiles []float64
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(data), &parsed); err != nil {
		t.Fatal(err)
	}
	if n := len(parsed.Policies); n != 10 || parsed.Policies[9].Name != hostileName {
		t.Errorf("policies %+v", parsed.Policies)
	}
	var shapes []string
	for _, e := range parsed.Experiments {
		shapes = append(shapes, e.Shape)
	}
	if want := []string{"plain", "tuned", "varied", "varied", "plain"}; !slices.Equal(shapes, want) {
		t.Errorf("shapes %v, want %v", shapes, want)
	}
	if first := parsed.Experiments[0].Groups[0].Cells[0]; len(first.Quantiles) != 101 || *first.Values["bytes"][0] != 1 {
		t.Errorf("the first cell is %+v", first)
	}
	for _, want := range []string{
		report.Version, report.Data, report.Command, report.Experiments[1].Title, report.Experiments[2].Command, hostileName, "as is <b>", "d3, plot",
		"There are no runs of this experiment.",
	} {
		if !strings.Contains(page, html.EscapeString(want)) {
			t.Errorf("no %q in the page", want)
		}
	}
	// From openssl dgst -sha256 -binary | base64 for "var d3 = 1;\n".
	for _, want := range []string{"default-src 'none'", "'sha256-mVz+qM8Frtw9D2rhVWeMBHf4qRPo8fkHoGFxqO1qZMQ='"} {
		if !strings.Contains(html.UnescapeString(page), want) {
			t.Errorf("the page's policy has no %s", want)
		}
	}
	if strings.Contains(page, "\r") {
		t.Error("the browser would read \\r as \\n, and the hash would be of something else")
	}
	if n := strings.Count(page, "http://") + strings.Count(page, "https://"); n != 2 { // links to Plot and D3
		t.Errorf("%d addresses in the page", n)
	}
}

func TestWriteNothing(t *testing.T) {
	if page := write(t, &evaluation.Report{}); !strings.Contains(page, "The report has no experiments.") {
		t.Error(page)
	}
}

// A report made in Go may hold values that JSON cannot express.
func TestWriteNotANumber(t *testing.T) {
	bad := run("a", "default", 0, 1, 0)
	bad.CPUStd, bad.StartupMean, bad.StartupP50, bad.MaxMeanPods = nan, inf, -inf, nan
	bad.Quantiles = slices.Repeat([]float64{nan}, 101)
	page := write(t, &evaluation.Report{Experiments: []evaluation.Experiment{{Name: "e", Runs: []evaluation.Run{bad}}}})
	for _, text := range []string{"NaN", "Inf", "ZgotmplZ"} {
		if _, body, _ := strings.Cut(page, "<body>"); strings.Contains(strings.ReplaceAll(body, pageJS, ""), text) {
			t.Errorf("%s in the page", text)
		}
	}
}

func TestWriteRefusesScriptsThatEndEarly(t *testing.T) {
	for _, script := range []string{`x = "</script>"`, `x = "</SCRIPT >"`, "<!-- x"} {
		if err := Write(&strings.Builder{}, &evaluation.Report{}, &Assets{Scripts: []string{script}}); err == nil {
			t.Errorf("%s is inlined", script)
		}
	}
}

func TestLoadAssets(t *testing.T) {
	folder := t.TempDir()
	if _, err := LoadAssets(folder); err == nil || !strings.Contains(err.Error(), "lab/eval/page/assets.sh") {
		t.Errorf("without assets: %v", err)
	}
	for name, text := range map[string]string{
		"d3/dist/d3.min.js": "d3", "@observablehq/plot/dist/plot.umd.min.js": "plot",
		"d3/LICENSE": "ISC", "d3-array/LICENSE": "ISC", "@observablehq/plot/LICENSE": "ISC 2", "rw/LICENCE.md": "BSD",
	} {
		path := filepath.Join(folder, "node_modules", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	assets, err := LoadAssets(folder)
	if err != nil {
		t.Fatal(err)
	}
	want := "{[d3 plot] [{[@observablehq/plot] ISC 2} {[d3-array d3] ISC} {[rw] BSD}]}"
	if got := fmt.Sprint(*assets); got != want {
		t.Errorf("got %s, want %s", got, want)
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
