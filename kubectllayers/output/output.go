// Package output prints answers in the forms that kubectl get has, with kubectl's own printers.
package output

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
	"k8s.io/kubectl/pkg/cmd/get"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/terminal"
)

// Forms without an argument. table, the default, has a name because scripts give it.
const (
	table  = "table"
	wide   = "wide"
	asJSON = "json"
	asYAML = "yaml"
	name   = "name"
)

// Flags choose how an answer is printed, as those of kubectl get.
type Flags struct {
	form, sortBy string
	noHeaders    bool
	template     *genericclioptions.KubeTemplatePrintFlags
	columns      *get.CustomColumnsPrintFlags
}

// NewFlags returns the flags with their defaults.
func NewFlags() *Flags {
	return &Flags{template: genericclioptions.NewKubeTemplatePrintFlags(), columns: get.NewCustomColumnsPrintFlags()}
}

// forms are all of them.
func (f *Flags) forms() []string {
	return slices.Concat([]string{wide, asJSON, asYAML, name}, f.columns.AllowedFormats(), f.template.AllowedFormats())
}

// Add adds the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.form, "output", "o", "", "one of "+strings.Join(f.forms(), ", "))
	cmd.Flags().BoolVar(&f.noHeaders, "no-headers", false, "only the rows of a table")
	cmd.Flags().StringVar(&f.sortBy, "sort-by", "", "sort the rows of a table by a field of theirs, such as .bytes: a JSONPath, as custom-columns has")
	f.template.AddFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(f.forms(), cobra.ShellCompDirectiveNoFileComp))
}

// Brief reports whether an answer needs no more than what a plain table shows.
func (f *Flags) Brief() bool {
	return slices.Contains([]string{"", table, name}, f.form) && f.sortBy == ""
}

// TakeTemplate returns the value of --template if no form is named, and then has it name none: it chose a pod template in
// earlier builds.
func (f *Flags) TakeTemplate() (value string) {
	if slices.Contains([]string{"", table, wide, asJSON, asYAML, name}, f.form) {
		value, *f.template.TemplateArgument = *f.template.TemplateArgument, ""
	}
	return value
}

// Wide reports whether tables have all columns.
func (f *Flags) Wide() bool { return f.form == wide }

// Printer returns what prints answers.
func (f *Flags) Printer() (func(io.Writer, *Answer) error, error) {
	form := f.form
	if form == "" && *f.template.TemplateArgument != "" {
		form = "go-template" // as kubectl get has it
	}
	switch form {
	case "", table, wide:
		return f.sorted(f.table), nil
	case asJSON:
		return func(w io.Writer, a *Answer) error { return terminal.WriteJSON(w, a.Value) }, nil
	case asYAML:
		return writeYAML, nil
	case name:
		return f.sorted(writeNames), nil
	}
	p, err := f.template.ToPrinter(form)
	if err == nil {
		return func(w io.Writer, a *Answer) error {
			document, err := object(a.Value)
			if err != nil {
				return err
			}
			return p.PrintObj(document, w)
		}, nil
	}
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		f.columns.NoHeaders, f.columns.TemplateArgument = f.noHeaders, *f.template.TemplateArgument
		if p, err = f.columns.ToPrinter(form); err == nil {
			return f.sorted(func(w io.Writer, a *Answer) error {
				list := &unstructured.UnstructuredList{}
				for i := range a.Rows {
					row, err := object(a.Rows[i].Object)
					if err != nil {
						return err
					}
					list.Items = append(list.Items, *row)
				}
				return p.PrintObj(list, w)
			}), nil
		}
	}
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return nil, fmt.Errorf("--output %q: want one of %s", terminal.Line(form, 50), strings.Join(f.forms(), ", "))
	}
	return nil, fmt.Errorf("--output: %w", err)
}

// Column of a table.
type Column struct {
	Title string
	// Wide columns are only in wide tables.
	Wide bool
	// Age columns have how long ago something was.
	Age bool
	// Prose columns have sentences, which go on in the next line where a terminal is narrow. Others are cut.
	Prose bool
	// Means is what --help has of the column.
	Means string
}

// Row of a table.
type Row struct {
	// Cells are one for each column, also the wide ones.
	Cells []string
	// Object is what custom columns and sorting are about; Name is what name prints.
	Object any
	Name   string
	// Dim rows are of less interest.
	Dim bool
}

