//go:build integration

package kubectl

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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
