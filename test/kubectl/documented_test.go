//go:build integration

package kubectl

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The oldest kubectl that the document names finds the plugin and runs it.
func TestOldestKubectl(t *testing.T) {
	if os.Getenv("FULL") == "" {
		t.Skip("compiling kubectl of another version takes minutes: with FULL=1")
	}
	programs := t.TempDir()
	for name, binary := range map[string]string{"kubectl": "tools/kubectl-oldest", "kubectl-layers": "patched/kubectl-layers"} {
		path, err := filepath.Abs(filepath.Join(root, "_build/bin", binary))
		must(t, err)
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v: 'scripts/build.sh tools kubectl-oldest' makes it", err)
		}
		must(t, os.Symlink(path, filepath.Join(programs, name)))
	}
	for args, want := range map[string]string{
		"plugin list":      filepath.Join(programs, "kubectl-layers"),
		"layers --version": "kubectl layers version v1.",
		"layers nodes -l kind=by-kubelet --kubeconfig " + kubeconfig: "288.0 MB",
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "kubectl"), strings.Fields(args)...)
		cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + programs}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("kubectl %s: %v: %s, want %s", args, err, out, want)
		}
	}
}

// The commands of docs/kubectl-layers.md, on the cluster of this test, give what the document
// says. Ages differ, and what a scheduler remembers.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/kubectl-layers.md"))
	must(t, err)
	ages := regexp.MustCompile(`\b(\d+[smh])+\b`)
	normal := func(s string) string {
		var lines []string
		for line := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(ages.ReplaceAllString(line, "AGE")), " "))
		}
		return strings.TrimSpace(strings.Join(lines, "\n"))
	}
	compared := 0
	for _, block := range regexp.MustCompile("(?s)```console\n\\$ kubectl layers ([^\n]+)\n(.+?)```").FindAllStringSubmatch(string(text), -1) {
		args := strings.Fields(block[1])
		if args[0] == "why" || args[0] == "savings" {
			continue
		}
		compared++
		if r := layers(t, args...); r.code != 0 || normal(r.out) != normal(block[2]) {
			t.Errorf("kubectl layers %s gives\n%s%s\nthe document says\n%s", block[1], r.out, r.err, block[2])
		}
	}
	if compared != 7 {
		t.Errorf("%d commands were compared, want 7", compared)
	}
}
