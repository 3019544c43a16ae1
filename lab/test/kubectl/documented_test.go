//go:build integration

package kubectl

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands of docs/kubectl-layers.md, on the cluster of this test, print what the document
// has. Ages differ. What why and savings print is of the pods of other tests, so of these the sentences
// and columns are compared.
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
		compared++
		if args[0] == "why" || args[0] == "savings" || args[0] == "plan" {
			switch args[0] {
			case "why":
				p := pod(t, args[1], "layer-locality", "registry.example.com/team/app-8:v1")
				placed(t, p)
				event(t, p, `Successfully pulled image "registry.example.com/team/app-8:v1" in 0.8s (1.2s including waiting). Image size: 5 bytes.`)
			case "savings":
				placed(t, pod(t, "saves", "layer-locality", "registry.example.com/team/app-8:v1"))
			}
			if r := layers(t, append(args, "--scheduler-url", schedulerURL)...); r.code != 0 || shape(firstProfile(r.out)) != shape(block[2]) {
				t.Errorf("kubectl layers %s gives\n%s%s\nthe document says\n%s", block[1], r.out, r.err, block[2])
			}
			continue
		}
		if r := layers(t, args...); r.code != 0 || normal(r.out) != normal(block[2]) {
			t.Errorf("kubectl layers %s gives\n%s%s\nthe document says\n%s", block[1], r.out, r.err, block[2])
		}
	}
	if compared != 8 {
		t.Errorf("%d commands were compared, want 8", compared)
	}
}

// shape returns a text with the same word for each number, size, time and node.
func shape(s string) string {
	s = regexp.MustCompile(`\((pod/|https://)[^,]+,`).ReplaceAllString(s, "(SCHEDULER,")
	s = regexp.MustCompile(`[0-9T:-]{19}Z`).ReplaceAllString(s, "TIME")
	s = regexp.MustCompile(`\b(by-agent|by-kubelet|by-names|joined|stale-agent|empty)\b`).ReplaceAllString(s, "NODE")
	s = regexp.MustCompile(`\b\d+(\.\d+)?( [kMG]?B| s)?\b`).ReplaceAllString(s, "N")
	return strings.Join(strings.Fields(s), " ")
}

// firstProfile leaves out the lines of other profiles than layer-locality.
func firstProfile(s string) string {
	return regexp.MustCompile(`(?m)^overruled .*\n`).ReplaceAllString(s, "")
}
