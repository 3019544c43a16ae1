package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
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
	if err := errors.Join(os.WriteFile(changed, m.Source, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return 0, err
	}
	args := []string{"test", "-overlay", overlay, "-count=1", "-failfast", "-vet=off", "-timeout", timeout.String()}
	if m.Locks {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = filepath.Dir(path)
	if m.Locks {
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=1") // the race detector needs it
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		return Survived, nil
	case !errors.As(err, &exit):
		return 0, err
	case strings.Contains(string(out), "[build failed]"):
		return NotCompiled, nil
	case strings.Contains(string(out), "[setup failed]"):
		return 0, fmt.Errorf("%s: %s", m, out)
	case strings.Contains(string(out), "panic: test timed out after "):
		return TimedOut, nil
	}
	return Killed, nil
}
