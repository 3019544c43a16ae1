package layout

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nix-community/go-nix/pkg/nar"
)

const (
	root   = "../../.."
	module = "github.com/layer-locality/layer-locality"
)

// output runs a command in the root of the repository, and go in the module of the laboratory, which sees
// the packages of both modules.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = root
	if program == "go" {
		cmd.Dir = filepath.Join(root, "lab")
	}
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
// prints with these arguments. "./" stands for the root of the repository.
func packages(t *testing.T, args ...string) []string {
	t.Helper()
	var found []string
	for i, arg := range args {
		if folder, ok := strings.CutPrefix(arg, "./"); ok {
			args[i] = module + "/" + folder
		}
	}
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

// inFolders reports whether a package is in or below one of the folders.
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

// TestProducts checks that scripts/lib.sh lists exactly those folders that the programs are made from which are compiled
// beside the patched Kubernetes: packages and hashes of binaries rely on it.
func TestProducts(t *testing.T) {
	scheduler := shellList(t, "SCHEDULER_PRODUCT")
	compare(t, "SCHEDULER_PRODUCT", scheduler, packages(t, "-deps", "-tags", "imagelayers", "./cmd/kube-scheduler"))
	for list, program := range map[string]string{"EXTENDER_PRODUCT": "./cmd/layer-extender", "KUBECTL_PRODUCT": "./cmd/kubectl-layers"} {
		compare(t, list, shellList(t, list), slices.DeleteFunc(packages(t, "-deps", "-tags", "imagelayers", program),
			func(folder string) bool { return inFolders(scheduler, folder) }))
	}
}

// TestWorkspace checks that the workspace has every package of this repository but for NOT_IN_WORKSPACE, and every
// module that these need and Kubernetes does not require: go.mod has the versions.
func TestWorkspace(t *testing.T) {
	without := shellList(t, "NOT_IN_WORKSPACE")
	for _, folder := range without {
		if _, err := os.Stat(filepath.Join(root, folder)); err != nil {
			t.Errorf("NOT_IN_WORKSPACE: %v", err)
		}
	}
	var patterns []string
	for _, folder := range packages(t, "-tags", "imagelayers,e2e,bench,integration", "./...") {
		if !inFolders(without, folder) {
			patterns = append(patterns, module+"/"+folder)
		}
	}
	needed := map[string]bool{}
	list := append([]string{"list", "-deps", "-test", "-tags", "imagelayers,e2e,bench,integration", "-f", "{{with .Module}}{{.Path}}{{end}}"}, patterns...)
	for path := range strings.Lines(output(t, "go", list...)) {
		needed[strings.TrimSpace(path)] = true
	}
	kubernetes := strings.TrimSpace(output(t, "go", "list", "-m", "-f", "{{.GoMod}}", "k8s.io/kubernetes"))
	required, err := os.ReadFile(kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	modules := shellList(t, "WORKSPACE_MODULES")
	for path := range needed {
		if path == "" || path == module || path == module+"/lab" || path == "k8s.io/kubernetes" || strings.Contains(string(required), "\t"+path+" ") {
			continue
		}
		if !slices.Contains(modules, path) {
			t.Errorf("WORKSPACE_MODULES in scripts/lib.sh lacks %s, which is needed and which Kubernetes does not require", path)
		}
	}
}

// TestLanes checks that the table of scripts/test.sh, from which CI chooses what to run, has only paths that exist and
// steps that there are; that a row of tests on clusters names every package that these are made from; and that some
// row names every package: a change of one that no row names runs all steps.
func TestLanes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "scripts/test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	variable := func(name, open, end string) string {
		_, rest, found := strings.Cut(string(text), "\n"+name+"="+open)
		value, _, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("scripts/test.sh has no %s", name)
		}
		return value
	}
	expand := strings.NewReplacer("PRODUCT", variable("PRODUCT", `"`, `"`), "LAB", variable("LAB", `"`, `"`))
	named := strings.Fields(variable("SHARED", "(", ")"))
	for _, path := range strings.Fields(variable("APART", "(", ")")) {
		named = append(named, strings.Trim(path, "'"))
	}
	steps := 0
	for row := range strings.Lines(variable("STEP_TABLE", "'", "'\n")) {
		fields := strings.Fields(expand.Replace(row))
		if len(fields) == 0 {
			continue
		}
		steps++
		if len(fields) < 4 || !slices.Contains([]string{"p", "c", "a"}, fields[1]) || !bytes.Contains(text, []byte("\nstep_"+fields[0]+"() {")) {
			t.Errorf("row %q: want a step of scripts/test.sh, its kind, minutes and paths", row)
			continue
		}
		if fields[3] == "." {
			continue
		}
		named = append(named, fields[3:]...)
		if fields[1] != "c" {
			continue
		}
		list := []string{"-deps", "-test", "-tags", "imagelayers,e2e"}
		for _, path := range fields[3:] {
			if strings.HasPrefix(path, "lab/test/") {
				list = append(list, "./"+path+"/...")
			}
		}
		for _, folder := range packages(t, list...) {
			if !inFolders(fields[3:], folder) {
				t.Errorf("row %s does not name %s, which its tests are made from", fields[0], folder)
			}
		}
	}
	if steps < 20 {
		t.Fatalf("only %d rows", steps)
	}
	for _, path := range named {
		if matches, err := filepath.Glob(filepath.Join(root, path)); err != nil || len(matches) == 0 {
			t.Errorf("scripts/test.sh names %s, which is not there", path)
		}
	}
	for _, folder := range packages(t, "-tags", "e2e,bench,integration", "./...") {
		if !inFolders(named, folder) {
			t.Errorf("no row names %s: a change there runs all steps", folder)
		}
	}
}

