//go:build integration

package kubectl

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/layer-locality/layer-locality/internal/testkit"
)

// faint is a line that is printed faintly.
var faint = regexp.MustCompile("\x1b\\[2m(.*)\n\x1b\\[22m")

// onScreen runs the program in a terminal with so many columns, and returns the lines that it prints, and how many of
// them are faint.
func onScreen(t *testing.T, columns uint16, args ...string) (lines []string, faintly int) {
	t.Helper()
	master, slave := testkit.Terminal(t, columns)
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "_build/bin/patched/kubectl-layers"), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=/nonexistent", "TERM=xterm"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	must(t, cmd.Start())
	must(t, slave.Close())
	text, _ := io.ReadAll(master) // it ends with an error when nobody has the other end
	if err := cmd.Wait(); err != nil {
		t.Errorf("%q: %v: %s", args, err, text)
	}
	printed := strings.ReplaceAll(string(text), "\r\n", "\n")
	return strings.Split(strings.TrimSuffix(faint.ReplaceAllString(printed, "$1\n"), "\n"), "\n"), len(faint.FindAllString(printed, -1))
}

// Tables fit into a terminal, end with what their columns mean, and print nodes on which a pod does not fit faintly. With
// KUBECTL_SCREENS, the lines go to that file.
func TestScreens(t *testing.T) {
	placed(t, pod(t, "screen-0", "layer-locality", "registry.example.com/team/app-8:v1"))
	image := "registry.example.com/team/app-8:v1"
	// It fits on one node.
	chosen := filepath.Join(t.TempDir(), "chosen.yaml")
	must(t, os.WriteFile(chosen, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"chosen"},"spec":{"schedulerName":"layer-locality","nodeSelector":{"kind":%q},"containers":[{"name":"c","image":%q}]}}`, byAgent, image), 0o600))
	var all strings.Builder
	for _, args := range [][]string{
		{"nodes"},
		{"node", byKubelet},
		{"image", "registry.example.com/team/app-2:v1"},
		{"shared"},
		{"plan", "--image", image, "--bandwidth", "100M", "--scheduler-url", schedulerURL},
		{"plan", "-f", chosen, "--scheduler-url", schedulerURL},
		{"why", "-l", "app=screen-0", "--scheduler-url", schedulerURL},
		{"why", "screen-0", "--scheduler-url", schedulerURL},
		{"savings", "--scheduler-url", schedulerURL},
		{"advise"},
		{"imagelocality", "--image", image},
	} {
		for _, columns := range []uint16{80, 160} {
			lines, faintly := onScreen(t, columns, args...)
			fmt.Fprintf(&all, "%d columns: kubectl layers %s\n%s\n\n", columns, strings.Join(args[:slices.Index(append(args, "--scheduler-url"), "--scheduler-url")], " "), strings.Join(lines, "\n"))
			table := slices.IndexFunc(lines, func(line string) bool { return strings.ToUpper(line) == line && strings.Contains(line, "   ") })
			if table < 0 && args[0] != "why" {
				t.Errorf("%q prints no table:\n%s", args, strings.Join(lines, "\n"))
			}
			for _, line := range lines[max(0, table):] {
				// A word of a sentence that is longer than the column stays whole.
				cells := strings.Split(line, "   ")
				if table >= 0 && len(cells) > 1 && strings.TrimSpace(strings.Join(cells[:len(cells)-1], "")) != "" && utf8.RuneCountInString(line) > int(columns) {
					t.Errorf("%q: a row has %d characters, the terminal %d:\n%s", args, utf8.RuneCountInString(line), columns, line)
				}
			}
			if last := lines[len(lines)-1]; table >= 0 && !strings.HasSuffix(last, " --help") {
				t.Errorf("%q ends with %q", args, last)
			}
			if faintly != map[bool]int{true: 5}[slices.Contains(args, "-f")] {
				t.Errorf("%q: %d rows are faint:\n%s", args, faintly, strings.Join(lines, "\n"))
			}
		}
	}
	if file := os.Getenv("KUBECTL_SCREENS"); file != "" {
		must(t, os.WriteFile(file, []byte(all.String()), 0o600))
	}
}
