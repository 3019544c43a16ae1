package memlimit

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestLimit(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	limited, other, unlimited := file("limited", "134217728\n"), file("other", "1000\n"), file("unlimited", "max\n")
	absent := filepath.Join(folder, "absent")
	for name, c := range map[string]struct {
		files []string
		want  int64
	}{
		"version 2":        {[]string{limited, absent}, 120795948},
		"version 1":        {[]string{absent, limited}, 120795948},
		"the first counts": {[]string{limited, other}, 120795948},
		"no limit":         {[]string{unlimited, other}, math.MaxInt64},
		"no file":          {[]string{absent, absent}, math.MaxInt64},
		"nothing":          {[]string{file("empty", "")}, math.MaxInt64},
		"none left":        {[]string{file("zero", "0\n")}, math.MaxInt64},
	} {
		if got := limit(c.files); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// The limit of the environment counts.
func TestEnvironment(t *testing.T) {
	if value := os.Getenv("GOMEMLIMIT"); value != "" {
		if got := debug.SetMemoryLimit(-1); got != 100<<20 {
			t.Errorf("GOMEMLIMIT=%s, and the limit is %d", value, got)
		}
		return
	}
	if got, want := debug.SetMemoryLimit(-1), limit(files); got != want {
		t.Errorf("the limit is %d, want %d", got, want)
	}
	command := exec.Command(os.Args[0], "-test.run=^TestEnvironment$")
	command.Env = append(os.Environ(), "GOMEMLIMIT=100MiB")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
