// Package page makes the page that shows the outcome of an evaluation: one
// HTML file with tables and figures that loads nothing and has no scripts.
package page

import (
	"embed"
	"html/template"
	"io"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

//go:embed page.html figure.svg.tmpl
var files embed.FS

var templates = template.Must(template.ParseFS(files, "*"))

// Write writes the page. The report must have passed its Check.
func Write(w io.Writer, report *evaluation.Report) error {
	v := view{Report: report, Policies: policiesOf(report)}
	for i := range report.Experiments {
		e := &report.Experiments[i]
		s := summarise(e, v.Policies)
		v.Experiments = append(v.Experiments, section{e, draw(s, e.Title, "bytes", "startup", "cpu"), tableOf(s, v.Policies)})
	}
	return templates.ExecuteTemplate(w, "page.html", v)
}

// view is what page.html shows.
type view struct {
	*evaluation.Report
	Policies    []policy
	Experiments []section
}

type section struct {
	*evaluation.Experiment
	// Figure is nil if there is none.
	Figure *drawing
	Table  table
}
