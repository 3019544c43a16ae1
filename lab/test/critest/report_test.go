//go:build e2e

package critest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/lab/test/suites"
)

// reasonsOf returns why specs did not run to their end.
func reasonsOf(r suites.Report, skips []suites.Skip) map[string]string {
	reasons := map[string]string{}
	for spec, why := range r.Skipped {
		reasons[spec] = "critest: " + why
	}
	for _, spec := range r.Excluded {
		reasons[spec] = "a benchmark, not a test"
		if s, listed := r.Listed(spec, skips); listed {
			reasons[spec] = "skip.yaml: " + s.Reason
		}
	}
	return reasons
}

// compare lists what is wrong with the runs: a spec that passed in one has to pass in each.
func compare(reports []suites.Report, skips []suites.Skip) []string {
	var problems []string
	for _, r := range reports {
		for spec, why := range r.Failed {
			problems = append(problems, fmt.Sprintf("failed with %s: %s: %s", r.Name, spec, why))
		}
		for _, spec := range r.Excluded {
			if _, listed := r.Listed(spec, skips); !listed && !strings.Contains(spec, "benchmark") {
				problems = append(problems, fmt.Sprintf("not run with %s, and not in skip.yaml: %s", r.Name, spec))
			}
		}
		for _, other := range reports {
			for _, spec := range r.Passed {
				if _, listed := other.Listed(spec, skips); !listed && !slices.Contains(other.Passed, spec) {
					problems = append(problems, fmt.Sprintf("passed with %s, not with %s: %s", r.Name, other.Name, spec))
				}
			}
		}
		if len(r.Passed) < minPassed {
			problems = append(problems, fmt.Sprintf("only %d specs passed with %s, want at least %d", len(r.Passed), r.Name, minPassed))
		}
		for _, s := range skips {
			if s.Of(r.Name) && !slices.ContainsFunc(r.Excluded, s.Matches) {
				problems = append(problems, fmt.Sprintf("skip.yaml: no spec has %q in its name, with %s", s.Spec, r.Name))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// markdown lists the runs.
func markdown(reports []suites.Report, skips []suites.Skip) []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, "# critest\n\n| | passed | failed | skipped |\n| --- | ---: | ---: | ---: |\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", r.Name, len(r.Passed), len(r.Failed), len(r.Skipped)+len(r.Excluded))
	}
	for _, r := range reports {
		fmt.Fprintf(&b, "\n## %s: passed\n\n", r.Name)
		for _, spec := range r.Passed {
			fmt.Fprintf(&b, "- %s\n", spec)
		}
		fmt.Fprintf(&b, "\n## %s: failed\n\n", r.Name)
		for _, spec := range slices.Sorted(maps.Keys(r.Failed)) {
			fmt.Fprintf(&b, "- %s: %s\n", spec, strings.Join(strings.Fields(r.Failed[spec]), " "))
		}
		fmt.Fprintf(&b, "\n## %s: skipped\n\n", r.Name)
		reasons := reasonsOf(r, skips)
		for _, spec := range slices.Sorted(maps.Keys(reasons)) {
			fmt.Fprintf(&b, "- %s: %s\n", spec, reasons[spec])
		}
	}
	return b.Bytes()
}
