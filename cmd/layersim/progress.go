package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// bar shows the progress of an experiment: on a terminal as one line that is
// redrawn, elsewhere as a line for each tenth.
type bar struct {
	w        io.Writer
	name     string
	terminal bool
	// begun means that the line has not been ended.
	begun  bool
	tenths int
}

func newBar(w io.Writer, name string) *bar {
	file, ok := w.(*os.File)
	return &bar{w: w, name: name, terminal: ok && term.IsTerminal(int(file.Fd()))}
}

// show is a suite.Progress.
func (b *bar) show(done, all int) {
	const width = 30
	if b.terminal {
		full := width * done / all
		fmt.Fprintf(b.w, "\r%-22s [%s%s] %d of %d runs", b.name, strings.Repeat("#", full), strings.Repeat(".", width-full), done, all)
		b.begun = true
		return
	}
	if tenths := 10 * done / all; tenths > b.tenths {
		b.tenths = tenths
		fmt.Fprintf(b.w, "%s: %d of %d runs\n", b.name, done, all)
	}
}

// end ends the line, so that later output begins on a new line.
func (b *bar) end() {
	if b.begun {
		fmt.Fprintln(b.w)
	}
}
