//go:build integration

package kubectl

import (
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/kubectllayers/command"
)

// The examples in --help are commands with flags that they have.
func TestExamples(t *testing.T) {
	root := command.New("test")
	for _, of := range root.Commands() {
		if of.Hidden {
			continue
		}
		for line := range strings.Lines(of.Example) {
			_, args, found := strings.Cut(line, "kubectl layers ")
			cmd, flags, err := root.Find(strings.Fields(strings.ReplaceAll(args, "'", "")))
			if err == nil {
				err = cmd.ParseFlags(flags)
			}
			if !found || err != nil || cmd != of {
				t.Errorf("%s: %s: %v", of.Name(), line, err)
			}
		}
	}
}
