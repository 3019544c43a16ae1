package console

import (
	"fmt"
	"regexp"
	"strings"
)

// Compare returns what differs between the output that a text shows and that of the command;
// "" if nothing does.
func Compare(want []string, got string) string {
	wanted, gotten := normal(want), normal(strings.Split(got, "\n"))
	at := match(wanted, gotten)
	if at == len(wanted) {
		return ""
	}
	var text strings.Builder
	if at < 0 {
		text.WriteString("  the command printed more than the text has\n")
	} else {
		fmt.Fprintf(&text, "  not found, in its place: %s\n", wanted[at])
	}
	text.WriteString("  the text has:\n")
	for _, line := range wanted {
		fmt.Fprintf(&text, "    - %s\n", line)
	}
	text.WriteString("  the command printed:\n")
	for _, line := range gotten {
		fmt.Fprintf(&text, "    + %s\n", line)
	}
	return text.String()
}

// normal makes blanks single, and removes those at the ends of lines and empty lines at the end.
func normal(lines []string) []string {
	var all []string
	for _, line := range lines {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	for len(all) > 0 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// match returns how many of the wanted lines the others have, in this order and with nothing
// between them but what a line "..." stands for. All of them are matched if nothing is left
// over: then it returns len(want); it returns -1 if only too much was printed.
func match(want, got []string) int {
	// reached[g]: the wanted lines so far may end before got[g].
	reached := make([]bool, len(got)+1)
	reached[0] = true
	for w, line := range want {
		next := make([]bool, len(got)+1)
		found := false
		for g := range reached {
			switch {
			case line == "...":
				// From the first place on, everything.
				next[g] = reached[g] || g > 0 && next[g-1]
			case g > 0:
				next[g] = reached[g-1] && matchLine(line, got[g-1])
			}
			found = found || next[g]
		}
		if !found {
			return w
		}
		reached = next
	}
	if !reached[len(got)] {
		return -1
	}
	return len(want)
}

// matchLine reports whether a line is as wanted, where "..." stands for any text.
func matchLine(want, got string) bool {
	parts := strings.Split(want, "...")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(got)
}
