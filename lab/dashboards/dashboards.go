// Package dashboards reads the Grafana dashboards of deploy/monitoring/grafana, so that tests can
// check them and run their queries.
package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Folder has the dashboards, from the root of the repository.
const Folder = "deploy/monitoring/grafana"

// Dashboard is what tests look at of a dashboard.
type Dashboard struct {
	// File is its name in Folder.
	File                    string `json:"-"`
	UID, Title, Description string
	SchemaVersion           int
	Panels                  []Panel
	Templating              struct{ List []Variable }
}

// Variable is what users choose at the top.
type Variable struct {
	Name, Type string
	Datasource Source
	// Query is a text, or an object with one.
	Query json.RawMessage
}

// Source is a data source.
type Source struct{ Type, UID string }

// Panel is a panel, or a row that begins a section.
type Panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               Source
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []Target
	FieldConfig              struct{ Defaults struct{ Unit string } }
}

// Target is a query of a panel.
type Target struct {
	RefID          string
	Datasource     Source
	Expr           string
	Instant, Range bool
}

// Query is an expression that a dashboard sends, and what sends it.
type Query struct{ Where, Expr string }

// labelValues is what a variable asks for: the values of a label, which are those of the series of an
// expression. It is a text in JSON.
var labelValues = regexp.MustCompile(`label_values\((.*), [a-z]+\)`)

// Queries returns the queries of all panels and variables.
func Queries(all []Dashboard) (queries []Query, err error) {
	for _, d := range all {
		for _, v := range d.Templating.List {
			if v.Type != "query" {
				continue
			}
			m := labelValues.FindStringSubmatch(string(v.Query))
			if m == nil {
				return nil, fmt.Errorf("%s: %s: %s", d.File, v.Name, v.Query)
			}
			queries = append(queries, Query{d.File + ": " + v.Name, strings.ReplaceAll(m[1], `\"`, `"`)})
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				queries = append(queries, Query{d.File + ": " + p.Title, target.Expr})
			}
		}
	}
	return queries, nil
}

// Read reads all dashboards of the repository with this root.
func Read(root string) ([]Dashboard, error) {
	files, err := filepath.Glob(filepath.Join(root, Folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Dashboard
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		d := Dashboard{File: filepath.Base(file)}
		if err := json.Unmarshal(text, &d); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// selector is a metric with what it is selected by: queries of dashboards always have braces, so
// that a metric looks other than a function or a label.
var selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{`)

// Selected returns the metrics that a query names, each once and sorted: of histograms the series
// that it takes, such as NAME_bucket.
func Selected(expr string) []string {
	var names []string
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Metric returns the metric that a series belongs to: that of a histogram for NAME_bucket.
func Metric(series string) string { return strings.TrimSuffix(series, "_bucket") }

// variable is where Grafana puts a value.
var variable = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))`)

// Variables returns the names of the variables in a query.
func Variables(expr string) []string {
	var names []string
	for _, m := range variable.FindAllStringSubmatch(expr, -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}

// Filled returns a query with values in place of variables, as Grafana sends it: times for what it
// defines itself (the names begin with __), for all others an expression that all values match.
func Filled(expr, window string) string {
	return variable.ReplaceAllStringFunc(expr, func(name string) string {
		if strings.Contains(name, "__") {
			return window
		}
		return ".+"
	})
}
