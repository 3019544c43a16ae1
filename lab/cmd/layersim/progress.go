package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/layer-locality/layer-locality/terminal"
)

// bar shows the progress of an experiment: on a terminal as one line that is
// redrawn, elsewhere as a line for each tenth.
type bar struct {
	w    io.Writer
	name string
	// redraw is nil where there is no terminal.
	redraw func(line string)
	// begun means that the line has not been ended.
	begun  bool
	tenths int
}

func newBar(w io.Writer, name string) *bar {
	return &bar{w: w, name: name, redraw: terminal.Redrawer()}
}

// show is a suite.Progress.
func (b *bar) show(done, all int) {
	const width = 30
	if b.redraw != nil {
		full := width * done / all
		b.redraw(fmt.Sprintf("%-22s [%s%s] %d of %d runs", b.name, strings.Repeat("#", full), strings.Repeat(".", width-full), done, all))
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
