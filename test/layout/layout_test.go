package layout

import (
	"bytes"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/layer-locality/layer-locality"
)

// output runs a command in the root of the repository.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = root
	// Ignore the workspace with the patched Kubernetes.
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

// packages returns the sorted folders of this repository's packages that "go list"
// prints with these arguments.
func packages(t *testing.T, args ...string) []string {
	t.Helper()
	var found []string
	// In test variants, the name of the test follows the package name.
	for line := range strings.Lines(output(t, "go", append([]string{"list", "-f", "{{.ImportPath}}"}, args...)...)) {
		path, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		path = strings.TrimSuffix(strings.TrimSuffix(path, ".test"), "_test")
		if folder, ok := strings.CutPrefix(path, module+"/"); ok && !slices.Contains(found, folder) {
			found = append(found, folder)
		}
	}
	slices.Sort(found)
	return found
}

// shellList returns an array from scripts/lib.sh.
func shellList(t *testing.T, name string) []string {
	t.Helper()
	return strings.Fields(output(t, "bash", "-c", `. scripts/lib.sh && echo "${`+name+`[@]}"`))
}

// inFolders tells whether a package is in or below one of the folders.
func inFolders(folders []string, folder string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return folder == f || strings.HasPrefix(folder, f+"/") })
}

// compare checks that every needed package is in a folder, and that every folder is
// needed.
func compare(t *testing.T, what string, folders, needed []string) {
	t.Helper()
	for _, folder := range needed {
		if !inFolders(folders, folder) {
			t.Errorf("%s: %s is needed and in none of %v", what, folder, folders)
		}
	}
	for _, folder := range folders {
		if !slices.ContainsFunc(needed, func(n string) bool { return inFolders([]string{folder}, n) }) {
			t.Errorf("%s: nothing needs %s", what, folder)
		}
	}
}

// TestWorkspace checks that scripts/lib.sh copies exactly those folders into the
// workspace with the patched Kubernetes that its programs and tests need.
func TestWorkspace(t *testing.T) {
	product := packages(t, "-deps", "-tags", "imagelayers", "./cmd/kube-scheduler")
	compare(t, "SCHEDULER_PRODUCT", shellList(t, "SCHEDULER_PRODUCT"), product)

	extender := shellList(t, "EXTENDER_PRODUCT")
	compare(t, "EXTENDER_PRODUCT", extender, slices.DeleteFunc(packages(t, "-deps", "-tags", "imagelayers", "./cmd/layer-extender"),
		func(folder string) bool { return inFolders(shellList(t, "SCHEDULER_PRODUCT"), folder) }))

	kubectl := shellList(t, "KUBECTL_PRODUCT")
	compare(t, "KUBECTL_PRODUCT", kubectl, slices.DeleteFunc(packages(t, "-deps", "-tags", "imagelayers", "./cmd/kubectl-layers"),
		func(folder string) bool { return inFolders(shellList(t, "SCHEDULER_PRODUCT"), folder) }))

	lab := shellList(t, "SCHEDULER_LAB")
	all := slices.Concat(lab, extender, kubectl, shellList(t, "SCHEDULER_PRODUCT"))
	patterns := make([]string, len(all))
	for i, folder := range all {
		patterns[i] = "./" + folder + "/..."
	}
	needed := packages(t, append([]string{"-deps", "-test", "-tags", "imagelayers,bench,integration"}, patterns...)...)
	compare(t, "SCHEDULER_PRODUCT, EXTENDER_PRODUCT, KUBECTL_PRODUCT and SCHEDULER_LAB", all, needed)
	// A folder of the laboratory is there only if a program or a test that runs in
	// the workspace needs it.
	roots := []string{
		"./cmd/layersim", "./internal/bench/extender/measure", "./internal/bench/qos/measure", "./internal/bench/scheduler/measure",
		"./internal/bench/throughput/perf", "./test/integration",
	}
	compare(t, "SCHEDULER_LAB", lab, slices.DeleteFunc(
		packages(t, append([]string{"-deps", "-test", "-tags", "imagelayers,bench,integration"}, roots...)...),
		func(folder string) bool {
			return inFolders(product, folder) || inFolders(extender, folder) || inFolders(kubectl, folder) || strings.HasPrefix(folder, "scheduler/")
		}))
}

// TestNixParts checks that nix/part.nix takes only those parts of this repository
// from which a program is made. Otherwise an edit elsewhere causes a rebuild.
func TestNixParts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "nix/part.nix"))
	if err != nil {
		t.Fatal(err)
	}
	for part, program := range map[string]string{"scheduler": "cmd/kube-scheduler", "resolver": "cmd/layer-resolver"} {
		list := regexp.MustCompile(`(?s)\n      ` + part + ` = (?:overlay \+\+ )?\[(.*?)\]`).FindSubmatch(text)
		if list == nil {
			t.Fatalf("nix/part.nix has no list %q", part)
		}
		var folders []string
		for _, name := range regexp.MustCompile(`"([^"]+)"`).FindAllSubmatch(list[1], -1) {
			if info, err := os.Stat(filepath.Join(root, string(name[1]))); err != nil {
				t.Errorf("nix/part.nix, %s: %v", part, err)
			} else if info.IsDir() {
				folders = append(folders, string(name[1]))
			}
		}
		compare(t, "nix/part.nix, "+part, folders, packages(t, "-deps", "-tags", "imagelayers", "./"+program))
	}
	for part, folder := range map[string]string{"cri-o": "crio", "kubernetes": "kubelet/imagelayers"} {
		if !regexp.MustCompile(`\n      ` + part + ` = overlay \+\+ \[ "` + folder + `" \]`).Match(text) {
			t.Errorf("nix/part.nix: %s does not consist of %s", part, folder)
		}
	}
}

