package mutants

import (
	_ "embed"
	"fmt"
	"strings"
)

// Survivors that are no fault of the tests: "file: change ## reason", without the line,
// which moves.
//
//go:embed accepted.txt
var acceptedText string

// Accepted has the reasons why mutants may survive, by file and change.
type Accepted map[string]string

// ReadAccepted returns the list of this package. It fails if a line has no reason.
func ReadAccepted() (Accepted, error) { return parseAccepted(acceptedText) }

func parseAccepted(text string) (Accepted, error) {
	all := Accepted{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		mutant, reason, ok := strings.Cut(line, " ## ")
		if !ok || reason == "" {
			return nil, fmt.Errorf("accepted.txt: no reason after ' ## ' in %q", line)
		}
		all[mutant] = reason
	}
	return all, nil
}

// Reason returns why the mutant may survive, "" if nobody gave a reason.
func (a Accepted) Reason(m Mutant) string { return a[m.File+": "+m.Change] }
