package mutants

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Survivors that are no fault of the tests: "file: function: change ## reason", see
// Mutant.Name. No line, which moves.
//
//go:embed accepted.txt
var acceptedText string

// Accepted has the reasons why mutants may survive, by their names.
type Accepted map[string]string

// ReadAccepted returns the list of this package. It fails if a line has no reason, or
// repeats another.
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
		if len(strings.SplitN(mutant, ": ", 3)) < 3 {
			return nil, fmt.Errorf("accepted.txt: not 'file: function: change' before ' ## ' in %q", line)
		}
		if all[mutant] != "" {
			return nil, fmt.Errorf("accepted.txt: %q is there twice", mutant)
		}
		all[mutant] = reason
	}
	return all, nil
}

// Reason returns why the mutant may survive, "" if nobody gave a reason.
func (a Accepted) Reason(m Mutant) string { return a[m.Name()] }

// Check fails if an entry is not of exactly one mutant of the present code, which is
// below the working directory.
func (a Accepted) Check() error {
	names := map[string]bool{}
	same := map[string]int{} // by name without " #2 of 3"
	read := map[string]bool{}
	for entry := range a {
		folder := filepath.Dir(file(entry))
		if read[folder] {
			continue
		}
		read[folder] = true
		all, err := Of(folder)
		if err != nil {
			return err
		}
		for _, m := range all {
			names[m.Name()] = true
			same[m.whole()] = m.Same
		}
	}
	var wrong []error
	for _, entry := range slices.Sorted(maps.Keys(a)) {
		switch n := same[entry]; {
		case names[entry]:
		case n > 1:
			wrong = append(wrong, fmt.Errorf("accepted.txt: %q is %d mutants: end the entry with '#1 of %d' to '#%d of %d'", entry, n, n, n, n))
		default:
			wrong = append(wrong, fmt.Errorf("accepted.txt: %q is no mutant any more: correct the entry or remove it", entry))
		}
	}
	return errors.Join(wrong...)
}

// file is the file of the mutant, or of the mutants, with this name.
func file(name string) string {
	file, _, _ := strings.Cut(name, ": ")
	return file
}

// Only returns the mutants with these names, or of these files or functions, each once
// and in the order of files and lines. It fails if one of the names is of none.
func Only(names []string) ([]Mutant, error) {
	var all []Mutant
	named := map[string]bool{}
	for _, name := range names {
		found, err := Of(filepath.Dir(file(name)))
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(m Mutant) bool { return !m.in(name) })
		if len(found) == 0 {
			return nil, fmt.Errorf("%q is no mutant", name)
		}
		for _, m := range found {
			if !named[m.Name()] {
				named[m.Name()] = true
				all = append(all, m)
			}
		}
	}
	slices.SortStableFunc(all, Compare)
	return all, nil
}
