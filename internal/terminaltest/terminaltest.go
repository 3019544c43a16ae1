// Package terminaltest runs commands as their programs do, and fails a test if a stranger's text
// does something to the terminal.
package terminaltest

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/terminal"
)

// Forged begins the line that Hostile tries to add to an answer.
const Forged = "FORGED"

// Hostile has what strangers may put in a name or a message: an escape sequence and a bell, control
// characters of C1 as bytes and as UTF-8, a return, an end of writing from right to left, and a line of its own.
const Hostile = "x\x1b]0;title\x07\x1b[2J\x9b31m\u009b31m\u0085\r\u202e\u2066\u2028\u200b\ufeff\x7f\n" + Forged + "\tok"

// Run runs a command with arguments as terminal.Run does, and returns what a terminal would get.
func Run(t *testing.T, command *cobra.Command, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	defer klog.CaptureState().Restore()
	defer func(out, err io.Writer) { terminal.Stdout, terminal.Stderr = out, err }(terminal.Stdout, terminal.Stderr)
	var out, errs bytes.Buffer
	terminal.Stdout, terminal.Stderr = terminal.NewWriter(&out), terminal.NewWriter(&errs)
	command.SetArgs(args)
	code = terminal.Run(t.Context(), command)
	Check(t, out.String())
	Check(t, errs.String())
	return out.String(), errs.String(), code
}

// Check fails a test if a terminal could take a text for more than text, or if a line of it is forged.
func Check(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%q is not UTF-8", text)
	}
	for _, r := range text {
		if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			t.Errorf("%q has %U", text, r)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, Forged) {
			t.Errorf("%q has a forged line", text)
		}
	}
}

// Commands gives every command of a program a hostile command, a hostile flag, and a hostile value of each
// flag that cannot have it.
func Commands(t *testing.T, program func() *cobra.Command) {
	t.Helper()
	var each func(path []string, command *cobra.Command)
	each = func(path []string, command *cobra.Command) {
		refused := [][]string{{"--" + Hostile}}
		command.Flags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains([]string{"string", "stringSlice", "stringArray"}, f.Value.Type()) {
				refused = append(refused, []string{"--" + f.Name + "=" + Hostile})
			}
		})
		if command.HasSubCommands() {
			refused = append(refused, []string{Hostile})
		}
		for _, args := range refused {
			if _, stderr, code := Run(t, program(), slices.Concat(path, args)...); code == 0 || !strings.Contains(stderr, Forged) {
				t.Errorf("%q %q: exit code %d, %s", path, args, code, stderr)
			}
		}
		for _, sub := range command.Commands() {
			each(append(slices.Clone(path), sub.Name()), sub)
		}
	}
	each(nil, program())
}
