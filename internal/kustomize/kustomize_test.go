package kustomize

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestBuild(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	digest := "sha256:" + strings.Repeat("a", 64)
	built, err := Build("../../deploy/agent/cri-o", map[string]any{"images": []any{Image(Shipped+"layer-agent", "r.example.com/x:v1@"+digest)}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(built)
	if err != nil || strings.Count(string(text), "image: r.example.com/x@"+digest+"\n") != 2 {
		t.Errorf("%v, or other images:\n%s", err, text)
	}
	for _, object := range built {
		object.DeepCopy() // panics for values that JSON does not have
	}
	if _, err := Build("no/such/folder", nil); err == nil || !strings.Contains(err.Error(), "no/such/folder") {
		t.Errorf("a folder that is not there: %v", err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