// nixPart returns the folders and files that nix/part.nix takes for a part.
func nixPart(t *testing.T, part string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "nix/part.nix"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)\n      ` + part + ` = (?:overlay \+\+ )?\[(.*?)\]`).FindSubmatch(text)
	if list == nil {
		t.Fatalf("nix/part.nix has no list %q", part)
	}
	var names []string
	for _, name := range regexp.MustCompile(`"([^"]+)"`).FindAllSubmatch(list[1], -1) {
		names = append(names, string(name[1]))
	}
	return names
}

// TestNixVendorHash checks OWN_VENDOR_HASH in versions.env: Nix refuses to build nix/own.nix with another one, and each
// change of go.mod makes another one. The hash is that of vendor/ as a Nix archive.
func TestNixVendorHash(t *testing.T) {
	part := t.TempDir()
	for _, name := range nixPart(t, "own") {
		for file := range strings.Lines(output(t, "git", "ls-files", "-co", "--exclude-standard", "--", name)) {
			file = strings.TrimSpace(file)
			content, err := os.ReadFile(filepath.Join(root, file))
			if err != nil || strings.HasSuffix(file, "_test.go") {
				continue // deleted, but still in the index; or left out by nix/part.nix
			}
			if err := os.MkdirAll(filepath.Join(part, filepath.Dir(file)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(part, file), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	vendor := exec.CommandContext(t.Context(), "go", "mod", "vendor")
	vendor.Dir, vendor.Env = part, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := vendor.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", vendor, err, out)
	}
	hash := sha256.New()
	if err := nar.DumpPath(hash, filepath.Join(part, "vendor")); err != nil {
		t.Fatal(err)
	}
	pins, err := os.ReadFile(filepath.Join(root, "versions.env"))
	if err != nil {
		t.Fatal(err)
	}
	want := "\nOWN_VENDOR_HASH=sha256-" + base64.StdEncoding.EncodeToString(hash.Sum(nil)) + "\n"
	if !strings.Contains(string(pins), want) {
		t.Errorf("versions.env: want%s", want)
	}
}

// TestNixParts checks that nix/part.nix takes exactly those parts of this repository
// from which programs are made. Otherwise an edit elsewhere causes a rebuild.
func TestNixParts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "nix/part.nix"))
	if err != nil {
		t.Fatal(err)
	}
	folders := func(part string) (folders []string) {
		for _, name := range nixPart(t, part) {
			if info, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("nix/part.nix, %s: %v", part, err)
			} else if info.IsDir() {
				folders = append(folders, name)
			}
		}
		return folders
	}
	made := func(programs ...string) []string {
		return packages(t, append([]string{"-deps", "-tags", "imagelayers"}, programs...)...)
	}
	compare(t, "nix/part.nix, scheduler", folders("scheduler"), made("./cmd/kube-scheduler"))
	compare(t, "nix/part.nix, own", folders("own"), made("./cmd/layer-resolver", "./cmd/layer-agent", "./cmd/layer-prefetcher", "./cmd/layer-extender", "./cmd/kubectl-layers"))
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
	named := func(folder string) bool {
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
		if !slices.ContainsFunc(all, func(p string) bool { return inFolders([]string{p}, folder) && named(p) }) {
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
// scripts/lib.sh and nix/pins.nix do, or write "a clone of this repository".
func TestAddress(t *testing.T) {
	// golangci-lint's configuration has import paths; inputs of a flake accept no variable.
	allowed := []string{".golangci.yml", "README.md", "docs/install-nix.md", "go.mod", "lab/go.mod"}
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

// TestRenovate checks that renovate.json has a line for each version in versions.env and in those of lines, and no other,
// and that a line stays on its minor version: Renovate proposes newer ones by these.
func TestRenovate(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "renovate.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		PackageRules []struct {
			MatchFileNames  []string `json:"matchFileNames"`
			AllowedVersions string   `json:"allowedVersions"`
		} `json:"packageRules"`
		CustomManagers []struct {
			ManagerFilePatterns []string `json:"managerFilePatterns"`
			MatchStrings        []string `json:"matchStrings"`
			DepNameTemplate     string   `json:"depNameTemplate"`
		} `json:"customManagers"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "lines", "*", "versions.env"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, filepath.Join(root, "versions.env")) {
		file, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		pins, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for _, manager := range config.CustomManagers {
			if len(manager.ManagerFilePatterns) != 1 || len(manager.MatchStrings) != 1 {
				t.Fatalf("%s: %q and %q, want one each", manager.DepNameTemplate, manager.ManagerFilePatterns, manager.MatchStrings)
			}
			if !regexp.MustCompile(strings.Trim(manager.ManagerFilePatterns[0], "/")).MatchString(file) {
				continue
			}
			matches := regexp.MustCompile(manager.MatchStrings[0]).FindAllStringSubmatch(string(pins), -1)
			if len(matches) > 1 || len(matches) == 0 && file == "versions.env" {
				t.Errorf("%s: %q match %q in %s, want one", manager.DepNameTemplate, manager.MatchStrings, matches, file)
			}
			for _, match := range matches {
				found[strings.TrimSpace(match[0])]++
			}
		}
		for pin := range strings.Lines(string(pins)) {
			if name, _, _ := strings.Cut(pin, "="); strings.HasSuffix(name, "_VERSION") && found[strings.TrimSpace(pin)] != 1 {
				t.Errorf("renovate.json has %d lines for %s in %s, want 1", found[strings.TrimSpace(pin)], pin, file)
			}
		}
		minor := filepath.Base(filepath.Dir(path))
		allowed := "/^v" + regexp.QuoteMeta(minor) + `\./`
		stays := false
		for _, rule := range config.PackageRules {
			stays = stays || slices.Contains(rule.MatchFileNames, file) && rule.AllowedVersions == allowed
		}
		if file != "versions.env" && !stays {
			t.Errorf("renovate.json has no rule that allows %s for %s alone", allowed, file)
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

// TestNamedTestsExist: documents name tests as proof of what they state.
func TestNamedTestsExist(t *testing.T) {
	name := regexp.MustCompile(`\bTest[A-Z]\w*`)
	exist := map[string]bool{}
	for line := range strings.Lines(output(t, "git", "grep", "-hE", `^func Test[A-Z]`, "--", "*_test.go")) {
		exist[name.FindString(line)] = true
	}
	for _, path := range strings.Fields(output(t, "git", "ls-files", "docs/*.md")) { // others name tests of upstream
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range name.FindAllString(string(content), -1) {
			if !exist[found] {
				t.Errorf("%s: no test is called %s", path, found)
			}
		}
	}
}

// TestProgramsScreenTheirOutput: what a stranger wrote reaches no terminal as a command. Programs that log as upstream's
// do are left out.
func TestProgramsScreenTheirOutput(t *testing.T) {
	asUpstream := []string{"cmd/kube-scheduler/main.go", "cmd/layer-extender/main.go"}
	mains := strings.Fields(output(t, "git", "ls-files", "cmd/*/main.go", "lab/cmd/*/main.go"))
	if len(mains) < len(asUpstream)+5 {
		t.Fatalf("only these have a main: %q", mains)
	}
	for _, path := range mains {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if screened := strings.Contains(string(content), "terminal.Run("); screened == slices.Contains(asUpstream, path) {
			t.Errorf("%s: terminal.Run is called: %t", path, screened)
		}
	}
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

// TestNamedPathsExist: documents name files, folders and targets of make that exist, and every file names only what
// exists below lab. (In scripts/build.sh, lab/ is the folder of binaries.)
func TestNamedPathsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, rule := range regexp.MustCompile(`(?m)^([a-z][a-z -]*):`).FindAllSubmatch(makefile, -1) {
		for _, target := range strings.Fields(string(rule[1])) {
			targets[target] = true
		}
	}
	folders := strings.Fields(output(t, "git", "ls-tree", "-d", "--name-only", "HEAD"))
	paths := regexp.MustCompile(`(?:^|[^\w/.:@$*-])((?:` + strings.ReplaceAll(strings.Join(folders, "|"), ".", `\.`) + `)/[\w./-]*\w)`)
	command := regexp.MustCompile("(?m)(?:`|^[$#] |sudo )make ([a-z][a-z-]+)")
	// Of Kubernetes and CRI-O, and what readers replace or make.
	others := regexp.MustCompile(`^internal/(imagelayers|layershare|storage)\b|^test/integration/|^cmd/kubelet/|/[A-Z]+\b|^scheduler/fewest`)
	exists := func(file, path string) bool {
		for folder := filepath.Dir(file); ; folder = filepath.Dir(folder) {
			if _, err := os.Stat(filepath.Join(root, folder, path)); err == nil {
				return true
			}
			if folder == "." {
				return false
			}
		}
	}
	for file := range strings.Lines(output(t, "git", "ls-files", "-co", "--exclude-standard", "--", "*.md", "*.go", "*.sh", "*.yaml", "Makefile")) {
		file = strings.TrimSpace(file)
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || file == "CHANGELOG.md" {
			continue // deleted, but still in the index; or of earlier times
		}
		document := filepath.Ext(file) == ".md"
		for _, match := range paths.FindAllSubmatch(text, -1) {
			path := string(match[1])
			if (document || strings.HasPrefix(path, "lab/") && file != "scripts/build.sh") && !others.MatchString(path) && !exists(file, path) {
				t.Errorf("%s: there is no %s", file, path)
			}
		}
		if !document {
			continue
		}
		for _, match := range command.FindAllSubmatch(text, -1) {
			if !targets[string(match[1])] {
				t.Errorf("%s: the Makefile has no target %s", file, match[1])
			}
		}
	}
}

// TestTranslations compares a text in another language, README.pl.md for example, with README.md: commands and what they
// print are the same, and lab/test/demos runs them.
func TestTranslations(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```.*?^```$")
	original := regexp.MustCompile(`^(.*)\.[a-z]{2}\.md$`)
	translations := 0
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for file := range strings.Lines(output(t, "git", "ls-files", "-co", "--exclude-standard", "*.??.md")) {
		file = strings.TrimSpace(file)
		name := original.FindStringSubmatch(file)
		if name == nil {
			continue
		}
		translations++
		want, got := blocks.FindAllString(read(name[1]+".md"), -1), blocks.FindAllString(read(file), -1)
		for i := range max(len(want), len(got)) {
			if i >= len(want) || i >= len(got) || want[i] != got[i] {
				t.Errorf("%s: block %d of %d is not that of %s.md, which has %d", file, i+1, len(got), name[1], len(want))
				break
			}
		}
	}
	if translations == 0 {
		t.Error("there is no translation: this checks nothing")
	}
}
