//go:build integration

package page

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// screenshots is the folder for pictures of the page; without it there are none.
var screenshots = os.Getenv("EVALPAGE_SCREENSHOTS")

// browser is a headless Chromium and the problems it reported.
type browser struct {
	context.Context
	mu       sync.Mutex
	problems []string
	requests []string
}

func (b *browser) note(list *[]string, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*list = append(*list, fmt.Sprintf(format, args...))
}

// seen returns what was recorded so far.
func (b *browser) seen() (problems, requests []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.problems), slices.Clone(b.requests)
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	b := &browser{}
	ctx, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.NoSandbox, // tests run as root
		chromedp.DisableGPU,
		chromedp.WSURLReadTimeout(time.Minute),
		chromedp.UserDataDir(t.TempDir()),
		chromedp.Env("TMPDIR="+t.TempDir()), // it leaves files behind
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
	)...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf), chromedp.WithListener(b.listen))
	t.Cleanup(stop)
	b.Context = ctx
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("Chromium or Chrome does not start: %v; scripts/install-deps.sh chromium installs it", err)
	}
	t.Cleanup(func() { // gracefully: its folder is removed next
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("ending the browser: %v", err)
		}
	})
	call(t, b, runtime.Enable, cdp.Empty{})
	call(t, b, log.Enable, cdp.Empty{})
	call(t, b, network.Enable, network.EnableParams{})
	return b
}

func (b *browser) listen(event any) {
	switch event := event.(type) {
	case *runtime.EventExceptionThrown:
		b.note(&b.problems, "exception: %+v", event.ExceptionDetails)
	case *runtime.EventConsoleAPICalled:
		for _, arg := range event.Args {
			b.note(&b.problems, "console.%s: %s %s", event.Type, arg.Value, arg.Description)
		}
	case *log.EventEntryAdded:
		b.note(&b.problems, "%s: %s %s", event.Entry.Level, event.Entry.Text, event.Entry.URL)
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(event.Request.URL, "data:") {
			b.note(&b.requests, "%s", event.Request.URL)
		}
	}
}

func call[P, R any](t *testing.T, b *browser, command cdp.Command[P, R], params P) {
	t.Helper()
	if _, err := chromedp.Call(b, command, params); err != nil {
		t.Fatal(err)
	}
}

// do runs an action, which must end within a minute.
func do[T any](t *testing.T, b *browser, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b, time.Minute)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// patient has a poll last as long as do.
var patient = chromedp.WithPollingTimeout(time.Minute)

// open shows the page and waits until none of its figures is empty.
func (b *browser) open(t *testing.T, url string) {
	t.Helper()
	do(t, b, chromedp.Navigate(url))
	do(t, b, chromedp.Poll[bool](`document.readyState === "complete" && [...document.querySelectorAll(".panels")].every((p) => p.childElementCount > 0)`, patient))
}

// serve writes and serves the report's page. It returns the address and a
// function that lists the requests.
func serve(t *testing.T, report *evaluation.Report) (url string, asked func() []string) {
	t.Helper()
	if err := report.Check(); err != nil {
		t.Fatal(err)
	}
	assets, err := LoadAssets(filepath.Join("..", "..", "..", "_build", "page-assets"))
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	if err := Write(&page, report, assets); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, page.String())
	}))
	t.Cleanup(server.Close)
	return server.URL + "/", func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(paths)
	}
}

// figure is what the browser has of a figure.
type figure struct {
	Experiment string
	Title      string
	Panels     []panel
	Legend     []string
}

type panel struct {
	Label string
	Dots  int
	Lines int
	// Points of all lines.
	Points int
	Areas  int
	Labels []string
	Width  float64
	Height float64
}

