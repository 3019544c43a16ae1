package suites

import (
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Skip is an entry of a list of specs that are not run.
type Skip struct {
	// Spec is a part of the full names of the specs.
	Spec string `json:"spec"`
	// Only is the subject that the entry is for; empty: all.
	Only string `json:"only,omitempty"`
	// Reason is why they cannot pass here.
	Reason string `json:"reason"`
}

// Of reports whether the entry is for a subject.
func (s Skip) Of(subject string) bool { return s.Only == "" || s.Only == subject }

// Matches reports whether the entry is for a spec.
func (s Skip) Matches(spec string) bool { return strings.Contains(spec, s.Spec) }

// ReadSkips reads a list, whose entries have to be for one of the subjects.
func ReadSkips(path string, subjects ...string) ([]Skip, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var skips []Skip
	if err := yaml.UnmarshalStrict(data, &skips); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, s := range skips {
		if s.Spec == "" || s.Reason == "" {
			return nil, fmt.Errorf("%s: entry %d needs spec and reason", path, i+1)
		}
		if !slices.ContainsFunc(subjects, s.Of) {
			return nil, fmt.Errorf("%s: entry %d is for %s, which nothing is run against", path, i+1, s.Only)
		}
	}
	return skips, nil
}

// Report is the outcome of a run of a suite.
type Report struct {
	// Name is that of the subject.
	Name   string
	Passed []string
	// By spec: the failure, and why a spec skipped itself.
	Failed, Skipped map[string]string
	// Excluded are the specs that did not start, because of what the suite was asked for.
	Excluded []string
}

// ReadReport reads a JUnit file as Ginkgo writes it.
func ReadReport(path string) (Report, error) {
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
	r := Report{Failed: map[string]string{}, Skipped: map[string]string{}}
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
				r.Passed = append(r.Passed, name)
			case c.Status == "passed":
				// This is a step around the specs.
			case c.Status == "skipped" && why == "skipped":
				r.Excluded = append(r.Excluded, name)
			case c.Status == "skipped":
				r.Skipped[name] = why
			default:
				r.Failed[name] = strings.TrimSpace(c.Status + ": " + c.Failure.Text + c.Error.Text)
			}
		}
	}
	slices.Sort(r.Passed)
	slices.Sort(r.Excluded)
	return r, nil
}

type message struct {
	Text string `xml:"message,attr"`
}

// Summary returns the numbers of specs in a line.
func (r Report) Summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", len(r.Passed), len(r.Failed), len(r.Skipped)+len(r.Excluded))
}

// Listed returns the entry of a list for a spec.
func (r Report) Listed(spec string, skips []Skip) (Skip, bool) {
	i := slices.IndexFunc(skips, func(s Skip) bool { return s.Of(r.Name) && s.Matches(spec) })
	if i < 0 {
		return Skip{}, false
	}
	return skips[i], true
}