// TestFoldersAreDocumented checks that newcomers can find every Go package:
// docs/architecture.md or the README of a folder above names it, or the package in
// whose folder it is.
func TestFoldersAreDocumented(t *testing.T) {
	architecture, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := func(folder string) bool {
		if bytes.Contains(architecture, []byte("`"+folder+"`")) {
			return true
		}
		for above := filepath.Dir(folder); above != "."; above = filepath.Dir(above) {
			readme, err := os.ReadFile(filepath.Join(root, above, "README.md"))
			name := strings.TrimPrefix(folder, above+"/")
			if err == nil && (bytes.Contains(readme, []byte("`"+name+"`")) || bytes.Contains(readme, []byte("]("+name+")"))) {
				return true
			}
		}
		return false
	}
	all := packages(t, "-tags", "e2e,bench,integration", "./...")
	for _, folder := range all {
		if !slices.ContainsFunc(all, func(p string) bool { return inFolders([]string{p}, folder) && told(p) }) {
			t.Errorf("%s is named neither in docs/architecture.md nor in a README above it", folder)
		}
	}
}

// TestLinks checks that relative links in documents lead to existing files and
// headings.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for file := range strings.Lines(output(t, "git", "ls-files", "-co", "--exclude-standard", "*.md")) {
		file = strings.TrimSpace(file)
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // deleted, but still in the index
		}
		for _, match := range link.FindAllSubmatch(text, -1) {
			target := string(match[1])
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, heading, _ := strings.Cut(target, "#")
			to := filepath.Join(root, file)
			if path != "" {
				to = filepath.Join(root, filepath.Dir(file), path)
			}
			info, err := os.Stat(to)
			if err == nil && info.IsDir() && heading != "" {
				to = filepath.Join(to, "README.md")
			}
			if err != nil {
				t.Errorf("%s: %s leads nowhere", file, target)
			} else if heading != "" && !slices.Contains(headings(t, to), heading) {
				t.Errorf("%s: %s has no heading #%s", file, path, heading)
			}
		}
	}
}

// TestAddress checks that only a few files name the address of this repository: a fork
// changes go.mod, its imports and these. All others derive it from go.mod, as
// scripts/lib.sh and nix/pins.nix do, or say "a clone of this repository".
func TestAddress(t *testing.T) {
	// golangci-lint's configuration has import paths; inputs of a flake accept no variable.
	allowed := []string{".golangci.yml", "README.md", "docs/install-nix.md", "go.mod"}
	address := regexp.MustCompile(`github(\.com[/:]|:)layer-locality/`)
	for file := range strings.Lines(output(t, "git", "ls-files", "-co", "--exclude-standard")) {
		file = strings.TrimSpace(file)
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || strings.HasSuffix(file, ".go") {
			continue // deleted, but still in the index; or imports
		}
		if at := address.FindIndex(text); (at != nil) != slices.Contains(allowed, file) {
			if at == nil {
				t.Errorf("%s does not name the address of this repository: take it from the list here", file)
				continue
			}
			line := 1 + bytes.Count(text[:at[0]], []byte("\n"))
			t.Errorf("%s:%d names the address of this repository, which only %v do", file, line, allowed)
		}
	}
}

// headings returns the anchors of a document's headings.
func headings(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, match := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllSubmatch(text, -1) {
		name := strings.ToLower(string(match[1]))
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		found = append(found, strings.ReplaceAll(name, " ", "-"))
	}
	return found
}

// TestSampleIsOfTheRecording checks that README.md shows what docs/demo.svg, the
// recording of a real run, shows too. scripts/record-demo.sh writes both.
func TestSampleIsOfTheRecording(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, marked, found := strings.Cut(string(readme), "<!-- From the recording")
	_, sample, opened := strings.Cut(marked, "\n```\n")
	sample, _, closed := strings.Cut(sample, "\n```\n")
	if !found || !opened || !closed {
		t.Fatal("README.md has no sample of the recording")
	}
	recording, err := os.ReadFile(filepath.Join(root, "docs", "demo.svg"))
	if err != nil {
		t.Fatal(err)
	}
	// A group is a line of the terminal, each text in it a part with one style.
	var drawing struct {
		Groups []struct {
			Texts []string `xml:"text"`
		} `xml:"svg>defs>g"`
	}
	if err := xml.Unmarshal(recording, &drawing); err != nil {
		t.Fatal(err)
	}
	words := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	recorded := map[string]bool{"": true}
	for _, group := range drawing.Groups {
		recorded[words(strings.Join(group.Texts, " "))] = true
	}
	if len(recorded) < 50 {
		t.Fatalf("docs/demo.svg has only %d lines", len(recorded))
	}
	for line := range strings.Lines(sample) {
		if !recorded[words(line)] {
			t.Errorf("not in the recording: %s", line)
		}
	}
}