const listFigures = `[...document.querySelectorAll("figure")].map((figure) => ({
	experiment: figure.parentElement.dataset.experiment,
	title: figure.querySelector("figcaption").firstChild.textContent,
	legend: [...figure.querySelectorAll(".legend button")].map((b) => b.textContent),
	panels: [...figure.querySelectorAll(".panel > svg")].map((svg) => ({
		label: svg.getAttribute("role") === "img" ? svg.getAttribute("aria-label") : "",
		dots: svg.querySelectorAll("[aria-label=dot] > *").length,
		lines: svg.querySelectorAll("[aria-label=line] > path").length,
		points: [...svg.querySelectorAll("[aria-label=line] > path")].reduce((n, p) => n + p.getAttribute("d").split(/[ML]/).length - 1, 0),
		areas: svg.querySelectorAll("[aria-label=area] > path").length,
		labels: [...svg.querySelectorAll("[aria-label=label] > text")].map((t) => t.textContent),
		width: svg.getBoundingClientRect().width,
		height: svg.getBoundingClientRect().height,
	})),
}))`

// The page of a complete report: it renders, nothing is missing, it makes no
// requests, and hostile names are text.
func TestPageInBrowser(t *testing.T) {
	report := fixture(hostileName)
	url, asked := serve(t, report)
	b := startBrowser(t)
	do(t, b, chromedp.EmulateViewport(1280, 900))
	b.open(t, url)

	figures := do(t, b, chromedp.Evaluate[[]figure](listFigures))
	// What the figures of each experiment hold, counted from the fixture.
	const plain, frontier, zipf, links = "0", "1", "2", "3"
	for _, want := range []struct {
		experiment, title                   string
		panels                              int
		dots, lines, points, areas, legends int // a panel
	}{
		{plain, "Every policy in every scenario", 3, 5 * 10, 0, 0, 0, 10},
		{plain, "Start-up times", 5, 0, 10, -1, 0, 10},
		{frontier, "Bytes against balance", 2, 6 + 2*6, 2, 2 * 6, 0, 8},
		{zipf, "Gain and cost over Zipf exponent", 2 * 3, 8 * 4, 8, 8 * 4, 8, 8},
		{zipf, "Start-up times", 2 * 4, 0, 8, -1, 0, 8},
		{links, "Gain and cost over Mbit/s", 3, 8 * 4, 8, 8 * 4, 8, 8},
	} {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.Experiment == want.experiment && f.Title == want.title })
		if i < 0 {
			t.Errorf("experiment %s has no figure %q", want.experiment, want.title)
			continue
		}
		f := figures[i]
		figures = slices.Delete(figures, i, i+1)
		if len(f.Panels) != want.panels || len(f.Legend) != want.legends {
			t.Errorf("%s: %d panels, %d policies in the legend, want %d, %d", f.Title, len(f.Panels), len(f.Legend), want.panels, want.legends)
		}
		for _, p := range f.Panels {
			if want.points < 0 { // a curve has one point for each time above the floor
				if p.Points < 30*want.lines || p.Points > 102*want.lines {
					t.Errorf("%s: %d points in %d lines", p.Label, p.Points, p.Lines)
				}
				p.Points = want.points
			}
			if p.Dots != want.dots || p.Lines != want.lines || p.Points != want.points || p.Areas != want.areas {
				t.Errorf("%s: %d dots, %d lines of %d points, %d areas, want %d, %d, %d, %d", p.Label, p.Dots, p.Lines, p.Points, p.Areas, want.dots, want.lines, want.points, want.areas)
			}
			if p.Label == "" {
				t.Errorf("%s: a panel without an accessible title", f.Title)
			}
			if p.Width < 250 || p.Height < 200 {
				t.Errorf("%s: only %v × %v", p.Label, p.Width, p.Height)
			}
			if want.experiment == frontier {
				for _, name := range f.Legend {
					if !slices.Contains(p.Labels, name) {
						t.Errorf("%s: no label %s among %q", p.Label, name, p.Labels)
					}
				}
			}
		}
	}
	for _, f := range figures {
		t.Errorf("unexpected figure %q of experiment %s", f.Title, f.Experiment)
	}

	checkTables(t, b, report)

	// The hostile name is text where it should be, and it ran no script.
	hostile := do(t, b, chromedp.Evaluate[struct {
		Scripts, Cells, Legend, Blocks int
		Paragraph                      string
	}](fmt.Sprintf(`(() => {
		const name = %q;
		const count = (selector) => [...document.querySelectorAll(selector)].filter((n) => n.textContent === name).length;
		return { scripts: document.scripts.length, cells: count("tbody th .policy"), legend: count(".legend button"), blocks: [...document.querySelectorAll(".block span")].filter((n) => n.firstChild.textContent.trim() === name).length,
			paragraph: document.querySelector(".experiment .text").textContent };
	})()`, hostileName)))
	// d3, Plot, the page's own and the data; one row in each of five scenarios; two figures.
	if hostile.Scripts != 4 || hostile.Cells != 5 || hostile.Legend != 2 || hostile.Blocks != 1 || !strings.HasSuffix(hostile.Paragraph, hostileName) {
		t.Errorf("the hostile name: %+v", hostile)
	}

	// A click hides the policy in all figures.
	do(t, b, chromedp.Click(chromedp.CSS(`.legend button[data-policy="greedy"]`)))
	left := do(t, b, chromedp.Evaluate[[]int](`[...document.querySelectorAll("figure")].map((f) => f.querySelectorAll(".panel [aria-label=line] > path").length + f.querySelectorAll(".panel [aria-label=dot] > *").length)`))
	if want := []int{3 * 5 * 9, 5 * 9, 2 * (5 + 2*6 + 2), 6 * 7 * 5, 8 * 7, 3 * 7 * 5}; !slices.Equal(left, want) {
		t.Errorf("marks without greedy: %v, want %v", left, want)
	}

	// There is a tooltip with numbers at the pointer.
	at := do(t, b, chromedp.Evaluate[[]float64](`(() => {
		const dot = [...document.querySelectorAll("figure .panel svg [aria-label=dot] > *")][0];
		dot.scrollIntoView({ block: "center" });
		const { x, y, width, height } = dot.getBoundingClientRect();
		return [x + width / 2, y + height / 2];
	})()`))
	do(t, b, chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at[0], at[1]))
	tip := do(t, b, chromedp.Poll[string](`document.querySelector("figure .panel svg [aria-label=tip]")?.textContent`, patient))
	if !strings.Contains(tip, "Bytes: 1 × (1 to 1)") || !strings.Contains(tip, "5 seeds") {
		t.Errorf("tooltip %q", tip)
	}

	// The page is not wider than the window, not even on a phone.
	for _, width := range []int64{1280, 700, 380} {
		do(t, b, chromedp.EmulateViewport(width, 800))
		b.open(t, url)
		if wide := do(t, b, chromedp.Evaluate[float64](`document.documentElement.scrollWidth`)); wide > float64(width) {
			t.Errorf("the page is %v wide in a window of %d", wide, width)
		}
	}

	problems, requests := b.seen()
	if len(problems) > 0 {
		t.Errorf("the browser complains: %q", problems)
	}
	for _, request := range requests {
		if request != url {
			t.Errorf("the page requested %s", request)
		}
	}
	for _, path := range asked() {
		if path != "/" {
			t.Errorf("the server was asked for %s", path)
		}
	}
	takeScreenshots(t, b, url)
}

