//go:build e2e

package critest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/test/suites"
)

// good is a report without a problem.
func good(name string) suites.Report {
	r := suites.Report{Name: name, Failed: map[string]string{}, Skipped: map[string]string{"AppArmor": "disabled"}, Excluded: []string{"image benchmark", "one by digest"}}
	for i := range minPassed {
		r.Passed = append(r.Passed, fmt.Sprintf("spec %03d", i))
	}
	return r
}

func TestCompare(t *testing.T) {
	skips := []suites.Skip{{Spec: "by digest", Reason: "pinned"}, {Spec: "only there", Only: "patched", Reason: "broken there"}}
	reports := func() []suites.Report {
		all := []suites.Report{good("stock"), good("patched"), good("third")}
		for i := range all {
			if all[i].Name == "patched" {
				all[i].Excluded = append(all[i].Excluded, "spec only there")
			} else {
				all[i].Passed = append(all[i].Passed, "spec only there")
			}
		}
		return all
	}
	if problems := compare(reports(), skips); len(problems) > 0 {
		t.Errorf("equal reports: %q", problems)
	}
	for name, tc := range map[string]struct {
		change func(stock, patched *suites.Report)
		want   string
	}{
		"failed":           {func(_, p *suites.Report) { p.Failed["spec x"] = "panicked" }, "failed with patched: spec x: panicked"},
		"failed with both": {func(s, p *suites.Report) { s.Failed["spec x"], p.Failed["spec x"] = "a", "b" }, "failed with stock: spec x: a"},
		"passed in one":    {func(_, p *suites.Report) { p.Passed = append(p.Passed, "spec x") }, "passed with patched, not with third: spec x"},
		"skipped in one":   {func(s, p *suites.Report) { s.Passed = append(s.Passed, "y"); p.Skipped["y"] = "no" }, "passed with stock, not with patched: y"},
		"hardly any":       {func(s, p *suites.Report) { s.Passed, p.Passed = s.Passed[2:], p.Passed[1:] }, "specs passed with stock, want at least"},
		"unexplained":      {func(s, _ *suites.Report) { s.Excluded = append(s.Excluded, "spec z") }, "not run with stock, and not in skip.yaml: spec z"},
		"explained, not for it": {func(s, _ *suites.Report) { s.Excluded = append(s.Excluded, "spec only there") },
			"not run with stock, and not in skip.yaml: spec only there"},
		"stale skip":        {func(s, p *suites.Report) { s.Excluded, p.Excluded = nil, nil }, `no spec has "by digest" in its name, with stock`},
		"stale skip of one": {func(_, p *suites.Report) { p.Excluded = p.Excluded[:2] }, `no spec has "only there" in its name, with patched`},
	} {
		changed := reports()
		tc.change(&changed[0], &changed[1])
		problems := compare(changed, skips)
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, tc.want) }) {
			t.Errorf("%s: got %q, want one with %q", name, problems, tc.want)
		}
	}
}
