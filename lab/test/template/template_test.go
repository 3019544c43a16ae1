package template

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/test/demos/steps"
)

const root = "../../.."

// TestSteps follows the steps in a copy, and checks that there are six.
func TestSteps(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, steps.Readme))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n**"); n != 6 {
		t.Errorf("%d steps", n)
	}
	var printed bytes.Buffer
	if err := steps.Follow(t.Context(), root, t.TempDir(), &printed); err != nil {
		t.Fatalf("%v\n%s", err, &printed)
	}
	t.Logf("%s", &printed)
}
