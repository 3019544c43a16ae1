// Package console runs the console blocks of a Markdown text and compares what they print
// with the output in the text.
//
// A block is fenced and of the language console. A line that begins with "$ " is a command;
// lines that begin with "> " continue it, as bash shows them. The lines up to the next
// command are its output: standard output and standard error. In them, "..." stands for any text
// of the line, a line "..." for any number of lines, and several blanks for one. A command has to
// succeed, but in a block "console exit=1", whose last command has to end with that status.
package console

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Command is a command of a text, with the output that the text shows.
type Command struct {
	// Line of the file at which it begins, counted from 1.
	Line int
	// Heading is the last one before it, without its number signs.
	Heading string
	// Text for bash, maybe of several lines.
	Text string
	// Output are the lines that it is to print.
	Output []string
	// Exit is the status that it is to end with.
	Exit int
}

// fence opens or closes a block of code, in a list or not.
var fence = regexp.MustCompile("^(\\s*)(`{3,}|~{3,})\\s*(.*)$")

// Parse returns the commands of a text in their order. A text without one is an error: it
// would always pass.
func Parse(text string) ([]Command, error) {
	var commands []Command
	heading := ""
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		open := fence.FindStringSubmatch(lines[i])
		if title := strings.TrimLeft(lines[i], "#"); open == nil && title != lines[i] && strings.HasPrefix(title, " ") {
			heading = strings.TrimSpace(title)
		}
		if open == nil || open[2][0] == '`' && strings.Contains(open[3], "`") {
			continue
		}
		start, end := i+1, closing(lines, i, open[2])
		if end < 0 {
			return nil, fmt.Errorf("line %d: the block is not closed", i+1)
		}
		i = end
		language, exit, err := info(open[3])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", start, err)
		}
		if language != "console" {
			continue
		}
		block, err := parseBlock(lines[start:end], open[1], start+1)
		if err != nil {
			return nil, err
		}
		block[len(block)-1].Exit = exit
		for n := range block {
			block[n].Heading = heading
		}
		commands = append(commands, block...)
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("no block of the language console in %d lines", len(lines))
	}
	return commands, nil
}

// closing returns the line that closes the fence of line i: one of the same character, at
// least as long, with nothing behind it; -1 if there is none.
func closing(lines []string, i int, opening string) int {
	for n := i + 1; n < len(lines); n++ {
		found := fence.FindStringSubmatch(lines[n])
		if found != nil && found[2][0] == opening[0] && len(found[2]) >= len(opening) && found[3] == "" {
			return n
		}
	}
	return -1
}

// info reads what follows the opening fence.
func info(text string) (language string, exit int, err error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return "", 0, nil
	}
	if words[0] != "console" {
		return words[0], 0, nil
	}
	for _, word := range words[1:] {
		value, ok := strings.CutPrefix(word, "exit=")
		if exit, err = strconv.Atoi(value); !ok || err != nil || exit < 0 || exit > 255 {
			return "", 0, fmt.Errorf("%q after console: want exit=STATUS", word)
		}
	}
	return "console", exit, nil
}

// parseBlock reads the lines of a block, the first of which is that line of the file.
func parseBlock(lines []string, indent string, first int) ([]Command, error) {
	var commands []Command
	for i, line := range lines {
		line = strings.TrimPrefix(line, indent)
		if text, ok := strings.CutPrefix(line, "$ "); ok {
			commands = append(commands, Command{Line: first + i, Text: text})
			continue
		}
		if len(commands) == 0 {
			return nil, fmt.Errorf("line %d: output before the first command of the block: %q", first+i, line)
		}
		last := &commands[len(commands)-1]
		if text, ok := strings.CutPrefix(line, "> "); ok && len(last.Output) == 0 {
			last.Text += "\n" + text
			continue
		}
		last.Output = append(last.Output, line)
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("line %d: the block has no command", first-1)
	}
	return commands, nil
}
