package console

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	text := strings.Join([]string{
		"# A text", // 1
		"",
		"```console",
		"$ one",
		"output of one",
		"",
		"  more",
		"$ two",
		"```",
		"## Second #", // 10
		"",
		"````markdown",
		"```console",
		"$ not run: a block in a block",
		"```",
		"````",
		"1. In a list:",
		"",
		"   ```console exit=3",
		"   $ three |", // 20
		"   > four",
		"   > output?",
		"   > no, still the command",
		"   output",
		"   > and this is output",
		"   ```",
		"",
		"~~~console",
		"$ five",
		"```", // 30
		"~~~",
		"```` of four: `code` in a line, no block",
		"```text",
		"$ not run",
		"```",
		"#no heading",
		"```console",
		"$ six",
		"```",
	}, "\n")
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []Command{
		{Line: 4, Heading: "A text", Text: "one", Output: []string{"output of one", "", "  more"}},
		{Line: 8, Heading: "A text", Text: "two"},
		{Line: 20, Heading: "Second #", Text: "three |\nfour\noutput?\nno, still the command", Output: []string{"output", "> and this is output"}, Exit: 3},
		{Line: 29, Heading: "Second #", Text: "five", Output: []string{"```"}},
		{Line: 38, Heading: "Second #", Text: "six"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                    "no block of the language console",
		"# Title\n\n    $ indented\n":         "no block of the language console",
		"```text\n$ a\n```\n":                 "no block of the language console",
		"\n```console\n$ a\n":                 "line 2: the block is not closed",
		"```console\n$ a\n~~~\n``\n":          "line 1: the block is not closed",
		"```console\noutput\n$ a\n```\n":      `line 2: output before the first command of the block: "output"`,
		"```console\n> a\n```\n":              "line 2: output before the first command",
		"\n```console\n```\n":                 "line 2: the block has no command",
		"```console exit=x\n$ a\n```\n":       `line 1: "exit=x" after console: want exit=STATUS`,
		"```console status=1\n$ a\n```\n":     "want exit=STATUS",
		"```console exit=256\n$ a\n```\n":     "want exit=STATUS",
		"```console\n$ a\n```\n```console\n$": "line 4: the block is not closed",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want, got string
		same      bool
	}{
		{"", "", true},
		{"", "\n\n", true},
		{"", "a\n", false},
		{"a", "", false},
		{"a", "a", true},
		{"a\nb", "a\nb\n", true},
		{"a\nb", "a\nc", false},
		{"a\nb", "b\na", false},
		{"a", "a\nb", false},
		{"a   b", "  a b\t\n", true},
		{"ab", "a b", false},
		{"a\n\nb", "a\nb", false},
		{"a...c", "abc", true},
		{"a...c", "ac", true},
		{"a...c", "a\nc", false},
		{"a ... c", "a c", false}, // two blanks are wanted, with something between them
		{"...", "", true},
		{"...", "a\nb\n", true},
		{"...\nb", "b", true},
		{"...\nb", "a\na\nb", true},
		{"...\nb", "a\nb\na", false},
		{"a\n...\nb\n...\nc", "a\nb\nx\nb\ny\nc", true},
		{"a\n...\nb\nc", "a\nb\nb\nc", true},
		{"a\n...", "b", false},
		{"...\n...", "a", true},
		{"a...\n...b", "a1\n2b", true},
		{"[a] (b).*", "[a] (b).*", true},
		{"a.c", "abc", false},
		{strings.Repeat("x", 200_000) + "...", strings.Repeat("x", 300_000), true},
	} {
		difference := Compare(strings.Split(test.want, "\n"), test.got)
		if (difference == "") != test.same {
			t.Errorf("%.80q and %.80q: %.200q", test.want, test.got, difference)
		}
	}
}

