package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const nodes = `{"kind": "List", "items": [
	{"kind": "Node", "metadata": {"name": "n1"}, "status": {"images": [{"names": ["docker.io/library/a:v1"], "sizeBytes": 1000000000}]}},
	{"kind": "Node", "metadata": {"name": "n2"}}
]}`

func TestRun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pod.yaml")
	pod := "kind: Pod\nspec:\n  initContainers:\n  - image: docker.io/library/a:v1\n  containers:\n  - image: other\n"
	if err := os.WriteFile(file, []byte(pod), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"n1    46      docker.io/library/a:v1: 1000.0 MB x 1 of 2 nodes = 500.0 MB; sum 500.0 MB\n": {"", "docker.io/library/a:v1"},
		"n2    0       docker.io/library/a:v1: not there\n":                                         {"", "docker.io/library/a:v1"},
		"n1    22      docker.io/library/a:v1: 1000.0 MB x 1 of 2 nodes = 500.0 MB; other":          {file},
	} {
		var out bytes.Buffer
		if err := run(strings.NewReader(nodes), &out, args[0], args[1:]); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%q: %v\n%swant %s", args, err, &out, want)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	deployment := filepath.Join(t.TempDir(), "deployment.yaml")
	if err := os.WriteFile(deployment, []byte("kind: Deployment\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, test := range map[string]struct {
		in, file string
		images   []string
	}{
		"no image: name":                     {nodes, "", nil},
		"want one of them":                   {nodes, "pod.yaml", []string{"a"}},
		"no such file":                       {nodes, "/nowhere", nil},
		`kind "Deployment"`:                  {nodes, deployment, nil},
		"want the output of 'kubectl get no": {"NAME STATUS", "", []string{"a"}},
		"standard input has no list":         {`{"kind": "List", "items": []}`, "", []string{"a"}},
	} {
		if err := run(strings.NewReader(test.in), new(bytes.Buffer), test.file, test.images); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
