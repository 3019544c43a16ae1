package mutants

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is said of a mutant is the same whether it is compiled with others or alone.
func TestTryAll(t *testing.T) {
	const file = "testdata/shapes/shapes.go: "
	want := map[string]Outcome{
		"limit: 5 -> 6":                                    Killed, // is not in a function
		"number: int | float64 -> int & float64":           NotCompiled,
		"list.add: without l.all = append(l.all, more...)": Killed,
		"list.add: len(l.all) > 3 -> len(l.all) >= 3":      Killed,
		"list.add: 3 -> 4":                                 Survived,
		"list.add: without l.all = l.all[1:]":              Survived,
		"list.top: limit + 2 -> limit - 2":                 Killed,
		"list.top: 2 -> 3":                                 Killed,
		"sum: without total += one":                        NotCompiled,
		"sum: total * 2 -> total / 2":                      Killed, // by a slow test
		"sum: 2 -> 3":                                      Killed,
		"larger: a < 7 -> a <= 7":                          Killed,
		"larger: 7 -> 8 #1 of 2":                           Killed,
		"larger: 7 -> 8 #2 of 2":                           Killed,
		"first: 4 -> 5":                                    Killed,
		"count: n != to -> n == to":                        Killed,
		"count: without n++":                               TimedOut,
		"unused: without _ = n":                            NotCompiled,
	}
	all, err := Of("testdata/shapes")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Outcome{}
	if err := TryAll(t.Context(), all, func(m Mutant, outcome Outcome) { got[strings.TrimPrefix(m.Name(), file)] = outcome }); err != nil {
		t.Fatal(err)
	}
	for name, outcome := range want {
		if one, ok := got[name]; !ok || one != outcome {
			t.Errorf("%s: outcome %d, %v, want %d", name, one, ok, outcome)
		}
		delete(got, name)
	}
	for name, outcome := range got {
		t.Errorf("%s: outcome %d of a mutant that the test does not name", name, outcome)
	}
}

func TestTryAllOfBroken(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module broken\n",
		"a.go":      "package broken\n\nfunc a() int { return 2 }\n",
		"a_test.go": "package broken\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Fatal(\"is broken\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Of(folder)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	none := func(m Mutant, outcome Outcome) { t.Errorf("%s: outcome %d", m, outcome) }
	if err := TryAll(t.Context(), all, none); err == nil || !strings.Contains(err.Error(), folder) || !strings.Contains(err.Error(), "is broken") {
		t.Errorf("tests that fail: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "b.go"), []byte("package broken\n\nvar x = y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := TryAll(t.Context(), all, none); err == nil || !strings.Contains(err.Error(), "undefined: y") {
		t.Errorf("code that does not compile: %v", err)
	}
}