// checkTables checks that each experiment has a row for every policy, setting
// and workload, with a number in every column.
func checkTables(t *testing.T, b *browser, report *evaluation.Report) {
	t.Helper()
	tables := do(t, b, chromedp.Evaluate[[]struct {
		Rows []struct {
			Block, Name string
			Cells       []string
		}
	}](`[...document.querySelectorAll(".experiment")].map((section) => ({
		rows: [...section.querySelectorAll("tbody")].flatMap((body) => [...body.querySelectorAll("tr:not(.block)")].map((row) => ({
			block: body.querySelector(".block span").firstChild.textContent.trim(),
			name: row.querySelector("th").textContent,
			cells: [...row.querySelectorAll("td")].map((cell) => cell.textContent),
		}))),
	}))`))
	if len(tables) != len(report.Experiments) {
		t.Fatalf("%d experiments on the page, %d in the report", len(tables), len(report.Experiments))
	}
	for i, experiment := range report.Experiments {
		rows := map[string]bool{}
		for _, row := range tables[i].Rows {
			rows[row.Block+" | "+row.Name] = true
			if len(row.Cells) != len(metrics) || slices.Contains(row.Cells, "") || slices.Contains(row.Cells, "–") {
				t.Errorf("%s: row %s has cells %q", experiment.Name, row.Name, row.Cells)
			}
		}
		s := shapeOf(&experiment)
		want := map[string]bool{}
		for _, run := range experiment.Runs {
			block, name := run.Scenario, run.Policy
			if s == varied {
				block = fmt.Sprintf("%s, %s %v", block, experiment.Axis, run.X)
			}
			if s == tuned && run.X > 0 {
				name = fmt.Sprintf("%s %s %v", name, experiment.Axis, run.X)
			}
			want[block+" | "+name] = true
			if !rows[block+" | "+name] {
				t.Errorf("%s: no row for %s in %s", experiment.Name, name, block)
			}
		}
		if len(rows) != len(want) || len(rows) != len(tables[i].Rows) {
			t.Errorf("%s: %d rows, want %d", experiment.Name, len(tables[i].Rows), len(want))
		}
	}
}

