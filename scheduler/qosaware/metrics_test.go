package qosaware

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The page of all metrics has those of this plugin. They are taken from the source, because some are
// served only once there are workloads.
func TestMetricsAreDocumented(t *testing.T) {
	names := func(path, pattern string) (found []string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		slices.Sort(found)
		return found
	}
	made := names("metrics.go", `(?:counter|desc)\("([a-z_]+)",`)
	documented := names(filepath.Join("..", "..", "docs", "monitoring.md"), "(?m)^\\| `scheduler_qosaware_([a-z_]+)` \\|")
	if !slices.Equal(made, documented) || len(made) != 5 {
		t.Errorf("metrics.go has %q, docs/monitoring.md %q", made, documented)
	}
}
