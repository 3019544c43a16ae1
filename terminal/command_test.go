package terminal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/internal/terminaltest"
	"github.com/layer-locality/layer-locality/terminal"
)

// What a command prints in whatever way, what cobra and klog print, and an error come to the terminal
// as text, and no line of them is another's.
func TestRun(t *testing.T) {
	root := &cobra.Command{Use: "program", RunE: func(cmd *cobra.Command, args []string) error {
		cmd.Println("out", terminal.Line(args[0], 100))
		cmd.PrintErrln("err", terminal.Lines(args[0]))
		klog.Error(terminal.Line(args[0], 100))
		klog.ErrorS(errors.New(args[0]), "log", "value", args[0])
		return errors.New(args[0])
	}}
	stdout, stderr, code := terminaltest.Run(t, root, terminaltest.Hostile)
	if code != 1 || !strings.HasPrefix(stdout, "out x\uFFFD") || strings.Count(stdout, terminaltest.Forged) != 1 {
		t.Errorf("exit code %d, %q", code, stdout)
	}
	for _, part := range []string{"err x\uFFFD", "] x\uFFFD", `"log" err=<`, "value=<", "\nerror: x\uFFFD"} {
		if strings.Count(stderr, part) != 1 {
			t.Errorf("%q is not once in\n%s", part, stderr)
		}
	}
	if stdout, stderr, code = terminaltest.Run(t, &cobra.Command{Use: "program", Run: func(*cobra.Command, []string) {}}); code != 0 || stdout+stderr != "" {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	long := &cobra.Command{Use: "program", RunE: func(*cobra.Command, []string) error { return errors.New(strings.Repeat("x", 1<<20)) }}
	if _, stderr, _ := terminaltest.Run(t, long); len(stderr) > 30_000 {
		t.Errorf("an error has %d bytes", len(stderr))
	}
}

// A value is the same after it was printed as JSON, but for what is not UTF-8.
func TestWriteJSON(t *testing.T) {
	want := map[string]string{"name": strings.ToValidUTF8(terminaltest.Hostile, "\uFFFD") + "größe <&> 🙂\U000E0001\uFFFD", terminaltest.Forged + "\u202e": ""}
	var out bytes.Buffer
	if err := terminal.WriteJSON(terminal.NewWriter(&out), want); err != nil {
		t.Fatal(err)
	}
	terminaltest.Check(t, out.String())
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != 2 || got["name"] != want["name"] || strings.Contains(out.String(), `\u003c`) || !strings.Contains(out.String(), "größe <&> 🙂") {
		t.Errorf("%v: %q\n%s", err, got, &out)
	}
	if err := terminal.WriteJSON(os.Stdout, func() {}); err == nil {
		t.Error("a function is JSON")
	}
}