// Answer is what a command prints.
type Answer struct {
	// Value is what json, yaml and templates print. Its form is documented (docs/kubectl-layers.md).
	Value any
	// Above and Below are lines around the table; Text is in place of it.
	Above, Below, Text []string
	Columns            []Column
	Rows               []Row
	// Most is how many rows a table with headers has, 0 for all. All is the flag that shows the others.
	Most int
	All  string
	// Ages are parts of the lines that are other ones as time goes by.
	Ages []string
}

// WithoutAges returns the answer without what is another one as time goes by.
func (a *Answer) WithoutAges() *Answer {
	same := *a
	for _, lines := range []*[]string{&same.Above, &same.Below} {
		*lines = slices.Clone(*lines)
		for i := range *lines {
			for _, age := range a.Ages {
				(*lines)[i] = strings.ReplaceAll((*lines)[i], age, "")
			}
		}
	}
	same.Rows = slices.Clone(a.Rows)
	for i := range same.Rows {
		same.Rows[i].Cells = slices.Clone(same.Rows[i].Cells)
		for c := range a.Columns {
			if a.Columns[c].Age {
				same.Rows[i].Cells[c] = ""
			}
		}
	}
	return &same
}

// object returns a value as kubectl's printers take it. They write texts as they are, so that one could look like several
// lines: texts are cleaned.
func object(value any) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	err = utiljson.Unmarshal(text, &u.Object)
	clean(u.Object)
	return u, err
}

// maxText bounds a text in templates and custom columns.
const maxText = 10_000

// clean returns a value of JSON with its texts cleaned; objects and lists are changed.
func clean(value any) any {
	switch v := value.(type) {
	case string:
		return terminal.Line(v, maxText)
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = clean(v[key])
		}
	}
	return value
}

// sorted returns a printer that has the rows sorted before. kubectl's own sorter ends the program where it finds no order.
func (f *Flags) sorted(write func(io.Writer, *Answer) error) func(io.Writer, *Answer) error {
	return func(w io.Writer, a *Answer) error {
		if f.sortBy == "" || len(a.Rows) == 0 {
			return write(w, a)
		}
		same := *a
		var err error
		if same.Rows, err = sortRows(a.Rows, f.sortBy); err != nil {
			return fmt.Errorf("--sort-by %s: %w: docs/kubectl-layers.md lists the fields", terminal.Line(f.sortBy, 100), err)
		}
		return write(w, &same)
	}
}

// sortRows returns rows by the first value that a JSONPath finds in each: those without one, then numbers or texts.
func sortRows(rows []Row, by string) ([]Row, error) {
	by, err := get.RelaxedJSONPathExpression(by)
	if err != nil {
		return nil, err
	}
	path := jsonpath.New("sort-by").AllowMissingKeys(true)
	if err := path.Parse(by); err != nil {
		return nil, err
	}
	type keyed struct {
		Row
		kind, text string
		number     float64
	}
	all, kind := make([]keyed, len(rows)), ""
	for i := range rows {
		all[i].Row = rows[i]
		u, err := object(rows[i].Object)
		if err != nil {
			return nil, err
		}
		found, err := path.FindResults(u.Object)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 || len(found[0]) == 0 {
			continue
		}
		k := &all[i]
		switch value := found[0][0].Interface().(type) {
		case nil:
			continue
		case int64:
			k.kind, k.number = "number", float64(value)
		case float64:
			k.kind, k.number = "number", value
		case string:
			k.kind, k.text = "text", value
		case bool:
			return nil, errors.New("a bool has no order: numbers and texts can be sorted")
		case []any:
			return nil, errors.New("a list has no order: numbers and texts can be sorted")
		default:
			return nil, errors.New("an object has no order: numbers and texts can be sorted")
		}
		if kind != "" && kind != k.kind {
			return nil, fmt.Errorf("some rows have a %s, others a %s: numbers and texts can be sorted", min(kind, k.kind), max(kind, k.kind))
		}
		kind = k.kind
	}
	if kind == "" {
		return nil, errors.New("no row has this field")
	}
	slices.SortStableFunc(all, func(a, b keyed) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.number, b.number), cmp.Compare(a.text, b.text))
	})
	sorted := make([]Row, len(all))
	for i := range all {
		sorted[i] = all[i].Row
	}
	return sorted, nil
}

func writeYAML(w io.Writer, a *Answer) error {
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
}

