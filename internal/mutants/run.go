package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Outcome is what a package's tests made of a mutant.
type Outcome int

// Outcomes of a mutant. One that does not compile is no mutant.
const (
	Killed Outcome = iota
	Survived
	NotCompiled
	// TimedOut is killed, unless the machine is too busy for the tests.
	TimedOut
)

// timeout bounds the tests of one mutant: it may loop for ever.
const timeout = 3 * time.Minute

// Try runs the unit tests of the mutant's package with the mutant in place of its
// file, which stays as it is. It fails if the tests could not be run.
func Try(ctx context.Context, m Mutant) (Outcome, error) { return try(ctx, m, timeout) }

func try(ctx context.Context, m Mutant, timeout time.Duration) (Outcome, error) {
	work, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(work) }()
	path, err := filepath.Abs(m.File)
	if err != nil {
		return 0, err
	}
	changed, overlay := filepath.Join(work, "mutant.go"), filepath.Join(work, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return 0, err
	}
	if err := errors.Join(os.WriteFile(changed, []byte(m.source()), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return 0, err
	}
	out, err := test(ctx, m, work, timeout, "-overlay", overlay)
	switch {
	case err != nil && strings.Contains(out, "[build failed]"):
		return NotCompiled, nil
	case err != nil && strings.Contains(out, "[setup failed]"):
		return 0, fmt.Errorf("%s: %s", m, out)
	}
	return judge(out, err)
}

// TryAll is Try for many mutants, in the order of Compare: done is told what became of each, of
// one at a time and not in order. It fails if tests fail without a mutant, because they would
// kill every mutant.
func TryAll(ctx context.Context, all []Mutant, done func(Mutant, Outcome)) error {
	var lock sync.Mutex
	each := func(some []Mutant, atOnce int, try func(context.Context, Mutant) (Outcome, error)) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(atOnce)
		for _, m := range some {
			group.Go(func() error {
				outcome, err := try(ctx, m)
				if err != nil {
					return err
				}
				lock.Lock()
				defer lock.Unlock()
				done(m, outcome)
				return nil
			})
		}
		return group.Wait()
	}
	folders := map[string][]Mutant{}
	for _, m := range all {
		folders[filepath.Dir(m.File)] = append(folders[filepath.Dir(m.File)], m)
	}
	var apart []Mutant // that no binary has
	tryTogether := func(folder string) error {
		work, err := os.MkdirTemp("", "mutants")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(work) }()
		b, err := compile(ctx, folder, work, folders[folder])
		if err != nil {
			return err
		}
		if len(b.numbers) > 0 {
			if err := b.baseline(ctx); err != nil {
				return err
			}
		}
		var together []Mutant
		for _, m := range folders[folder] {
			if b.knows(m) {
				together = append(together, m)
			} else {
				apart = append(apart, m)
			}
		}
		return each(together, parallel, b.try)
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if err := tryTogether(folder); err != nil {
			return err
		}
	}
	if err := Baseline(ctx, apart); err != nil {
		return err
	}
	return each(apart, runtime.NumCPU(), Try)
}

// Baseline runs the unit tests of the mutants' packages without a mutant, as Try runs them with one.
// It fails if tests fail, because they would kill every mutant.
func Baseline(ctx context.Context, all []Mutant) error {
	type way struct {
		folder string
		race   bool
	}
	work, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	passed := map[way]bool{}
	for _, m := range all {
		one := way{filepath.Dir(m.File), m.Locks}
		if passed[one] {
			continue
		}
		out, err := test(ctx, m, work, timeout)
		switch exit := new(exec.ExitError); {
		case errors.As(err, &exit):
			return fmt.Errorf("%s: the tests fail without a mutant (race detector: %t), so they say nothing about mutants: %s", one.folder, one.race, out)
		case err != nil:
			return err
		}
		passed[one] = true
	}
	return nil
}

// test runs the unit tests of the mutant's package, with more flags. It returns what they print.
func test(ctx context.Context, m Mutant, work string, timeout time.Duration, flags ...string) (string, error) {
	args := append([]string{"go", "test", "-count=1", "-failfast", "-vet=off", "-timeout", timeout.String()}, flags...)
	var env []string
	if m.Locks {
		args = append(args, "-race")
		env = append(env, "CGO_ENABLED=1") // the race detector needs it
	}
	return command(ctx, filepath.Dir(m.File), work, env, append(args, ".")...)
}

// command runs a command in a folder, with more variables of the environment, and returns what it
// prints. What it starts ends with the context, too, and leaves its temporary files in the
// directory work.
func command(ctx context.Context, folder, work string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = folder
	cmd.Env = append(append(cmd.Environ(), "TMPDIR="+work), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(out), err
}