func TestDifference(t *testing.T) {
	t.Parallel()
	got := Compare([]string{"a", "b...", "c"}, "a\nx\nc\n")
	for _, want := range []string{"not found, in its place: b...", "- b...", "+ x"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if got := Compare([]string{"a"}, "a\nb"); !strings.Contains(got, "more than the text has") {
		t.Errorf("too much: %s", got)
	}
}

// run runs a text and returns what it prints.
func run(t *testing.T, ctx context.Context, text string, options Options) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "text.md")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	options.Print = &printed
	err := Run(ctx, file, options)
	return printed.String(), err
}

func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	printed, err := run(t, t.Context(), strings.Join([]string{
		"```console",
		"$ a=1; f() { echo \"f $1\"; }; cd /",
		"$ f $a; pwd",
		"f 1",
		"/",
		"$ cat <<EOF",
		"> it's \"$a\"",
		"> EOF",
		`it's "1"`,
		"$ cat; echo error >&2; printf 'no newline'",
		"error",
		"no newline",
		"$ head -c 200000 /dev/zero | tr '\\0' x",
		"x...x",
		"```",
		"```console exit=4",
		"$ (exit 4)",
		"```",
		"```console",
		"$ [ \"$HERE\" = there ] && [ \"$OLDPWD\" = " + dir + " ]",
		"```",
		"```console exit=2",
		"$ if then",
		"...syntax error...",
		"...",
		"```",
		"```console",
		"$ echo after a command that bash cannot read",
		"after a command that bash cannot read",
		"```",
	}, "\n"), Options{Dir: dir, Env: []string{"HERE=there"}})
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(printed, "$ cat <<EOF\n> it's \"$a\"\n> EOF\nit's \"1\"\n") {
		t.Errorf("printed: %.500s", printed)
	}
}

func TestRunFails(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"```console\n$ true\n$ echo b\na\n```\n":          {"text.md:3: $ echo b", "- a", "+ b"},
		"```console\n$ false\n```\n":                      {"text.md:2: $ false", "ended with status 1, not 0"},
		"```console exit=1\n$ true\n```\n":                {"ended with status 0, not 1"},
		"```console exit=1\n$ false\n$ false\n```\n":      {"text.md:2", "ended with status 1, not 0"},
		"```console\n$ echo so far; exit 3\n$ a\n```\n":   {"text.md:2", "the shell has ended", "so far"},
		"```console\n$ echo quiet?\n```\n":                {"more than the text has", "+ quiet?"},
		"no block":                                        {"text.md: no block"},
		"# a\n```console\n$ true\n```\n# b\n(no block)\n": nil,
	} {
		_, err := run(t, t.Context(), text, Options{})
		if want == nil {
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: error %v, want %q", text, err, part)
			}
		}
	}
}

func TestRunUntil(t *testing.T) {
	t.Parallel()
	text := "```console\n$ echo 1\n1\n```\n# Second\n```console\n$ false\n```\n"
	if printed, err := run(t, t.Context(), text, Options{Until: "Second"}); err != nil || printed != "$ echo 1\n1\n" {
		t.Errorf("%v: %s", err, printed)
	}
	if _, err := run(t, t.Context(), text, Options{Until: "Third"}); err == nil || !strings.Contains(err.Error(), `"Third"`) {
		t.Errorf("error %v for a heading that is not there", err)
	}
}

func TestRunLimit(t *testing.T) {
	t.Parallel()
	if _, err := run(t, t.Context(), "```console\n$ sleep 600\n```\n", Options{Limit: time.Millisecond}); err == nil || !strings.Contains(err.Error(), "not finished after 1ms") {
		t.Errorf("error %v for a command that takes ten minutes", err)
	}
}

// What a text started ends with it.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	mark := filepath.Join(t.TempDir(), "mark")
	go func() {
		defer cancel()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(mark); err == nil {
				return
			}
		}
	}()
	_, err := run(t, ctx, "```console\n$ sleep 1000 & touch "+mark+"; wait\n```\n", Options{})
	if err == nil || !strings.Contains(err.Error(), "the shell has ended") {
		t.Errorf("error %v", err)
	}
}