// A report with little in it must not break the page.
func TestPagesOfLittleInBrowser(t *testing.T) {
	one := evaluation.Run{Scenario: "s", Policy: "layerlocality", Seed: 1, Metrics: evaluation.Metrics{Pods: 1, PulledBytes: 1, StartupMean: 1, CPUStd: 0.1, Quantiles: make([]float64, 101)}}
	base := one
	base.Policy, base.PulledBytes, base.StartupMean = "default", 0, 0
	at := func(x float64) evaluation.Run {
		r := one
		r.X = x
		return r
	}
	huge := one
	huge.CPUStd, huge.StartupMean, huge.X = math.MaxFloat64, -1, math.MaxFloat64
	b := startBrowser(t)
	for name, experiments := range map[string][]evaluation.Experiment{
		"nothing":           nil,
		"no runs":           {{Name: "e"}},
		"one run":           {{Name: "e", Runs: []evaluation.Run{one}}},
		"default is 0":      {{Name: "e", Runs: []evaluation.Run{base, one}}},
		"one x":             {{Name: "e", Axis: "nodes", Log: true, Runs: []evaluation.Run{base, one}}},
		"frontier of zeros": {{Name: "e", Axis: "weight", Runs: []evaluation.Run{base, at(1), at(2)}}},
		"huge":              {{Name: "e", Axis: "weight", Log: true, Runs: []evaluation.Run{huge, base, at(1)}}},
		"huge distances":    {{Name: "e", Axis: "weight", Runs: []evaluation.Run{huge, at(-math.MaxFloat64)}}},
		"no default":        {{Name: "e", Axis: "weight", Log: true, Runs: []evaluation.Run{at(-1), at(1)}}},
	} {
		url, _ := serve(t, &evaluation.Report{Experiments: experiments})
		do(t, b, chromedp.Navigate(url))
		// Figures are drawn with the first frame; some of these pages have no
		// figure to wait for.
		do(t, b, chromedp.Evaluate[chromedp.Void](`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))`, chromedp.EvalAwaitPromise))
		rows := do(t, b, chromedp.Evaluate[int](`document.querySelectorAll("tbody tr:not(.block)").length`))
		want := 0
		for _, e := range experiments {
			want += len(e.Runs)
		}
		if rows != want {
			t.Errorf("%s: %d rows, want %d", name, rows, want)
		}
		if problems, _ := b.seen(); len(problems) > 0 {
			t.Fatalf("%s: the browser complains: %q", name, problems)
		}
	}
}

func takeScreenshots(t *testing.T, b *browser, url string) {
	t.Helper()
	if screenshots == "" {
		return
	}
	if err := os.MkdirAll(screenshots, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, picture := range []struct {
		name          string
		width         int64
		media, scheme string
	}{{"light", 1280, "", "light"}, {"dark", 1280, "", "dark"}, {"narrow", 400, "", "light"}, {"print", 740, "print", "dark"}} {
		do(t, b, chromedp.EmulateViewport(picture.width, 900))
		call(t, b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media:    picture.media,
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: picture.scheme}},
		})
		b.open(t, url)
		png := do(t, b, chromedp.FullScreenshot(100))
		if err := os.WriteFile(filepath.Join(screenshots, picture.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
