package template

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

// TestSteps follows the steps in a copy, and checks that there are six.
func TestSteps(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, Readme))
	if err != nil {
		t.Fatal(err)
	}
	if steps := strings.Count(string(text), "\n**"); steps != 6 {
		t.Errorf("%d steps", steps)
	}
	var printed bytes.Buffer
	if err := Follow(t.Context(), root, t.TempDir(), &printed); err != nil {
		t.Fatalf("%v\n%s", err, &printed)
	}
	t.Logf("%s", &printed)
}
