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
	// Only is the subject that the entry is for; empty: all.
	Only string `json:"only,omitempty"`
	// Reason is why they cannot pass here.
	Reason string `json:"reason"`
}

// of reports whether the entry is for this subject.
func (s skip) of(subject string) bool { return s.Only == "" || s.Only == subject }

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
		if !slices.ContainsFunc(subjects, func(one subject) bool { return s.of(one.name) }) {
			return nil, fmt.Errorf("%s: entry %d is for %s, which nothing is run against", path, i+1, s.Only)
		}
	}
	return skips, nil
}

// report is the outcome of one run of critest.
type report struct {
	// name is that of the subject.
	name   string
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

// listed returns the entry of the skip list for a spec.
func (r report) listed(spec string, skips []skip) (skip, bool) {
	i := slices.IndexFunc(skips, func(s skip) bool { return s.of(r.name) && s.matches(spec) })
	if i < 0 {
		return skip{}, false
	}
	return skips[i], true
}

// reasons returns why specs did not run to their end.
func (r report) reasons(skips []skip) map[string]string {
	reasons := map[string]string{}
	for spec, why := range r.skipped {
		reasons[spec] = "critest: " + why
	}
	for _, spec := range r.excluded {
		reasons[spec] = "a benchmark, not a test"
		if s, listed := r.listed(spec, skips); listed {
			reasons[spec] = "skip.yaml: " + s.Reason
		}
	}
	return reasons
}

// compare lists what is wrong with the runs: a spec that passed in one has to pass in each.
func compare(reports []report, skips []skip) []string {
	var problems []string
	for _, r := range reports {
		for spec, why := range r.failed {
			problems = append(problems, fmt.Sprintf("failed with %s: %s: %s", r.name, spec, why))
		}
		for _, spec := range r.excluded {
			if _, listed := r.listed(spec, skips); !listed && !strings.Contains(spec, "benchmark") {
				problems = append(problems, fmt.Sprintf("not run with %s, and not in skip.yaml: %s", r.name, spec))
			}
		}
		for _, other := range reports {
			for _, spec := range r.passed {
				if _, listed := other.listed(spec, skips); !listed && !slices.Contains(other.passed, spec) {
					problems = append(problems, fmt.Sprintf("passed with %s, not with %s: %s", r.name, other.name, spec))
				}
			}
		}
		if len(r.passed) < minPassed {
			problems = append(problems, fmt.Sprintf("only %d specs passed with %s, want at least %d", len(r.passed), r.name, minPassed))
		}
		for _, s := range skips {
			if s.of(r.name) && !slices.ContainsFunc(r.excluded, s.matches) {
				problems = append(problems, fmt.Sprintf("skip.yaml: no spec has %q in its name, with %s", s.Spec, r.name))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

func (s skip) matches(name string) bool { return strings.Contains(name, s.Spec) }

// markdown lists the runs.
func markdown(reports []report, skips []skip) []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, "# critest\n\n| | passed | failed | skipped |\n| --- | ---: | ---: | ---: |\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", r.name, len(r.passed), len(r.failed), len(r.skipped)+len(r.excluded))
	}
	for _, r := range reports {
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
