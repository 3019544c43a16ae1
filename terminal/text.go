// Package terminal is between every command and the terminal. Names and messages come from nodes,
// registries and tenants: they may hold escape sequences that move a terminal's cursor, letters
// that turn the direction of writing, lines that look like another's, or megabytes.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// Stdout and Stderr are for what commands print. Nothing else writes to os.Stdout and os.Stderr
// (forbidigo, .golangci.yml).
var (
	Stdout = NewWriter(os.Stdout)
	Stderr = NewWriter(os.Stderr)
)

// replacement stands for what is not shown.
const replacement = '\uFFFD'

// shown reports whether a character is shown as it is: letters, marks, numbers, symbols and the
// plain space. Control and format characters are not; the latter include those that turn the
// direction of writing, and characters without width.
func shown(r rune) bool {
	return r == ' ' || r != utf8.RuneError && unicode.IsGraphic(r) && !unicode.IsSpace(r)
}

// Line returns a text in one line of at most so many characters. What a terminal could take for
// a command is replaced, and so is what is not UTF-8. A text that is cut ends with three dots.
func Line(s string, most int) string {
	const dots = "..."
	if most < len(dots) {
		most = len(dots)
	}
	var b strings.Builder
	count := 0
	for _, r := range s {
		if count == most {
			cut := []rune(b.String())
			return string(cut[:most-len(dots)]) + dots
		}
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			r = ' '
		case r == utf8.RuneError, !shown(r):
			r = replacement
		}
		b.WriteRune(r)
		count++
	}
	return b.String()
}

// Lines returns a text whose lines, but the first, are indented: none looks like one of the command.
func Lines(s string) string { return strings.ReplaceAll(s, "\n", "\n  ") }

// WriteJSON writes a value as JSON. What NewWriter would replace in a string is escaped.
func WriteJSON(w io.Writer, value any) error {
	var plain, escaped bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return err
	}
	for _, r := range plain.String() {
		if r == '\n' || r == replacement || shown(r) { // no string has a newline
			escaped.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&escaped, `\u%04x`, unit)
		}
	}
	_, err := escaped.WriteTo(w)
	return err
}

// NewWriter returns a writer that lets only text through to w: what a terminal could take for a
// command is replaced, lines and tabs stay. It is behind every answer, so that nothing depends
// on each field being cleaned.
func NewWriter(w io.Writer) io.Writer { return &writer{w: w} }

// screen returns the file behind a writer of NewWriter if it is a terminal.
func screen(w io.Writer) *os.File {
	if w, ok := w.(*writer); ok {
		if file, ok := w.w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			return file
		}
	}
	return nil
}

// Width returns how many characters a line has on the terminal behind a writer of NewWriter; 0 if there is none.
func Width(w io.Writer) int {
	file := screen(w)
	if file == nil {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Clear clears the terminal behind a writer of NewWriter, if there is one.
func Clear(w io.Writer) {
	if file := screen(w); file != nil {
		fmt.Fprint(file, "\x1b[H\x1b[2J")
	}
}

// Dim writes a line, in a weaker colour if w leads to a terminal: unless NO_COLOR is set (https://no-color.org) or the
// terminal has none.
func Dim(w io.Writer, line string) error {
	if file := screen(w); file != nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		fmt.Fprint(file, "\x1b[2m")
		defer fmt.Fprint(file, "\x1b[22m")
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

type writer struct {
	w  io.Writer
	mu sync.Mutex
	// rest is the beginning of a character that came in two parts.
	rest []byte
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	data := slices.Concat(w.rest, p)
	clean := make([]byte, 0, len(data))
	for len(data) > 0 {
		if !utf8.FullRune(data) {
			break // the next Write has the rest of it
		}
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError || r != '\n' && r != '\t' && !shown(r) {
			r = replacement
		}
		clean = utf8.AppendRune(clean, r)
		data = data[size:]
	}
	w.rest = append([]byte(nil), data...)
	if _, err := w.w.Write(clean); err != nil {
		return 0, err
	}
	return len(p), nil
}
