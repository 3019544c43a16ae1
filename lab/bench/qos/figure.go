package qos

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strings"
)

var (
	//go:embed figure.svg.tmpl
	figureSVG      string
	figureTemplate = template.Must(template.New("figure").Parse(figureSVG))
)

// The layout, in pixels.
const (
	figureLeft, figureTop, figureBottom = 50, 56, 52
	figurePanel, figureGap              = 230, 40
	figureTall                          = 200
)

// panels are the parts of the figure: which arms each compares.
var panels = []struct{ title, suffix string }{
	{"100 of SLO 1, 160 of SLO .5", "-160"},
	{"100 of SLO 1, 200 of SLO .5", "-200"},
}

// lines are the arms of a panel, by the beginning of their names, and how they are called. What
// only explains a figure is left out.
var lines = []struct{ prefix, name string }{
	{priorities, "priorities"}, {qosaware, "QosAware"}, {pull, "QosAware, pods with pulls"},
}

// drawing is what the template draws.
type drawing struct {
	Width, Height, Top, Bottom float64
	Panels                     []drawnPanel
	Legend                     []drawnLine
}

type drawnPanel struct {
	Title               string
	Left, Right, Middle float64
	Ticks               []tick
	Lines               []drawnLine
}

type tick struct {
	Y, Value float64
}

type drawnLine struct {
	Slot   int
	Name   string
	X      float64
	Points string
}

// draw draws what workloads of SLO .5 got, sorted, as an SVG into a file.
func (r *Result) draw(path string) error {
	d := drawing{
		Width:  figureLeft + float64(len(panels))*(figurePanel+figureGap),
		Height: figureTop + figureTall + figureBottom, Top: figureTop, Bottom: figureTop + figureTall,
	}
	for i, panel := range panels {
		left := float64(figureLeft + i*(figurePanel+figureGap))
		p := drawnPanel{Title: panel.title, Left: left, Right: left + figurePanel, Middle: left + figurePanel/2}
		y := func(quality float64) float64 { return figureTop + figureTall*(1-quality) }
		for _, value := range []float64{0, .25, .5, .75, 1} {
			p.Ticks = append(p.Ticks, tick{y(value), value})
		}
		for slot, line := range lines {
			o := r.of(line.prefix + panel.suffix)
			if o == nil {
				continue
			}
			points := make([]string, len(o.Silver))
			for rank, quality := range o.Silver {
				points[rank] = fmt.Sprintf("%.1f,%.1f", left+figurePanel*(float64(rank)+.5)/float64(len(o.Silver)), y(quality))
			}
			p.Lines = append(p.Lines, drawnLine{Slot: slot, Points: strings.Join(points, " ")})
		}
		d.Panels = append(d.Panels, p)
	}
	for slot, line := range lines {
		d.Legend = append(d.Legend, drawnLine{Slot: slot, Name: line.name, X: figureLeft + float64(slot)*130})
	}
	var out bytes.Buffer
	if err := figureTemplate.Execute(&out, d); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}