// writeNames writes the names of rows, of rows after each other with the same name one.
func writeNames(w io.Writer, a *Answer) error {
	last := ""
	for i := range a.Rows {
		if a.Rows[i].Name == last {
			continue
		}
		last = a.Rows[i].Name
		if _, err := fmt.Fprintln(w, terminal.Line(last, 1000)); err != nil {
			return err
		}
	}
	return nil
}

// Bounds of a cell of a table, and the least to which a terminal's width cuts one.
const (
	maxCell = 120
	minCell = 12
)

func (f *Flags) table(w io.Writer, a *Answer) error {
	if more := len(a.Rows) - a.Most; more > 0 && a.Most > 0 && !f.noHeaders {
		cut := *a
		cut.Rows, cut.Below = a.Rows[:a.Most], slices.Concat([]string{fmt.Sprintf("%d more: %s shows them.", more, a.All)}, a.Below)
		a = &cut
	}
	around := func(lines []string) error {
		for _, line := range lines {
			if f.noHeaders && a.Text == nil && len(a.Rows) > 0 {
				return nil
			}
			if _, err := fmt.Fprintln(w, terminal.Line(line, 1000)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := around(a.Above); err != nil {
		return err
	}
	if err := around(a.Text); err != nil || a.Text != nil {
		return err
	}
	if err := f.rows(w, a); err != nil {
		return err
	}
	return around(a.Below)
}

// rows writes the rows by kubectl's printer.
func (f *Flags) rows(w io.Writer, a *Answer) error {
	t := &metav1.Table{}
	var widths []int
	var prose []bool
	rows := make([][]string, len(a.Rows))
	most := maxCell
	if f.Wide() {
		most *= 4
	}
	for i, c := range a.Columns {
		if c.Wide && !f.Wide() {
			continue
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{Name: c.Title})
		width := utf8.RuneCountInString(c.Title)
		for r := range a.Rows {
			cell := terminal.Line(a.Rows[r].Cells[i], most)
			if cell == "" {
				cell = "-"
			}
			rows[r] = append(rows[r], cell)
			width = max(width, utf8.RuneCountInString(cell))
		}
		widths, prose = append(widths, width), append(prose, c.Prose)
	}
	if width := terminal.Width(w); width > 0 && !f.Wide() {
		fit(widths, width)
	}
	var dim []bool // of the lines
	for r := range rows {
		for line := 0; ; line++ {
			cells, last := lineOf(rows[r], widths, prose, line)
			t.Rows, dim = append(t.Rows, metav1.TableRow{Cells: cells}), append(dim, a.Rows[r].Dim)
			if last {
				break
			}
		}
	}
	var text bytes.Buffer
	if err := printers.NewTablePrinter(printers.PrintOptions{NoHeaders: f.noHeaders}).PrintObj(t, &text); err != nil {
		return err
	}
	headers := 1
	if f.noHeaders {
		headers = 0
	}
	at := 0
	for line := range strings.Lines(text.String()) {
		write := func(w io.Writer, line string) error { _, err := fmt.Fprintln(w, line); return err }
		if at >= headers && dim[at-headers] {
			write = terminal.Dim
		}
		at++
		if err := write(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// lineOf returns a line of a row, and whether it is the last one.
func lineOf(row []string, widths []int, prose []bool, line int) (cells []any, last bool) {
	last = true
	for i, cell := range row {
		switch {
		case prose[i]:
			parts := strings.Split(wordwrap.WrapString(cell, uint(widths[i])), "\n") //nolint:gosec // no width is negative
			last = last && line >= len(parts)-1
			cells = append(cells, strings.Join(parts[min(line, len(parts)):min(line+1, len(parts))], ""))
		case line > 0:
			cells = append(cells, "")
		default:
			cells = append(cells, shorten(cell, widths[i]))
		}
	}
	return cells, last
}

// fit makes the widest columns smaller until a line has at most so many characters.
func fit(widths []int, most int) {
	sum := 3 * (len(widths) - 1)
	for _, width := range widths {
		sum += width
	}
	for ; sum > most; sum-- {
		widest := slices.Index(widths, slices.Max(widths))
		if widths[widest] <= minCell {
			return
		}
		widths[widest]--
	}
}

// shorten cuts a text to a width: of the name of an image, the end distinguishes it from others.
func shorten(s string, width int) string {
	runes := []rune(s)
	if len(runes) <= width || !strings.Contains(s, "/") {
		return terminal.Line(s, width)
	}
	return "..." + string(runes[len(runes)-width+3:])
}
