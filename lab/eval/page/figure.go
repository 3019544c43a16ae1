package page

import (
	"errors"
	"io"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// figureOf is the experiment that has all policies in all scenarios.
const figureOf = "policies"

// figurePolicies are the policies that figures show: each has a colour in figure.svg.tmpl. An
// experiment in which fewer than figureLeast of them ran has no figure.
var figurePolicies = []string{"default", "image-name", "lrscheduler", "layerlocality", "greedy"}

const figureLeast = 3

// The layout, in pixels.
const (
	figureLeft, figureTop       = 160, 64 // the names of rows, the titles
	figurePanel, figureGap      = 300, 30
	figureRow, figureBottom     = 26, 40
	figureMost, figurePointSize = 1.1, 4.5 // of the last tick of an axis, which begins at 0
	figureLetter                = 7        // at most, of a name
)

// ErrNoFigure means that the report has nothing to draw.
var ErrNoFigure = errors.New("no experiment " + figureOf + ", which the figure is of")

// WriteFigure draws bytes and start-up times of the main policies as an SVG, for
// documents. It fails with ErrNoFigure if the report has no such experiment. The
// report must have passed its Check.
func WriteFigure(w io.Writer, report *evaluation.Report) error {
	for i := range report.Experiments {
		if e := &report.Experiments[i]; e.Name == figureOf {
			if d := draw(summarise(e, policiesOf(report)), "Bytes and start-up times of policies in all scenarios", "bytes", "startup"); d != nil {
				return templates.ExecuteTemplate(w, "figure.svg.tmpl", d)
			}
		}
	}
	return ErrNoFigure
}

// drawing is what the template draws.
type drawing struct {
	Label                        string
	Width, Height, Bottom, Names float64
	Rows                         []drawnRow
	Panels                       []svgPanel
	Legend                       []mark
}

// drawnRow is a workload, with a setting of the policies if that is what the experiment varies.
type drawnRow struct {
	Name  string
	Y     float64
	cells []cell
}

type svgPanel struct {
	Title       string
	Middle, One float64 // the middle of the panel; where the default policy is, 0 if it is nowhere
	Ticks       []tick
	Marks       []mark
	Intervals   []interval
}

type tick struct {
	X    float64
	Text string
}

// look is how a policy looks in figures.
type look struct {
	policy
	// Slot is its place among the known ones, and selects its colour.
	Slot int
}

type mark struct {
	Policy look
	X, Y   float64
	Radius float64
}

type interval struct {
	Policy    look
	X1, X2, Y float64
}

// draw lays out a figure with a panel for each of the metrics. It returns nil if there is
// nothing to compare.
func draw(s summary, label string, keys ...string) *drawing {
	rows := rowsOf(s)
	left := float64(figureLeft)
	ran := map[string]bool{}
	for i := range rows {
		rows[i].Y = float64(figureTop + i*figureRow + figureRow/2)
		left = max(left, float64(20+figureLetter*utf8.RuneCountInString(rows[i].Name)))
		for _, c := range rows[i].cells {
			ran[c.Policy] = true
		}
	}
	if len(ran) < figureLeast {
		return nil
	}
	d := &drawing{Label: label, Rows: rows, Names: left - 10}
	shown := map[string]look{}
	for _, name := range figurePolicies {
		if ran[name] {
			slot := slices.IndexFunc(known, func(p policy) bool { return p.Name == name })
			p := look{known[slot], slot}
			shown[name] = p
			d.Legend = append(d.Legend, mark{p, left + float64(len(d.Legend)*125), 18, radius(p)})
		}
	}
	d.Width = left + float64(len(keys))*(figurePanel+figureGap)
	d.Bottom = float64(figureTop + len(rows)*figureRow)
	d.Height = d.Bottom + figureBottom
	for i, key := range keys {
		m := metrics[slices.IndexFunc(metrics, func(m metric) bool { return m.Key == key })]
		d.Panels = append(d.Panels, panelOf(m, left+float64(i*(figurePanel+figureGap)), rows, shown))
	}
	return d
}

// rowsOf lists what the figure of an experiment has below each other, with the cells of the
// policies that figures show.
func rowsOf(s summary) []drawnRow {
	var rows []drawnRow
	for _, g := range s.Groups {
		at := map[float64]int{}
		for _, c := range g.Cells {
			if !slices.Contains(figurePolicies, c.Policy) {
				continue
			}
			i, ok := at[c.X]
			if !ok {
				i = len(rows)
				at[c.X] = i
				rows = append(rows, drawnRow{Name: s.title(g)})
				if s.Shape == tuned && c.X != 0 {
					rows[i].Name += ", " + s.setting(c)
				}
			}
			rows[i].cells = append(rows[i].cells, c)
		}
	}
	return rows
}

func panelOf(m metric, left float64, rows []drawnRow, shown map[string]look) svgPanel {
	// The last tick: 1, or as many steps as the largest value needs.
	step, digitsOf := 0.1, decimals(3)
	if m.compares {
		step, digitsOf = 1, decimals(2)
	}
	end := step
	for _, row := range rows {
		for _, c := range row.cells {
			if e := c.Values[m.Key]; e.finite() {
				end = max(end, min(step*math.Ceil(e.Mean/step/figureMost), math.MaxFloat64))
			}
		}
	}
	at := func(v float64) float64 { return left + figurePanel*min(max(v/end, 0), figureMost)/figureMost }
	p := svgPanel{Title: m.Title, Middle: left + figurePanel/2}
	if m.Unit != "" {
		p.Title += ", " + m.Unit
	}
	if m.compares {
		p.One = at(1)
	}
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 1} {
		p.Ticks = append(p.Ticks, tick{at(share * end), digitsOf(share * end)})
	}
	for _, row := range rows {
		for _, c := range row.cells {
			e, look := c.Values[m.Key], shown[c.Policy]
			if !e.finite() {
				continue
			}
			if look.Strong && !math.IsNaN(e.Low) {
				p.Intervals = append(p.Intervals, interval{look, at(e.Low), at(e.High), row.Y})
			}
			p.Marks = append(p.Marks, mark{look, at(e.Mean), row.Y, radius(look)})
		}
	}
	return p
}

func radius(p look) float64 {
	if p.Strong {
		return figurePointSize + 1
	}
	return figurePointSize
}
