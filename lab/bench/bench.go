// Package bench holds what the benchmarks have in common. Each benchmark is a
// package below this one; README.md describes their structure.
package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Result is what a benchmark measured. Encoded as JSON, it holds the raw
// numbers.
type Result interface {
	// Write writes the result in readable form. The last line is for scripts: a
	// name and key=value pairs.
	Write(w io.Writer) error
}

// Progress writes progress messages. Every Config embeds one; the zero value
// writes nothing.
type Progress struct {
	w     io.Writer
	begin time.Time
}

// LogTo starts the clock. From now on, the messages of Logf go to w.
func (p *Progress) LogTo(w io.Writer) { p.w, p.begin = w, time.Now() }

// Logf writes a line with the seconds since LogTo.
func (p *Progress) Logf(format string, args ...any) {
	if p.w != nil {
		fmt.Fprintf(p.w, "%6.1f s  %s\n", time.Since(p.begin).Seconds(), fmt.Sprintf(format, args...))
	}
}

// InTurns returns the sides that are compared in the order of a round, the first of which is 0: A B C, C B A, and so on. A
// drift of the machine affects all alike.
func InTurns[Side any](round int, sides []Side) []Side {
	order := slices.Clone(sides)
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// WriteJSON writes a value to a file, and creates the file's folder.
func WriteJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
