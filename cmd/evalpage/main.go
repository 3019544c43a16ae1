// Command evalpage turns the report of an evaluation into a page with figures
// and tables, and the raw numbers as CSV.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/layer-locality/layer-locality/internal/eval/evaluation"
	"github.com/layer-locality/layer-locality/internal/eval/page"
)

func main() {
	var out, assets string
	command := &cobra.Command{
		Use:           "evalpage REPORT.json",
		Short:         "Write the report of an evaluation as a page (index.html) and a table (report.csv)",
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return run(args[0], out, assets)
		},
	}
	command.Flags().StringVar(&out, "out", "_out/eval", "folder to write to")
	command.Flags().StringVar(&assets, "assets", "_build/page-assets", "folder with the page's libraries, from internal/eval/page/assets.sh")
	if err := command.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "evalpage: %v\n", err)
		os.Exit(1)
	}
}

func run(file, out, assetFolder string) error {
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
	assets, err := page.LoadAssets(assetFolder)
	if err != nil {
		return err
	}
	var table, html bytes.Buffer
	if err := evaluation.WriteCSV(&table, &report); err != nil {
		return err
	}
	if err := page.Write(&html, &report, assets); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{"report.csv", table.Bytes()}, {"index.html", html.Bytes()}} {
		path := filepath.Join(out, file.name)
		if err := os.WriteFile(path, file.content, 0o644); err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}
