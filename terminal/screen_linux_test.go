package terminal

import (
	"bytes"
	"testing"

	"github.com/layer-locality/layer-locality/internal/testkit"
)

// Only what this package itself writes controls a terminal, and only if there is one.
func TestScreen(t *testing.T) {
	master, slave := testkit.Terminal(t, 80)
	for _, c := range []struct{ noColor, term, want string }{
		{"", "xterm", "\x1b[H\x1b[2J\x1b[2ma\uFFFD[1mb\r\n\x1b[22m"}, {"1", "xterm", "\x1b[H\x1b[2Ja\uFFFD[1mb\r\n"}, {"", "dumb", "\x1b[H\x1b[2Ja\uFFFD[1mb\r\n"},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		w := NewWriter(slave)
		Clear(w)
		if err := Dim(w, "a\x1b[1mb"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 100)
		n, err := master.Read(got)
		for err == nil && n < len(c.want) {
			var more int
			more, err = master.Read(got[n:])
			n += more
		}
		if err != nil || string(got[:n]) != c.want || Width(w) != 80 {
			t.Errorf("%+v: %q, %v, width %d", c, got[:n], err, Width(w))
		}
	}
	var out bytes.Buffer
	w := NewWriter(&out)
	Clear(w)
	if err := Dim(w, "line"); err != nil || out.String() != "line\n" || Width(w) != 0 || Width(&out) != 0 {
		t.Errorf("%q, %v", out.String(), err)
	}
}
