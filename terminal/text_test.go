package terminal

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "",
		"quay.io/a/b:1":                "quay.io/a/b:1",
		"two\nlines\tand\r":            "two lines and ",
		"\x1b[2Jgone":                  "\uFFFD[2Jgone",
		"a\u202Eb\u200Bc\u0085d\x7fe":  "a\uFFFDb\uFFFDc\uFFFDd\uFFFDe",
		"\xff\xfe":                     "\uFFFD\uFFFD",
		"größe":                        "größe",
		strings.Repeat("x", 20):        strings.Repeat("x", 20),
		strings.Repeat("x", 21):        strings.Repeat("x", 17) + "...",
		strings.Repeat("ü", 1_000_000): strings.Repeat("ü", 17) + "...",
	} {
		if got := Line(in, 20); got != want {
			t.Errorf("%.40q: %q, want %q", in, got, want)
		}
	}
	if got := Line("abcdef", 0); got != "..." {
		t.Errorf("%q", got)
	}
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	for _, part := range []string{"a\x1b]0;title\x07b\n", "\xc3", "\xbc\tc\r\n", "\xff", "end", "\xe2\x80", "\xae"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got, want := out.String(), "a\uFFFD]0;title\uFFFDb\nü\tc\uFFFD\n\uFFFDend\uFFFD"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func safe(t *testing.T, s string, also string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("%q is not UTF-8", s)
	}
	for _, r := range s {
		if !strings.ContainsRune(also, r) && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)) {
			t.Errorf("%q has %U", s, r)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[31mred\u202E\xff", 7, 3)
	f.Fuzz(func(t *testing.T, s string, most, at int) {
		line := Line(s, most)
		safe(t, line, "")
		if n := utf8.RuneCountInString(line); n > max(3, most) {
			t.Errorf("%d characters, at most %d", n, most)
		}
		if Line(line, most) != line {
			t.Errorf("%q changes again", line)
		}
		var out bytes.Buffer
		w := NewWriter(&out)
		at = max(0, min(at, len(s)))
		_, _ = w.Write([]byte(s[:at]))
		_, _ = w.Write([]byte(s[at:]))
		safe(t, out.String(), "\n\t")
	})
}
