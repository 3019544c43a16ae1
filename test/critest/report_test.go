//go:build e2e

package critest

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// skip is an entry of the skip list.
type skip struct {
	// Spec is a part of the full names of the specs.
	Spec string `json:"spec"`
	// Reason says why they cannot pass here with any CRI-O.
	Reason string `json:"reason"`
}

func readSkips(path string) ([]skip, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var skips []skip
	if err := yaml.UnmarshalStrict(data, &skips); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, s := range skips {
		if s.Spec == "" || s.Reason == "" {
			return nil, fmt.Errorf("%s: entry %d needs spec and reason", path, i+1)
		}
	}
	return skips, nil
}

// report is the outcome of one run of critest.
type report struct {
	passed []string
	// By spec: the failure, and why a spec skipped itself.
	failed, skipped map[string]string
	// excluded are the specs that did not start, because of the skip list or,
	// for benchmarks, because of critest.
	excluded []string
}

// readReport reads a JUnit file as ginkgo writes it.
func readReport(path string) (report, error) {
	var file struct {
		Suites []struct {
			Cases []struct {
				Name    string  `xml:"name,attr"`
				Status  string  `xml:"status,attr"`
				Skipped message `xml:"skipped"`
				Failure message `xml:"failure"`
				Error   message `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	r := report{failed: map[string]string{}, skipped: map[string]string{}}
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := xml.Unmarshal(data, &file); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	for _, suite := range file.Suites {
		for _, c := range suite.Cases {
			name, isSpec := strings.CutPrefix(c.Name, "[It] ")
			why := strings.TrimPrefix(c.Skipped.Text, "skipped - ")
			switch {
			case c.Status == "passed" && isSpec:
				r.passed = append(r.passed, name)
			case c.Status == "passed":
				// This is a step around the specs.
			case c.Status == "skipped" && why == "skipped":
				r.excluded = append(r.excluded, name)
			case c.Status == "skipped":
				r.skipped[name] = why
			default:
				r.failed[name] = strings.TrimSpace(c.Status + ": " + c.Failure.Text + c.Error.Text)
			}
		}
	}
	slices.Sort(r.passed)
	slices.Sort(r.excluded)
	return r, nil
}

type message struct {
	Text string `xml:"message,attr"`
}

func (r report) summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", len(r.passed), len(r.failed), len(r.skipped)+len(r.excluded))
}

// reasons returns why specs did not run to their end.
func (r report) reasons(skips []skip) map[string]string {
	reasons := map[string]string{}
	for spec, why := range r.skipped {
		reasons[spec] = "critest: " + why
	}
	for _, spec := range r.excluded {
		reasons[spec] = "a benchmark, not a test"
		if i := slices.IndexFunc(skips, func(s skip) bool { return s.matches(spec) }); i >= 0 {
			reasons[spec] = "skip.yaml: " + skips[i].Reason
		}
	}
	return reasons
}

// compare lists what is wrong with two runs.
func compare(stock, patched report, skips []skip) []string {
	var problems []string
	for _, r := range []struct {
		name string
		report
		other report
	}{{"stock", stock, patched}, {"patched", patched, stock}} {
		for spec, why := range r.failed {
			problems = append(problems, fmt.Sprintf("failed with %s CRI-O: %s: %s", r.name, spec, why))
		}
		for _, spec := range r.excluded {
			benchmark := strings.Contains(spec, "benchmark")
			if !benchmark && !slices.ContainsFunc(skips, func(s skip) bool { return s.matches(spec) }) {
				problems = append(problems, fmt.Sprintf("not run with %s CRI-O, and not in skip.yaml: %s", r.name, spec))
			}
		}
		for _, spec := range r.passed {
			if !slices.Contains(r.other.passed, spec) {
				problems = append(problems, fmt.Sprintf("passed with %s CRI-O only: %s", r.name, spec))
			}
		}
		if len(r.passed) < minPassed {
			problems = append(problems, fmt.Sprintf("only %d specs passed with %s CRI-O, want at least %d", len(r.passed), r.name, minPassed))
		}
	}
	for _, s := range skips {
		if !slices.ContainsFunc(stock.excluded, s.matches) {
			problems = append(problems, fmt.Sprintf("skip.yaml: no spec has %q in its name", s.Spec))
		}
	}
	slices.Sort(problems)
	return problems
}

func (s skip) matches(name string) bool { return strings.Contains(name, s.Spec) }

// markdown lists both runs.
func markdown(stock, patched report, skips []skip) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# critest, stock and patched CRI-O\n\n| | stock | patched |\n| --- | --- | --- |\n")
	for _, row := range []struct {
		name  string
		count func(report) int
	}{
		{"passed", func(r report) int { return len(r.passed) }},
		{"failed", func(r report) int { return len(r.failed) }},
		{"skipped", func(r report) int { return len(r.skipped) + len(r.excluded) }},
	} {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", row.name, row.count(stock), row.count(patched))
	}
	for _, r := range []struct {
		name string
		report
	}{{"stock", stock}, {"patched", patched}} {
		fmt.Fprintf(&b, "\n## %s: passed\n\n", r.name)
		for _, spec := range r.passed {
			fmt.Fprintf(&b, "- %s\n", spec)
		}
		fmt.Fprintf(&b, "\n## %s: failed\n\n", r.name)
		for _, spec := range slices.Sorted(maps.Keys(r.failed)) {
			fmt.Fprintf(&b, "- %s: %s\n", spec, strings.Join(strings.Fields(r.failed[spec]), " "))
		}
		fmt.Fprintf(&b, "\n## %s: skipped\n\n", r.name)
		reasons := r.reasons(skips)
		for _, spec := range slices.Sorted(maps.Keys(reasons)) {
			fmt.Fprintf(&b, "- %s: %s\n", spec, reasons[spec])
		}
	}
	return b.Bytes()
}
