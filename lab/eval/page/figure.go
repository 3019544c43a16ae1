package page

import (
	"bytes"
	_ "embed"
	"errors"
	"html/template"
	"io"
	"math"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

var (
	//go:embed figure.svg.tmpl
	figureSVG      string
	figureTemplate = template.Must(template.New("figure").Parse(figureSVG))
)

// What the figure shows of the experiment that has all policies in all scenarios.
const figureOf = "policies"

var (
	figureMetrics  = []string{"bytes", "startup"}
	figurePolicies = []string{"default", "image-name", "lrscheduler", "layerlocality", "greedy"}
)

// The layout, in pixels.
const (
	figureLeft, figureTop       = 160, 64 // the names of scenarios, the titles
	figurePanel, figureGap      = 300, 30
	figureRow, figureBottom     = 26, 40
	figureMost, figurePointSize = 1.1, 4.5 // of the axis, which begins at 0
)

// ErrNoFigure means that the report has nothing to draw.
var ErrNoFigure = errors.New("no experiment " + figureOf + ", which the figure is of")

// WriteFigure draws bytes and start-up times of the main policies as an SVG, for
// documents that cannot run the page's scripts. It fails with ErrNoFigure if the report has
// no such experiment. The report must have passed its Check.
func WriteFigure(w io.Writer, report *evaluation.Report) error {
	for i := range report.Experiments {
		if e := &report.Experiments[i]; e.Name == figureOf && len(e.Runs) > 0 {
			var out bytes.Buffer
			if err := figureTemplate.Execute(&out, layOut(summarise(e, policiesOf(report)))); err != nil {
				return err
			}
			_, err := w.Write(out.Bytes())
			return err
		}
	}
	return ErrNoFigure
}

// drawing is what the template draws.
type drawing struct {
	Width, Height, Bottom float64
	Rows                  []drawnRow
	Panels                []svgPanel
	Legend                []mark
}

type drawnRow struct {
	Name string
	Y    float64
}

type svgPanel struct {
	Title       string
	Left, Right float64
	Middle, One float64 // the middle of the panel; where the default policy is
	Ticks       []tick
	Marks       []mark
	Intervals   []interval
}

type tick struct {
	X    float64
	Text string
}

type mark struct {
	Policy policy
	X, Y   float64
	Radius float64
}

type interval struct {
	Policy    policy
	X1, X2, Y float64
}

func layOut(s summary) drawing {
	shown := map[string]policy{}
	var d drawing
	for _, name := range figurePolicies {
		for i, p := range known {
			if p.Slot = i; p.Name == name {
				shown[name] = p
				d.Legend = append(d.Legend, mark{p, float64(figureLeft + len(d.Legend)*125), 18, radius(p)})
			}
		}
	}
	for i, g := range s.Groups {
		d.Rows = append(d.Rows, drawnRow{g.Scenario, float64(figureTop + i*figureRow + figureRow/2)})
	}
	d.Width = figureLeft + float64(len(figureMetrics))*(figurePanel+figureGap)
	d.Bottom = float64(figureTop + len(s.Groups)*figureRow)
	d.Height = d.Bottom + figureBottom
	for i, key := range figureMetrics {
		left := float64(figureLeft + i*(figurePanel+figureGap))
		at := func(v float64) float64 { return left + figurePanel*min(max(v, 0), figureMost)/figureMost }
		p := svgPanel{Left: left, Right: left + figurePanel, Middle: left + figurePanel/2, One: at(1)}
		for _, m := range metrics {
			if m.Key == key {
				p.Title = m.Title + ", " + m.Unit
			}
		}
		for _, v := range []float64{0, 0.25, 0.5, 0.75, 1} {
			p.Ticks = append(p.Ticks, tick{at(v), decimals(2)(v)})
		}
		for row, g := range s.Groups {
			for _, c := range g.Cells {
				look, ok := shown[c.Policy]
				e := c.Values[key]
				if !ok || math.IsNaN(e.Mean) || math.IsInf(e.Mean, 0) {
					continue
				}
				y := d.Rows[row].Y
				if look.Strong && !math.IsNaN(e.Low) {
					p.Intervals = append(p.Intervals, interval{look, at(e.Low), at(e.High), y})
				}
				p.Marks = append(p.Marks, mark{look, at(e.Mean), y, radius(look)})
			}
		}
		d.Panels = append(d.Panels, p)
	}
	return d
}

func radius(p policy) float64 {
	if p.Strong {
		return figurePointSize + 1
	}
	return figurePointSize
}
