// Package output prints answers in the forms that kubectl has: table, wide, json, yaml, name.
package output

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/terminal"
)

// Form is how answers are printed.
type Form string

const (
	// Table is for people.
	Table Form = "table"
	// Wide is a table with more columns.
	Wide Form = "wide"
	// JSON is for programs.
	JSON Form = "json"
	// YAML is the same document as JSON.
	YAML Form = "yaml"
	// Name has a line with kind and name for each row.
	Name Form = "name"
)

// Forms are all of them.
var Forms = []Form{Table, Wide, JSON, YAML, Name}

// ParseForm reads the value of the flag --output.
func ParseForm(value string) (Form, error) {
	if value == "" {
		return Table, nil
	}
	if form := Form(value); slices.Contains(Forms, form) {
		return form, nil
	}
	var all []string
	for _, form := range Forms {
		all = append(all, string(form))
	}
	return "", fmt.Errorf("--output %q: want %s", terminal.Line(value, 50), strings.Join(all, ", "))
}

// Column of a table.
type Column struct {
	Title string
	// Wide columns are only in wide tables.
	Wide bool
}

// Answer is what a command prints.
type Answer struct {
	// Value is what json and yaml print. Its form is documented (docs/kubectl-layers.md).
	Value any
	// Above and Below are lines around the table.
	Above, Below []string
	Columns      []Column
	// Rows have a cell for each column, also the wide ones.
	Rows [][]string
	// Names are what name prints.
	Names []string
}

// maxCell bounds a cell of a table.
const maxCell = 120

// Print prints an answer.
func Print(w io.Writer, form Form, a *Answer) error {
	switch form {
	case JSON:
		return terminal.WriteJSON(w, a.Value)
	case YAML:
		var document bytes.Buffer
		if err := terminal.WriteJSON(&document, a.Value); err != nil {
			return err
		}
		data, err := yaml.JSONToYAML(document.Bytes()) // which takes no control characters
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	case Name:
		for _, name := range a.Names {
			if _, err := fmt.Fprintln(w, terminal.Line(name, 1000)); err != nil {
				return err
			}
		}
		return nil
	}
	return table(w, form == Wide, a)
}

func table(w io.Writer, wide bool, a *Answer) error {
	for _, line := range a.Above {
		if _, err := fmt.Fprintln(w, terminal.Line(line, 1000)); err != nil {
			return err
		}
	}
	if len(a.Rows) > 0 {
		t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
		var titles []string
		for _, c := range a.Columns {
			if wide || !c.Wide {
				titles = append(titles, c.Title)
			}
		}
		fmt.Fprintln(t, strings.Join(titles, "\t"))
		for _, row := range a.Rows {
			var cells []string
			for i, c := range a.Columns {
				if wide || !c.Wide {
					cells = append(cells, cell(row[i], wide))
				}
			}
			fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, line := range a.Below {
		if _, err := fmt.Fprintln(w, terminal.Line(line, 1000)); err != nil {
			return err
		}
	}
	return nil
}

func cell(s string, wide bool) string {
	if s == "" {
		return "-"
	}
	if wide {
		return terminal.Line(s, 4*maxCell)
	}
	return terminal.Line(s, maxCell)
}
