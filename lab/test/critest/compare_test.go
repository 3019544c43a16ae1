//go:build e2e

package critest

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// good is a report without a problem.
func good(name string) report {
	r := report{name: name, failed: map[string]string{}, skipped: map[string]string{"AppArmor": "disabled"}, excluded: []string{"image benchmark", "one by digest"}}
	for i := range minPassed {
		r.passed = append(r.passed, fmt.Sprintf("spec %03d", i))
	}
	return r
}

func TestCompare(t *testing.T) {
	skips := []skip{{Spec: "by digest", Reason: "pinned"}, {Spec: "only there", Only: "patched", Reason: "broken there"}}
	reports := func() []report {
		all := []report{good("stock"), good("patched"), good("third")}
		for i := range all {
			if all[i].name == "patched" {
				all[i].excluded = append(all[i].excluded, "spec only there")
			} else {
				all[i].passed = append(all[i].passed, "spec only there")
			}
		}
		return all
	}
	if problems := compare(reports(), skips); len(problems) > 0 {
		t.Errorf("equal reports: %q", problems)
	}
	for name, tc := range map[string]struct {
		change func(stock, patched *report)
		want   string
	}{
		"failed":           {func(_, p *report) { p.failed["spec x"] = "panicked" }, "failed with patched: spec x: panicked"},
		"failed with both": {func(s, p *report) { s.failed["spec x"], p.failed["spec x"] = "a", "b" }, "failed with stock: spec x: a"},
		"passed in one":    {func(_, p *report) { p.passed = append(p.passed, "spec x") }, "passed with patched, not with third: spec x"},
		"skipped in one":   {func(s, p *report) { s.passed = append(s.passed, "y"); p.skipped["y"] = "no" }, "passed with stock, not with patched: y"},
		"hardly any":       {func(s, p *report) { s.passed, p.passed = s.passed[2:], p.passed[1:] }, "specs passed with stock, want at least"},
		"unexplained":      {func(s, _ *report) { s.excluded = append(s.excluded, "spec z") }, "not run with stock, and not in skip.yaml: spec z"},
		"explained, not for it": {func(s, _ *report) { s.excluded = append(s.excluded, "spec only there") },
			"not run with stock, and not in skip.yaml: spec only there"},
		"stale skip":        {func(s, p *report) { s.excluded, p.excluded = nil, nil }, `no spec has "by digest" in its name, with stock`},
		"stale skip of one": {func(_, p *report) { p.excluded = p.excluded[:2] }, `no spec has "only there" in its name, with patched`},
	} {
		changed := reports()
		tc.change(&changed[0], &changed[1])
		problems := compare(changed, skips)
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, tc.want) }) {
			t.Errorf("%s: got %q, want one with %q", name, problems, tc.want)
		}
	}
}

func TestReadReport(t *testing.T) {
	const junit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="CRI validation">
<testcase name="[It] [k8s.io] Image a" status="passed" time="1"></testcase>
<testcase name="[BeforeSuite]" status="passed"></testcase>
<testcase name="[It] [k8s.io] Image b" status="failed"><failure message="Expected &lt;x&gt;" type="failed"></failure></testcase>
<testcase name="[It] [k8s.io] Image c" status="panicked"><error message="nil"></error></testcase>
<testcase name="[It] [k8s.io] Image d" status="skipped"><skipped message="skipped - AppArmor is disabled"></skipped></testcase>
<testcase name="[It] [k8s.io] Image e" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="[AfterSuite]" status="timedout"><failure message="late"></failure></testcase>
</testsuite></testsuites>`
	path := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(path, []byte(junit), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	want := report{
		passed:   []string{"[k8s.io] Image a"},
		failed:   map[string]string{"[k8s.io] Image b": "failed: Expected <x>", "[k8s.io] Image c": "panicked: nil", "[AfterSuite]": "timedout: late"},
		skipped:  map[string]string{"[k8s.io] Image d": "AppArmor is disabled"},
		excluded: []string{"[k8s.io] Image e"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
