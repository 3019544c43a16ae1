package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/lab/bench"
)

type fakeConfig struct {
	bench.Progress
	rounds int
}

type fakeResult struct {
	Rounds int `json:"rounds"`
}

func (r *fakeResult) Write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "fake rounds=%d\n", r.Rounds)
	return err
}

func TestCommand(t *testing.T) {
	errBroken := errors.New("broken")
	for name, test := range map[string]struct {
		result              *fakeResult
		err                 error
		raw, stdout, stderr string
	}{
		"measured":         {&fakeResult{3}, nil, "{\n  \"rounds\": 3\n}\n", "fake rounds=3\n", "raw numbers: "},
		"in part measured": {&fakeResult{1}, errBroken, "{\n  \"rounds\": 1\n}\n", "", "raw numbers: "},
		"not measured":     {nil, errBroken, "", "", "round 1"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "folder", "fake.json")
			c := command("fake", "short", "long", func(f *pflag.FlagSet, config *fakeConfig) {
				f.IntVar(&config.rounds, "rounds", 1, "rounds")
				f.String("out", out, "file")
			}, func(_ context.Context, config fakeConfig) (*fakeResult, error) {
				if config.rounds != 3 {
					t.Errorf("%d rounds, want those of the flag", config.rounds)
				}
				config.Logf("round %d", 1)
				return test.result, test.err
			})
			var stdout, stderr bytes.Buffer
			c.SetOut(&stdout)
			c.SetErr(&stderr)
			c.SetArgs([]string{"--rounds", "3"})
			c.SilenceUsage, c.SilenceErrors = true, true
			if err := c.ExecuteContext(t.Context()); !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			if stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) || !strings.Contains(stderr.String(), " s  round 1\n") {
				t.Errorf("printed %q and %q", &stdout, &stderr)
			}
			raw, err := os.ReadFile(out)
			if string(raw) != test.raw || (err != nil) != (test.raw == "") {
				t.Errorf("raw numbers %q, error %v", raw, err)
			}
		})
	}
}

// The table is printed even if the file for the raw numbers cannot be written.
func TestCommandWithoutFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := command("fake", "short", "long", func(f *pflag.FlagSet, _ *fakeConfig) {
		f.String("out", filepath.Join(file, "fake.json"), "file")
	}, func(context.Context, fakeConfig) (*fakeResult, error) { return &fakeResult{2}, nil })
	var stdout bytes.Buffer
	c.SetOut(&stdout)
	c.SetErr(io.Discard)
	c.SetArgs(nil)
	c.SilenceUsage, c.SilenceErrors = true, true
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v, want one that names %s", err, file)
	}
	if stdout.String() != "fake rounds=2\n" {
		t.Errorf("printed %q", &stdout)
	}
}

// Every benchmark has the flag --out for its raw numbers: command reads it.
func TestOut(t *testing.T) {
	for _, c := range commands() {
		if f := c.Flags().Lookup("out"); f == nil || f.DefValue != "_out/bench/"+c.Name()+".json" {
			t.Errorf("%s: --out is %+v", c.Name(), f)
		}
	}
}
