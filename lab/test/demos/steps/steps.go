// Package steps follows the README of scheduler/template in a copy of the repository: its steps make another plugin of
// kube-scheduler and agent of layer-extender.
package steps

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/lab/test/demos/console"
)

// Readme is the text with the steps, in the repository.
const Readme = "scheduler/template/README.md"

// parts are what the steps need: those of the repository from which kube-scheduler and layer-extender are made.
var parts = []string{"go.mod", "go.sum", "api", "cmd/kube-scheduler", "cmd/layer-extender", "docs/extender.md", "docs/node-usage.md", "extender", "imageref", "memlimit", "scheduler"}

// Follow follows the steps in a folder, to which it copies what they need of the repository at root.
func Follow(ctx context.Context, root, folder string, printed io.Writer) error {
	list := exec.CommandContext(ctx, "git", append([]string{"ls-files", "-co", "--exclude-standard", "--"}, parts...)...)
	list.Dir = root
	files, err := list.Output()
	if err != nil {
		return fmt.Errorf("%v: %w", list.Args, err)
	}
	for file := range strings.Lines(string(files)) {
		file = strings.TrimSpace(file)
		text, err := os.ReadFile(filepath.Join(root, file))
		if os.IsNotExist(err) {
			continue // deleted, but still in the index
		}
		if err != nil {
			return err
		}
		to := filepath.Join(folder, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return err
		}
	}
	// The same flags as everything else, so that only what is new is compiled; and lint vets. On a new
	// machine all of Kubernetes is compiled first: almost the ten minutes of a test.
	return console.Run(ctx, filepath.Join(root, Readme), console.Options{
		Dir: folder, Print: printed, Limit: 9 * time.Minute, Env: []string{"GOFLAGS=-trimpath -buildvcs=false -vet=off", "GOWORK=off", "CGO_ENABLED=0"},
	})
}
