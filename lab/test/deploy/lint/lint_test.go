package lint

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

var must = testkit.Must

// TestPods renders everything in deploy/, with images by digest, and checks all pods in it. The chart has
// the same test (lab/test/deploy/chart).
func TestPods(t *testing.T) {
	pinned := filepath.Join(t.TempDir(), "deploy")
	must(t, Pin("../../../../deploy", pinned))
	rendered := map[string][]*unstructured.Unstructured{}
	must(t, filepath.WalkDir(pinned, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "helm": // links to the other folders
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		folder, _ := filepath.Rel(pinned, filepath.Dir(path))
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var kustomization struct {
			Kind string `json:"kind"`
		}
		switch {
		case entry.Name() != "kustomization.yaml":
			if name, _ := filepath.Rel(pinned, path); filepath.Ext(path) == ".yaml" && strings.Contains(string(text), "\nkind: Pod\n") {
				object := &unstructured.Unstructured{}
				rendered[name] = []*unstructured.Unstructured{object}
				return yaml.Unmarshal(text, object)
			}
			return nil
		case filepath.Base(folder) == "base": // others are made of it
			return nil
		}
		if err := yaml.Unmarshal(text, &kustomization); err != nil || kustomization.Kind == "Component" {
			return err
		}
		part, _, _ := strings.Cut(folder, string(filepath.Separator))
		if strings.HasPrefix(folder, filepath.Join("extender", "side-car")) || strings.HasPrefix(folder, filepath.Join("extender", "agents")) {
			part = "scheduler" // whose pods these are
		}
		// With all components, added where a user adds them.
		components, err := filepath.Glob(filepath.Join(pinned, part, "components", "*"))
		if err != nil {
			return err
		}
		if filepath.Base(folder) != "crd" {
			fields := map[string]any{}
			if err := yaml.Unmarshal(text, &fields); err != nil {
				return err
			}
			all, _ := fields["components"].([]any)
			for _, component := range components {
				if filepath.Base(component) == "peers" && folder != "agent/cri-o" && folder != "agent/okd" {
					continue // it is for these
				}
				relative, err := filepath.Rel(filepath.Dir(path), component)
				if err != nil {
					return err
				}
				all = append(all, relative)
			}
			fields["components"] = all
			with, err := yaml.Marshal(fields)
			if err != nil {
				return err
			}
			if err := os.WriteFile(path, with, 0o600); err != nil {
				return err
			}
		}
		if rendered[folder], err = kustomize.Build(filepath.Dir(path), nil); err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o600)
	}))
	used, pods := map[string]bool{}, 0
	for _, folder := range slices.Sorted(maps.Keys(rendered)) {
		problems, err := Pods("../../../..", rendered[folder])
		must(t, err)
		for _, problem := range problems {
			if used[problem] = true; Exceptions[problem] == "" {
				t.Errorf("%s: %s", folder, problem)
			}
		}
		for _, object := range rendered[folder] {
			if _, found, _ := unstructured.NestedMap(object.Object, "spec", "template", "spec"); found || object.GetKind() == "Pod" {
				pods++
			}
		}
	}
	for exception := range Exceptions {
		if !used[exception] {
			t.Errorf("the exception is not needed: %s", exception)
		}
	}
	if pods < 14 {
		t.Errorf("%d workloads in %q", pods, slices.Sorted(maps.Keys(rendered)))
	}
}
