package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/terminal"
)

type row struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

func answer() *Answer {
	return &Answer{
		Value: map[string]any{"kind": "K", "apiVersion": "v1", "answer": []row{{"n1", 62_000_000}, {"a\x1b[2Jb", 1}}},
		Above: []string{"above\x1b"}, Below: []string{"below"},
		Columns: []Column{{Title: "NAME"}, {Title: "MORE", Wide: true}, {Title: "BYTES"}},
		Rows: []Row{
			{Cells: []string{"n1", "more", "62.0 MB"}, Object: row{"n1", 62_000_000}, Name: "node/n1"},
			{Cells: []string{"n1", "more", "62.0 MB"}, Object: row{"n1", 62_000_001}, Name: "node/n1"},
			{Cells: []string{"bad\nname\u202E", "", ""}, Object: row{"bad\x1b", 3}, Name: "node/bad\x1b", Dim: true},
			{Cells: []string{strings.Repeat("x", 1000), "", "1"}, Object: row{"x", 4}, Name: "x"},
		},
	}
}

func print(t *testing.T, a *Answer, args ...string) string {
	t.Helper()
	f := NewFlags()
	cmd := &cobra.Command{Use: "c"}
	f.Add(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	printer, err := f.Printer()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printer(terminal.NewWriter(&out), a); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out.String()
}

// Each form that kubectl get has, of what the cluster may have put into an answer.
func TestForms(t *testing.T) {
	narrow := print(t, answer())
	lines := strings.Split(narrow, "\n")
	if lines[0] != "above\uFFFD" || lines[1] != "NAME"+strings.Repeat(" ", 119)+"BYTES" || strings.Contains(narrow, "MORE") || strings.ContainsAny(narrow, "\x1b\u202E") ||
		!strings.HasPrefix(lines[4], "bad name\uFFFD ") || !strings.HasSuffix(lines[4], " -") || utf8.RuneCountInString(lines[5]) > maxCell+20 || lines[6] != "below" || len(lines) != 8 {
		t.Errorf("%s", narrow)
	}
	for _, c := range []struct{ args, want string }{
		{"-o=table", narrow},
		{"--no-headers --sort-by=.bytes -o=custom-columns=N:.name,B:.bytes", "bad\uFFFD 3 x 4 n1 62000000 n1 62000001"},
		{"-o=custom-columns=N:.name", "N n1 n1 bad\uFFFD x"},
		{"-o=name", "node/n1\nnode/bad\uFFFD\nx\n"},
		{"-o=name --sort-by={.bytes}", "node/bad\uFFFD\nx\nnode/n1\n"},
		{"-o=jsonpath={.answer[0].bytes}", "62000000"},
		{"-o=go-template={{range.answer}}{{.name}}{{end}}", "n1a\uFFFD[2Jb"},
	} {
		got := print(t, answer(), strings.Split(c.args, " ")...)
		if strings.Contains(c.args, "custom") {
			got = strings.Join(strings.Fields(got), " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
	if got := print(t, answer(), "-o=wide"); !strings.Contains(got, "MORE") || !strings.Contains(got, "more") {
		t.Errorf("%s", got)
	}
	if got := print(t, answer(), "--no-headers"); strings.Contains(got, "NAME") || strings.Contains(got, "above") || strings.Contains(got, "below") || strings.Count(got, "\n") != 4 {
		t.Errorf("%s", got)
	}
	var document struct{ Answer []row }
	if err := json.Unmarshal([]byte(print(t, answer(), "-o=json")), &document); err != nil || document.Answer[1].Name != "a\x1b[2Jb" || document.Answer[0].Bytes != 62_000_000 {
		t.Errorf("%+v, %v", document, err)
	}
	document.Answer = nil
	if err := yaml.Unmarshal([]byte(print(t, answer(), "-o=yaml")), &document); err != nil || document.Answer[1].Name != "a\x1b[2Jb" {
		t.Errorf("%+v, %v", document, err)
	}
	if got := print(t, &Answer{Text: []string{"words"}, Rows: answer().Rows}, "--no-headers"); got != "words\n" {
		t.Errorf("%q", got)
	}
	if got := print(t, &Answer{Above: []string{"none"}}, "--sort-by=.x"); got != "none\n" {
		t.Errorf("%q", got)
	}
}

// Numbers are sorted as numbers, whole or not, texts as texts, and rows without the field come first; what has no order is
// an error. Rows that are equal keep theirs.
func TestSort(t *testing.T) {
	type row struct {
		Name string   `json:"name"`
		N    *float64 `json:"n,omitempty"`
		Yes  bool     `json:"yes"`
		All  []string `json:"all,omitempty"`
		Any  any      `json:"any"`
	}
	number := func(f float64) *float64 { return &f }
	a := &Answer{Columns: []Column{{Title: "NAME"}}}
	for i, r := range []row{{Name: "b", N: number(1)}, {Name: "a", N: number(.5)}, {Name: "d", Yes: true, All: []string{"x"}, Any: "text"}, {Name: "c", N: number(-2), All: []string{"y"}, Any: 1}} {
		a.Rows = append(a.Rows, Row{Object: r, Name: fmt.Sprint(i, r.Name), Cells: []string{r.Name}})
	}
	for by, want := range map[string]string{".n": "2d 3c 1a 0b", ".name": "1a 0b 3c 2d", "": "0b 1a 2d 3c"} {
		if got := strings.Join(strings.Fields(print(t, a, "-o=name", "--sort-by="+by)), " "); got != want {
			t.Errorf("%q: %s, want %s", by, got, want)
		}
	}
	for by, want := range map[string]string{
		".yes":  "--sort-by .yes: a bool has no order: numbers and texts can be sorted",
		".all":  "--sort-by .all: a list has no order: numbers and texts can be sorted",
		".any":  "--sort-by .any: some rows have a number, others a text: numbers and texts can be sorted",
		"{.n":   "--sort-by {.n: ",
		".none": `--sort-by .none: no row has this field`,
	} {
		f := NewFlags()
		f.sortBy = by
		printer, err := f.Printer()
		if err == nil {
			err = printer(io.Discard, a)
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", by, err, want)
		}
	}
}

func TestBadForms(t *testing.T) {
	for args, want := range map[string]string{
		"-o=xml": `--output "xml": want one of wide, json, yaml, name, custom-columns, `, "-o=jsonpath={.x": "--output: ", "-o=custom-columns=a": "--output: unexpected custom-columns spec",
		"-o=jsonpath": "--output: template format specified but no template given",
	} {
		f := NewFlags()
		cmd := &cobra.Command{Use: "c"}
		f.Add(cmd)
		if err := cmd.ParseFlags([]string{args}); err != nil {
			t.Fatal(err)
		}
		printer, err := f.Printer()
		if err == nil {
			err = printer(io.Discard, answer())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

// A table is made to fit a terminal: the widest columns first, and of names the beginning goes.
func TestFit(t *testing.T) {
	for _, c := range []struct {
		widths []int
		most   int
		want   []int
	}{
		{[]int{10, 20}, 33, []int{10, 20}}, {[]int{10, 40}, 33, []int{10, 20}}, {[]int{40, 41, 5}, 61, []int{25, 25, 5}}, {[]int{40, 40}, 10, []int{minCell, minCell}},
	} {
		widths := append([]int{}, c.widths...)
		fit(widths, c.most)
		for i := range widths {
			if widths[i] != c.want[i] {
				t.Errorf("%v to %d: %v, want %v", c.widths, c.most, widths, c.want)
				break
			}
		}
	}
	for in, want := range map[string]string{"quay.io/team/app:v2": ".../app:v2", "what is said": "what is...", "short/a": "short/a", "größer/äöüß12345": "...üß12345"} {
		if got := shorten(in, 10); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// A sentence goes on in the next line, and everything else is in the first.
func TestLineOf(t *testing.T) {
	row, widths, prose := []string{"quay.io/team/app:v2", "too little memory and no room", "-"}, []int{12, 10, 4}, []bool{false, true, false}
	var got []string
	for line := 0; ; line++ {
		cells, last := lineOf(row, widths, prose, line)
		if got = append(got, fmt.Sprint(cells)); last {
			break
		}
	}
	want := []string{"[...am/app:v2 too little -]", "[ memory and ]", "[ no room ]"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 2: "0.0 kB", 2000: "2.0 kB", 49_999: "50.0 kB", 999_960: "1.0 MB", -3e6: "-3.0 MB", 62e6: "62.0 MB", 1.5e9: "1.5 GB", 2e12: "2.0 TB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	if Count(1, "image")+Count(2, "image")+Count(0, "node") != "1 image2 images0 nodes" {
		t.Error(Count(1, "image"), Count(2, "image"), Count(0, "node"))
	}
}
