package console

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// defaultLimit is how long one command may take.
const defaultLimit = 3 * time.Minute

// Options for Run.
type Options struct {
	// Dir is the folder in which the shell starts, Env what is added to this process'
	// environment.
	Dir string
	Env []string
	// Print, if set, gets each command and what it printed.
	Print io.Writer
	// Limit is how long one command may take; 0: three minutes.
	Limit time.Duration
	// Until, if set, is the heading before which to end.
	Until string
}

// Run runs the commands of a text in one bash, in their order, and ends at the first whose
// output or status differs from the text. Its error has the file, the line, the command and
// the difference.
func Run(ctx context.Context, file string, options Options) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	commands, err := Parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if options.Until != "" {
		end := slices.IndexFunc(commands, func(c Command) bool { return c.Heading == options.Until })
		if end <= 0 {
			return fmt.Errorf("%s: no command before a heading %q that has some", file, options.Until)
		}
		commands = commands[:end]
	}
	shell, err := start(ctx, options)
	if err != nil {
		return err
	}
	defer shell.stop()
	for _, command := range commands {
		if err := shell.try(command, options.Print); err != nil {
			return fmt.Errorf("%s:%d: $ %s\n%w", file, command.Line, command.Text, err)
		}
	}
	return nil
}

type shell struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	mark string // what ends the output of a command
	// limit is how long one command may take.
	limit time.Duration
}

func start(ctx context.Context, options Options) (*shell, error) {
	cmd := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env = options.Dir, append(os.Environ(), options.Env...)
	// A group of its own, so that what it started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		out.Close()
		return nil, err
	}
	return &shell{cmd, in, bufio.NewReader(out), "mark-" + rand.Text(), cmp.Or(options.Limit, defaultLimit)}, nil
}

func (s *shell) stop() {
	s.in.Close()
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait()
}

func (s *shell) try(command Command, printer io.Writer) error {
	if printer != nil {
		fmt.Fprintf(printer, "$ %s\n", strings.ReplaceAll(command.Text, "\n", "\n> "))
	}
	timer := time.AfterFunc(s.limit, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	output, status, err := s.run(command.Text)
	if !timer.Stop() {
		err = fmt.Errorf("not finished after %s", s.limit)
	}
	if printer != nil {
		fmt.Fprint(printer, output)
	}
	if err != nil {
		return fmt.Errorf("%w; printed so far:\n%s", err, output)
	}
	if status != command.Exit {
		return fmt.Errorf("  ended with status %d, not %d; printed:\n%s", status, command.Exit, output)
	}
	if difference := Compare(command.Output, output); difference != "" {
		return errors.New(difference)
	}
	return nil
}

// run has the shell run a command, which gets no input, and returns its output and status.
func (s *shell) run(command string) (output string, status int, err error) {
	// A command that is not complete must not take the mark for the rest of it: eval.
	quoted := "'" + strings.ReplaceAll(command, "'", `'\''`) + "'"
	if _, err := fmt.Fprintf(s.in, "eval %s </dev/null\nprintf '%%s %%d\\n' '%s' $?\n", quoted, s.mark); err != nil {
		return "", 0, fmt.Errorf("the shell has ended: %w", err)
	}
	var printed strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		before, after, found := strings.Cut(line, s.mark+" ")
		printed.WriteString(before)
		if found {
			status, err = strconv.Atoi(strings.TrimSpace(after))
			return printed.String(), status, err
		}
		if err != nil {
			return printed.String(), 0, fmt.Errorf("the shell has ended: %w", err)
		}
	}
}
