package template

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/test/demos/console"
)

const root = "../../.."

// parts are what the steps need: those of the repository from which kube-scheduler and layer-extender are made.
var parts = []string{"go.mod", "go.sum", "api", "cmd/kube-scheduler", "cmd/layer-extender", "docs/extender.md", "docs/node-usage.md", "extender", "imageref", "memlimit", "scheduler"}

// TestSteps follows the steps in a copy, and checks that there are six.
func TestSteps(t *testing.T) {
	copied := t.TempDir()
	list := exec.CommandContext(t.Context(), "git", append([]string{"ls-files", "-co", "--exclude-standard", "--"}, parts...)...)
	list.Dir = root
	files, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list.Args, err)
	}
	for file := range strings.Lines(string(files)) {
		file = strings.TrimSpace(file)
		text, err := os.ReadFile(filepath.Join(root, file))
		if os.IsNotExist(err) {
			continue // deleted, but still in the index
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(copied, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	readme := filepath.Join(root, "scheduler/template/README.md")
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	if steps := strings.Count(string(text), "\n**"); steps != 6 {
		t.Errorf("%d steps", steps)
	}
	var printed bytes.Buffer
	// The same flags as everything else, so that only what is new is compiled; and lint vets. On a new
	// machine all of Kubernetes is compiled first: almost the ten minutes of a test.
	err = console.Run(t.Context(), readme, console.Options{Dir: copied, Print: &printed, Limit: 9 * time.Minute, Env: []string{"GOFLAGS=-trimpath -buildvcs=false -vet=off", "GOWORK=off", "CGO_ENABLED=0"}})
	if t.Logf("%s", &printed); err != nil {
		t.Fatal(err)
	}
}
