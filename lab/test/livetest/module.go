package livetest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// Pin returns a version from versions.env, or from that of the line that LINE names.
func Pin(t testing.TB, name string) string {
	t.Helper()
	root, err := repository()
	must(t, err)
	own, err := os.ReadFile(filepath.Join(root, "lines", os.Getenv("LINE"), "versions.env"))
	if !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
	pins, err := os.ReadFile(filepath.Join(root, "versions.env"))
	must(t, err)
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `=(\S+)$`).FindSubmatch(append(own, pins...))
	if found == nil {
		t.Fatalf("versions.env has no %s", name)
	}
	return string(found[1])
}

// Module downloads a Go module in the version that versions.env has under a name, and returns the
// folder that holds it.
func Module(t testing.TB, module, pin string) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module+"@"+Pin(t, pin))
	output, err := download.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", download, err, output)
	}
	var found struct{ Dir string }
	must(t, json.Unmarshal(output, &found))
	return found.Dir
}
