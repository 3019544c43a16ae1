package mutants

import (
	"os"
	"path/filepath"
	"slices"
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
	want := `testdata/weak/weak.go:10: Clamp: without mu.Lock()
testdata/weak/weak.go:11: Clamp: without defer mu.Unlock()
testdata/weak/weak.go:12: Clamp: n > 10 -> n >= 10
testdata/weak/weak.go:12: Clamp: 10 -> 11 #1 of 2
testdata/weak/weak.go:13: Clamp: without n = 10
testdata/weak/weak.go:13: Clamp: 10 -> 11 #2 of 2`
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
	broken.original, broken.from, broken.to, broken.code = "", 0, 0, "package weak\nfunc Clamp() {}\n"
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
	endless.original, endless.from, endless.to, endless.code = "", 0, 0, "package weak\n\nfunc Clamp(n int) int {\n\tfor {\n\t}\n}\n"
	if got, err := try(t.Context(), endless, time.Second); err != nil || got != TimedOut {
		t.Errorf("outcome %d, error %v, want %d", got, err, TimedOut)
	}
}

func TestBaseline(t *testing.T) {
	all, err := Of("testdata/weak")
	if err != nil {
		t.Fatal(err)
	}
	if err := Baseline(t.Context(), all[2:]); err != nil {
		t.Error(err)
	}
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module broken\n")
	write("a.go", "package broken\n")
	// A folder of two packages, with the race detector alone.
	write("race.go", "//go:build race\n\npackage other\n")
	m := Mutant{File: filepath.Join(folder, "a.go")}
	locks := m
	locks.Locks = true
	if err := Baseline(t.Context(), []Mutant{m}); err != nil {
		t.Error(err)
	}
	if err := Baseline(t.Context(), []Mutant{m, locks}); err == nil || !strings.Contains(err.Error(), folder) || !strings.Contains(err.Error(), "race detector: true") {
		t.Errorf("with the race detector: %v", err)
	}
	write("a_test.go", "package broken\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Fatal(\"is broken\") }\n")
	if err := Baseline(t.Context(), []Mutant{m}); err == nil || !strings.Contains(err.Error(), folder) || !strings.Contains(err.Error(), "is broken") {
		t.Errorf("tests that fail: %v", err)
	}
}

func TestName(t *testing.T) {
	all, err := ofFile("a.go", `package a

import "time"

const pause = 2 * time.Second

var (
	few, many = 3, 40
	table [5]int
	_ = func() bool { return few < 6 }
)

type key [7]byte

type list[K, V any] struct{}

func (l *list[K, V]) len() int { return 8 }

func (k key) less(other key) bool { return k[0] < other[0] || k[1] < other[1] && k[2] == 9 }

func twice() (n int) {
	go func() { n = 9 }()
	return 9
}
`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.Name())
	}
	want := `a.go: pause: 2 * time.Second -> 2 / time.Second
a.go: pause: 2 -> 3
a.go: few: 3 -> 4
a.go: many: 40 -> 41
a.go: table: 5 -> 6
a.go: _: few < 6 -> few <= 6
a.go: _: 6 -> 7
a.go: key: 7 -> 8
a.go: list.len: 8 -> 9
a.go: key.less: k[0] < other[0] || k[1] < other[1] && k[2] == 9 -> k[0] < other[0] && k[1] < other[1] && k[2] == 9
a.go: key.less: k[0] < other[0] -> k[0] <= other[0]
a.go: key.less: k[1] < other[1] && k[2] == 9 -> k[1] < other[1] || k[2] == 9
a.go: key.less: k[1] < other[1] -> k[1] <= other[1]
a.go: key.less: 2 -> 3
a.go: key.less: k[2] == 9 -> k[2] != 9
a.go: key.less: 9 -> 10
a.go: twice: without go func() { n = 9 }()
a.go: twice: without n = 9
a.go: twice: 9 -> 10 #1 of 2
a.go: twice: 9 -> 10 #2 of 2`
	// Only the lines have an order.
	wanted := strings.Split(want, "\n")
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

