package mutants

import (
	"strings"
	"testing"
	"time"
)

func TestOf(t *testing.T) {
	all, err := Of("testdata/weak")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.String())
		if m.Locks != strings.Contains(m.Change, "Lock()") {
			t.Errorf("%s: Locks is %v", m, m.Locks)
		}
	}
	want := `testdata/weak/weak.go:10: without mu.Lock()
testdata/weak/weak.go:11: without defer mu.Unlock()
testdata/weak/weak.go:12: n > 10 -> n >= 10
testdata/weak/weak.go:12: 10 -> 11
testdata/weak/weak.go:13: without n = 10
testdata/weak/weak.go:13: 10 -> 11`
	if got := strings.Join(got, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTry(t *testing.T) {
	all, err := Of("testdata/weak")
	if err != nil {
		t.Fatal(err)
	}
	broken := all[0]
	broken.Source = []byte("package weak\nfunc Clamp() {}\n")
	for _, test := range []struct {
		mutant Mutant
		want   Outcome
	}{
		{all[2], Survived}, // no test looks at the bound itself
		{all[4], Killed},
		{broken, NotCompiled},
	} {
		got, err := Try(t.Context(), test.mutant)
		if err != nil {
			t.Fatal(err)
		}
		if got != test.want {
			t.Errorf("%s: outcome %d, want %d", test.mutant, got, test.want)
		}
	}
}

func TestTryForEver(t *testing.T) {
	all, err := Of("testdata/weak")
	if err != nil {
		t.Fatal(err)
	}
	endless := all[2]
	endless.Source = []byte("package weak\n\nfunc Clamp(n int) int {\n\tfor {\n\t}\n}\n")
	if got, err := try(t.Context(), endless, time.Second); err != nil || got != TimedOut {
		t.Errorf("outcome %d, error %v, want %d", got, err, TimedOut)
	}
}

func TestReadAccepted(t *testing.T) {
	if _, err := ReadAccepted(); err != nil {
		t.Fatal(err)
	}
	known, err := parseAccepted("# comment\na.go: x -> y ## the same\n\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := known.Reason(Mutant{File: "a.go", Line: 7, Change: "x -> y"}); got != "the same" {
		t.Errorf("reason %q", got)
	}
	if got := known.Reason(Mutant{File: "a.go", Line: 7, Change: "x -> z"}); got != "" {
		t.Errorf("reason %q of an unknown mutant", got)
	}
	if _, err := parseAccepted("a.go: x -> y\n"); err == nil {
		t.Error("a line without a reason was taken")
	}
}
