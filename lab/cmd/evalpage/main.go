// Command evalpage turns the report of an evaluation into a page with figures
// and tables, the raw numbers as CSV, and one figure for documents.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/page"
	"github.com/layer-locality/layer-locality/terminal"
)

func main() {
	var out, document string
	command := &cobra.Command{
		Use:   "evalpage REPORT.json",
		Short: "Write the report of an evaluation as a page (index.html), a table (report.csv) and, of all policies, a figure (figure.svg)",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return run(args[0], out, document)
		},
	}
	command.Flags().StringVar(&out, "out", "_out/eval", "folder to write to")
	command.Flags().StringVar(&document, "document", "", "markdown `file` whose tables to bring up to date (docs/evaluation.md), as far as the report has what they show")
	os.Exit(terminal.Run(context.Background(), command))
}

// output is a file to be written.
type output struct {
	name    string
	content []byte
}

func run(file, out, document string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var report evaluation.Report
	if err := json.Unmarshal(data, &report); err != nil {
		return fmt.Errorf("%s is not the report of an evaluation: %w", file, err)
	}
	if err := report.Check(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var table, html bytes.Buffer
	if err := evaluation.WriteCSV(&table, &report); err != nil {
		return err
	}
	if err := page.Write(&html, &report); err != nil {
		return err
	}
	files := []output{{"report.csv", table.Bytes()}, {"index.html", html.Bytes()}}
	var figure bytes.Buffer
	switch err := page.WriteFigure(&figure, &report); {
	case err == nil:
		files = append(files, output{"figure.svg", figure.Bytes()})
	case !errors.Is(err, page.ErrNoFigure):
		return err
	}
	for i := range files {
		files[i].name = filepath.Join(out, files[i].name)
	}
	if document != "" {
		text, err := os.ReadFile(document)
		if err != nil {
			return err
		}
		updated, err := page.Document(string(text), &report)
		if err != nil {
			return fmt.Errorf("%s: %w", document, err)
		}
		files = append(files, output{document, []byte(updated)})
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		path := file.name
		if err := os.WriteFile(path, file.content, 0o644); err != nil {
			return err
		}
		fmt.Fprintln(terminal.Stdout, path)
	}
	return nil
}
