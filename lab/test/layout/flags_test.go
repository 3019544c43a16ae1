package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// otherFlags are flags in documents that belong to none of the programs below: of what, or of which script.
var otherFlags = map[string]string{
	"allowed-scheduler-names": "cluster-autoscaler",
	"arch":                    "rpm/rpms.sh",
	"base":                    "deploy/images/build.sh",
	"config":                  "kube-scheduler",
	"config-dir":              "kubelet",
	"disable-scheduler":       "k3s",
	"disableexcludes":         "dnf",
	"emulated-version":        "kube-scheduler",
	"feature-gates":           "kube-apiserver",
	"force":                   "oc",
	"insecure":                "oc",
	"node-labels":             "kubelet",
	"os":                      "okd-machine-os/release.sh",
	"output":                  "rpm/rpms.sh",
	"patches":                 "kubeadm",
	"setopt":                  "dnf",
	"sign":                    "scripts/release.sh",
	"upload-certs":            "kubeadm",
}

// flags returns the flags in the help of a program, by command; those of all commands are below "".
func flags(t *testing.T, program string) map[string]map[string]bool {
	t.Helper()
	help := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), program, append(args, "--help")...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
		return string(out)
	}
	found := map[string]map[string]bool{"": {}}
	add := func(command, text string) {
		for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z][\w-]*)`).FindAllStringSubmatch(text, -1) {
			found[command][flag[1]], found[""][flag[1]] = true, true
		}
	}
	top := help()
	add("", top)
	_, list, _ := strings.Cut(top, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, command := range regexp.MustCompile(`(?m)^ +(\w+) `).FindAllStringSubmatch(list, -1) {
		found[command[1]] = map[string]bool{}
		add(command[1], help(command[1]))
	}
	return found
}

// TestNamedFlagsExist: documents name only flags that the programs have: on the page of a program those of that program,
// elsewhere those of any, and in a command line those of that command.
func TestNamedFlagsExist(t *testing.T) {
	pages := map[string]string{"resolver": "layer-resolver", "agent": "layer-agent", "extender": "layer-extender", "kubectl-layers": "kubectl-layers", "prefetch": "layer-prefetcher"}
	// Go links a program again only if it has changed since the last time in that folder.
	bin, err := filepath.Abs(filepath.Join(root, "_build/layout"))
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", bin+"/")
	for _, program := range pages {
		build.Args = append(build.Args, "./cmd/"+program)
	}
	build.Dir, build.Env = root, append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	programs, every := map[string]map[string]map[string]bool{}, map[string]bool{}
	for _, program := range pages {
		programs[program] = flags(t, filepath.Join(bin, program))
		for flag := range programs[program][""] {
			every[flag] = true
		}
	}
	named := regexp.MustCompile("(?:`|value: \"?)--([a-z][\\w-]*)")
	page := regexp.MustCompile(`^(?:docs|deploy)/(resolver|agent|extender|kubectl-layers|prefetch)(?:er)?\b`)
	line := regexp.MustCompile("(?m)(?:^ *[$#] |`)(kubectl layers|layer-resolver|layer-agent|layer-extender|layer-prefetcher)((?: [^`|\n]+)?)")
	checked, unused := 0, map[string]string{}
	for flag, of := range otherFlags {
		unused[flag] = of
		if !strings.Contains(of, "/") {
			continue
		}
		if text, err := os.ReadFile(filepath.Join(root, of)); err != nil || !strings.Contains(string(text), "--"+flag) {
			t.Errorf("%s has no --%s, error %v", of, flag, err)
		}
	}
	for file := range strings.Lines(output(t, "git", "ls-files", "-co", "--exclude-standard", "--", "README.md", "CONTRIBUTING.md", "docs/*.md", "deploy/*.md")) {
		file = strings.TrimSpace(file)
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // deleted, but still in the index
		}
		exist, whose := every, "any program"
		if match := page.FindStringSubmatch(file); match != nil {
			whose = pages[match[1]]
			exist = programs[whose][""]
		}
		for _, match := range named.FindAllSubmatch(text, -1) {
			checked++
			flag := string(match[1])
			delete(unused, flag)
			if !exist[flag] && otherFlags[flag] == "" {
				t.Errorf("%s: --%s is no flag of %s", file, flag, whose)
			}
		}
		for _, match := range line.FindAllSubmatch(text, -1) {
			program := strings.ReplaceAll(string(match[1]), " ", "-")
			fields := strings.Fields(string(match[2]))
			command := ""
			if len(fields) > 0 && programs[program][fields[0]] != nil {
				command = fields[0]
			}
			for _, field := range fields {
				flag, isFlag := strings.CutPrefix(field, "--")
				flag, _, _ = strings.Cut(flag, "=")
				if isFlag && flag != "" && !programs[program][command][flag] {
					t.Errorf("%s: %s %s has no --%s", file, match[1], command, flag)
				}
			}
		}
	}
	if checked < 150 {
		t.Errorf("only %d flags found in documents", checked)
	}
	for flag, of := range unused {
		t.Errorf("no document names --%s of %s", flag, of)
	}
}