func TestParseAccepted(t *testing.T) {
	known, err := parseAccepted("# comment\na.go: f: x -> y ## the same\na.go: f: 2 -> 3 #2 of 2 ## a size\n\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mutant Mutant
		want   string
	}{
		{Mutant{File: "a.go", Line: 7, Function: "f", Change: "x -> y"}, "the same"},
		{Mutant{File: "a.go", Function: "f", Change: "x -> z"}, ""},
		{Mutant{File: "a.go", Function: "g", Change: "x -> y"}, ""},
		{Mutant{File: "a.go", Function: "f", Change: "x -> y", Nth: 1, Same: 2}, ""},
		{Mutant{File: "a.go", Function: "f", Change: "2 -> 3", Nth: 1, Same: 2}, ""},
		{Mutant{File: "a.go", Function: "f", Change: "2 -> 3", Nth: 2, Same: 2}, "a size"},
		{Mutant{File: "a.go", Function: "f", Change: "2 -> 3", Nth: 2, Same: 3}, ""},
	} {
		if got := known.Reason(test.mutant); got != test.want {
			t.Errorf("%s: reason %q, want %q", test.mutant, got, test.want)
		}
	}
	for _, text := range []string{
		"a.go: f: x -> y\n",
		"a.go: x -> y ## without a function\n",
		"a.go: f: x -> y ## once\na.go: f: x -> y ## twice\n",
	} {
		if _, err := parseAccepted(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestCheck(t *testing.T) {
	const clamp = "testdata/weak/weak.go: Clamp: "
	for entry, want := range map[string]string{
		clamp + "n > 10 -> n >= 10":                       "",
		clamp + "10 -> 11 #2 of 2":                        "",
		clamp + "10 -> 11":                                "is 2 mutants: end the entry with '#1 of 2' to '#2 of 2'",
		clamp + "10 -> 11 #2 of 3":                        "is no mutant any more",
		clamp + "n > 10 -> n >= 10 #1 of 1":               "is no mutant any more",
		clamp + "n > 12 -> n >= 12":                       "is no mutant any more",
		"testdata/weak/weak.go: mu: n > 10 -> n >= 10":    "is no mutant any more",
		"testdata/none/weak.go: Clamp: without mu.Lock()": "is no mutant any more",
	} {
		err := Accepted{entry: "why"}.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), entry) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", entry, err, want)
		}
	}
}

// Each entry of accepted.txt is of one mutant of the present code.
func TestAccepted(t *testing.T) {
	accepted, err := ReadAccepted()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	if err := accepted.Check(); err != nil {
		t.Error(err)
	}
	names := map[string]bool{}
	for _, folder := range Folders {
		all, err := Of(folder)
		if err != nil || len(all) == 0 {
			t.Errorf("%s: %d mutants, error %v", folder, len(all), err)
		}
		for _, m := range all {
			if names[m.Name()] {
				t.Errorf("two mutants have the name %s", m.Name())
			}
			names[m.Name()] = true
		}
	}
	for entry := range accepted {
		if !slices.Contains(Folders, filepath.Dir(file(entry))) {
			t.Errorf("%s: make mutants does not look there", entry)
		}
	}
}

func TestOnly(t *testing.T) {
	const file = "testdata/weak/weak.go"
	for name, want := range map[string]int{
		file:                                6,
		file + ": Clamp":                    6,
		file + ": Clamp: 10 -> 11":          2,
		file + ": Clamp: 10 -> 11 #2 of 2":  1,
		file + ": Clamp: n > 10 -> n >= 10": 1,
		file + ": Clam":                     0,
		file + ": Clamp: 10 -> 1":           0,
	} {
		all, err := Only([]string{name})
		if len(all) != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %d mutants, error %v, want %d", name, len(all), err, want)
		}
	}
}

// Each is there once, in the order that TryAll needs.
func TestOnlyOrder(t *testing.T) {
	const file = "testdata/shapes/shapes.go: "
	want := []string{file + "list.add: 3 -> 4", file + "list.top: 2 -> 3"}
	all, err := Only([]string{want[1], want[0], file + "list.top: 2 -> 3", want[0]})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
