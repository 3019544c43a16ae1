package layout

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is what these tests read of one.
type workflow struct {
	Jobs map[string]struct {
		Strategy struct {
			Matrix json.RawMessage `json:"matrix"`
		} `json:"strategy"`
		Steps []struct {
			Run string `json:"run"`
		} `json:"steps"`
	} `json:"jobs"`
}

func workflows(t *testing.T) map[string]workflow {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	found := map[string]workflow{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var parsed workflow
		if err := yaml.Unmarshal(text, &parsed); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found[filepath.Base(file)] = parsed
	}
	return found
}

// TestWorkflowsOnlyCall checks that what workflows run is one command each: make with a target that exists, or a script of
// this repository, so that all of it runs elsewhere, too.
func TestWorkflowsOnlyCall(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	asRoot := regexp.MustCompile(`^sudo env "PATH=\$PATH" (?:[A-Z]+=\w+ )*`)
	toGitHub := regexp.MustCompile(` >>"\$GITHUB_(OUTPUT|STEP_SUMMARY)"$`)
	commands := 0
	for file, parsed := range workflows(t) {
		for _, job := range parsed.Jobs {
			for _, step := range job.Steps {
				if step.Run == "" {
					continue
				}
				commands++
				command := toGitHub.ReplaceAllString(asRoot.ReplaceAllString(step.Run, ""), "")
				if strings.ContainsAny(command, "\n|&;<>()`{}#") {
					t.Errorf("%s: %q is more than a call of make or of a script", file, step.Run)
					continue
				}
				words := strings.Fields(command)
				if words[0] == "make" {
					if len(words) < 2 || !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(words[1])+`:`).Match(makefile) {
						t.Errorf("%s: %q: the Makefile has no such target", file, step.Run)
					}
					continue
				}
				info, err := os.Stat(filepath.Join(root, words[0]))
				if !regexp.MustCompile(`^(scripts|\.ci)/`).MatchString(words[0]) || err != nil || info.Mode()&0o111 == 0 {
					t.Errorf("%s: %q is no call of make or of a script of this repository", file, step.Run)
				}
			}
		}
	}
	if commands < 5 {
		t.Errorf("only %d commands", commands)
	}
}

// nightlyStep is a step of scripts/test.sh that the nightly workflow runs for a minor version of Kubernetes.
type nightlyStep struct{ Line, Step string }

// nightly returns what scripts/test.sh lists for the nightly workflow.
func nightly(t *testing.T) []nightlyStep {
	t.Helper()
	list, ok := strings.CutPrefix(output(t, "scripts/test.sh", "list"), "steps=")
	var steps []nightlyStep
	if err := json.Unmarshal([]byte(list), &steps); !ok || err != nil || len(steps) < 20 {
		t.Fatalf("scripts/test.sh lists %s: %v", list, err)
	}
	return steps
}

// TestNightlyTable checks that the table of the nightly workflow has each step and line that it runs, with its versions, and
// says what failed and what has no result.
func TestNightlyTable(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"results-1.36-core": "1.36\tcore\tv1.36.9\tv1.36.8\t6\t0\t0\n",
		"results-1.35-core": "1.35\tcore\tv1.35.9\tv1.35.8\t5\t1\t2\n",
		"results-1.36-nix":  "1.36\tnix\tv1.36.9\tv1.36.8\t7\t0\t3\n",
	} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name, "results.tsv"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	table := map[string][]string{}
	rows := strings.Split(strings.TrimSpace(output(t, "scripts/test.sh", "table", folder)), "\n")
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		table[cells[0]] = cells[1:]
	}
	column := func(title string) int {
		t.Helper()
		i := slices.Index(table["step"], title)
		if i < 0 {
			t.Fatalf("the table has the columns %q, none of them %q", table["step"], title)
		}
		return i
	}
	columns := map[string]int{
		"1.35": column("Kubernetes v1.35.9, CRI-O v1.35.8"),
		"1.36": column("Kubernetes v1.36.9, CRI-O v1.36.8"),
		"1.37": column("1.37"),
	}
	want := map[nightlyStep]string{
		{"1.36", "core"}: "6 passed",
		{"1.35", "core"}: "**1 failed**, 5 passed, 2 skipped",
		{"1.36", "nix"}:  "7 passed, 3 skipped",
		{"1.35", "nix"}:  "",
	}
	for _, step := range nightly(t) {
		if _, ok := want[step]; !ok {
			want[step] = "**no result**"
		}
	}
	for step, cell := range want {
		if row := table[step.Step]; len(row) != len(columns) || row[columns[step.Line]] != cell {
			t.Errorf("the row of %s has %q, want %q for %s", step.Step, row, cell, step.Line)
		}
	}
}

// TestStepsExist checks that scripts/test.sh has every step that it lists for the nightly workflow, and every one that a
// file here names.
func TestStepsExist(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, "scripts/test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, step := range nightly(t) {
		names = append(names, step.Step)
	}
	for name := range strings.Lines(output(t, "git", "grep", "-ohE", `STEP=[a-z][a-z0-9-]*`, "--", "*.md", "*.yml", "*.sh", "Makefile")) {
		names = append(names, strings.TrimPrefix(strings.TrimSpace(name), "STEP="))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !strings.Contains(string(script), "\nstep_"+name+"() {") {
			t.Errorf("scripts/test.sh has no step %s", name)
		}
	}
}

// TestRequiredChecks checks that docs/release.md protects main with the checks of the workflow for pull requests, by the
// names that GitHub gives them.
func TestRequiredChecks(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/release.md"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`"contexts":(\[.*?\])`).FindSubmatch(text)
	var required []string
	if match == nil || json.Unmarshal(match[1], &required) != nil {
		t.Fatalf("docs/release.md has no list of contexts, but %s", match)
	}
	var checks []string
	for job, parsed := range workflows(t)["pull-request.yml"].Jobs {
		var matrix struct{ Runner []string }
		if len(parsed.Strategy.Matrix) == 0 {
			checks = append(checks, job)
		} else if err := json.Unmarshal(parsed.Strategy.Matrix, &matrix); err != nil {
			t.Fatal(err)
		}
		for _, runner := range matrix.Runner {
			checks = append(checks, job+" ("+runner+")")
		}
	}
	slices.Sort(checks)
	slices.Sort(required)
	if !slices.Equal(checks, required) {
		t.Errorf("docs/release.md requires the checks %q, and the workflow has %q", required, checks)
	}
}
