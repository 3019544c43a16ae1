package mutants

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// There are mutants that are compiled with others, alone, and not at all.
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

// None can be compiled together: one needs the race detector, the other does not compile.
func TestTryAllOfNone(t *testing.T) {
	all, err := Only([]string{"testdata/weak/weak.go: Clamp: without mu.Lock()", "testdata/shapes/shapes.go: unused: without _ = n"})
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	got := map[string]Outcome{}
	if err := TryAll(t.Context(), all, func(m Mutant, outcome Outcome) { got[m.Function] = outcome }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got["Clamp"] != Killed || got["unused"] != NotCompiled {
		t.Errorf("outcomes %v", got)
	}
}

// Neither files nor processes are left of a mutant that has no end.
func TestTryAllCancelled(t *testing.T) {
	work := t.TempDir()
	t.Setenv("TMPDIR", work)
	// The names of the programs of all processes that were compiled for it.
	running := func() (all []string) {
		links, err := filepath.Glob("/proc/[0-9]*/exe")
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if program, err := os.Readlink(link); err == nil && strings.HasPrefix(program, work) {
				all = append(all, program)
			}
		}
		return all
	}
	all, err := Only([]string{"testdata/shapes/shapes.go: count: without n++"})
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func(context.Context) error{
		"alone": func(ctx context.Context) error {
			_, err := Try(ctx, all[0])
			return err
		},
		"together": func(ctx context.Context) error { return TryAll(ctx, all, func(Mutant, Outcome) {}) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- try(ctx) }()
		for len(running()) == 0 {
			select {
			case err := <-ended:
				t.Fatalf("%s: ended: %v", name, err)
			case <-time.After(10 * time.Millisecond):
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		// The kernel may still be at it.
		for deadline := time.Now().Add(time.Minute); len(running()) > 0 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		if left := running(); len(left) > 0 {
			t.Errorf("%s: these run on: %q", name, left)
		}
		if left, err := os.ReadDir(work); err != nil || len(left) > 0 {
			t.Errorf("%s: these are left: %v, %v", name, left, err)
		}
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
	if err := os.Remove(filepath.Join(folder, "a_test.go")); err != nil {
		t.Fatal(err)
	}
	if err := TryAll(t.Context(), all, none); err == nil || !strings.Contains(err.Error(), folder+" has no tests") {
		t.Errorf("no tests: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "b.go"), []byte("package broken\n\nvar x = y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := TryAll(t.Context(), all, none); err == nil || !strings.Contains(err.Error(), "undefined: y") {
		t.Errorf("code that does not compile: %v", err)
	}
}
