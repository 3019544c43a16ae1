package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun(t *testing.T) {
	folder := t.TempDir()
	out := filepath.Join(folder, "out", "eval")
	report := write(t, filepath.Join(folder, "report.json"),
		`{"version": "v1", "experiments": [{"name": "policies", "title": "a title", "runs": [
			{"scenario": "s", "policy": "default", "seed": 7, "pulledBytes": 12345},
			{"scenario": "s", "policy": "layerlocality", "seed": 7},
			{"scenario": "s", "policy": "greedy", "seed": 7}]}]}`)
	document := write(t, filepath.Join(folder, "document.md"), "before\n")
	if err := run(report, out, document); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"index.html": "a title", "report.csv": "policies,s,default,,,7,0,0,0,12345,", "figure.svg": "</svg>"} {
		content, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(content), want) {
			t.Errorf("no %q in %s", want, name)
		}
	}
	if text, err := os.ReadFile(document); err != nil || string(text) != "before\n" {
		t.Errorf("a document without tables is now %q, error %v", text, err)
	}
	// A table that cannot be made: nothing is written.
	write(t, document, "<!-- evalpage: other -->\n<!-- end -->")
	elsewhere := filepath.Join(folder, "elsewhere")
	if err := run(report, elsewhere, document); err == nil || !strings.Contains(err.Error(), `document.md: no table "other"`) {
		t.Errorf("an unknown table: %v", err)
	}
	if _, err := os.Stat(elsewhere); err == nil {
		t.Error("something was written")
	}
}

// For an invalid report, the command writes nothing and its error names what is wrong.
func TestRunRefuses(t *testing.T) {
	folder := t.TempDir()
	for content, want := range map[string]string{
		"":   "is not the report of an evaluation",
		"[]": "is not the report of an evaluation",
		`{"experiments": [{"name": "e", "runs": [{"startupMean": NaN}]}]}`:   "is not the report of an evaluation",
		`{"experiments": [{"name": "e", "runs": [{"startupMean": 1e999}]}]}`: "is not the report of an evaluation",
		`{"experiments": [{"name": "e", "runs": [{}, {}]}]}`:                 "two runs of policy",
	} {
		out := filepath.Join(folder, "out")
		err := run(write(t, filepath.Join(folder, "report.json"), content), out, "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", content, err, want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: something was written", content)
		}
	}
	if err := run(filepath.Join(folder, "nothing.json"), folder, ""); err == nil || !strings.Contains(err.Error(), "nothing.json") {
		t.Errorf("no file: %v", err)
	}
}
