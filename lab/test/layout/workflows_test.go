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
	commands := 0
	for file, parsed := range workflows(t) {
		for _, job := range parsed.Jobs {
			for _, step := range job.Steps {
				if step.Run == "" {
					continue
				}
				commands++
				command := strings.TrimSuffix(asRoot.ReplaceAllString(step.Run, ""), ` >>"$GITHUB_OUTPUT"`)
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

// TestStepsExist checks that scripts/test.sh has every step that it lists for the nightly workflow, and every one that a
// file here names.
func TestStepsExist(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, "scripts/test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	list, ok := strings.CutPrefix(output(t, "scripts/test.sh", "list"), "steps=")
	var names []string
	if err := json.Unmarshal([]byte(list), &names); !ok || err != nil || len(names) < 20 {
		t.Fatalf("scripts/test.sh lists %s: %v", list, err)
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
