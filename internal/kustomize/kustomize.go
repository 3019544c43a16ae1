// Package kustomize renders what this repository ships for "kubectl apply -k", with changes of
// one's own: as an overlay that a user would write.
package kustomize

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Build renders an overlay of a shipped folder: what "kubectl apply -k" sends. The overlay has the
// fields of a kustomization, without resources; nil for none. Its components, a []string, are
// folders like the shipped one.
func Build(shipped string, overlay map[string]any) (_ []*unstructured.Unstructured, err error) {
	folder, err := os.MkdirTemp("", "layer-locality-kustomize-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	// kustomize compares paths.
	if folder, err = filepath.EvalSymlinks(folder); err != nil {
		return nil, err
	}
	kustomization := map[string]any{}
	for field, value := range overlay {
		kustomization[field] = value
	}
	if kustomization["resources"], err = relative(folder, shipped); err != nil {
		return nil, err
	}
	if components, ok := overlay["components"].([]string); ok {
		if kustomization["components"], err = relative(folder, components...); err != nil {
			return nil, err
		}
	}
	text, err := yaml.Marshal(kustomization)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), text, 0o600); err != nil {
		return nil, err
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, 0, built.Size())
	for _, resource := range built.Resources() {
		// Not by Map, whose numbers are of types that an Unstructured cannot copy.
		text, err := resource.MarshalJSON()
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// relative returns paths as seen from a folder: kustomize takes no absolute ones.
func relative(folder string, paths ...string) ([]string, error) {
	seen := make([]string, len(paths))
	for i, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		if seen[i], err = filepath.Rel(folder, path); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

// Shipped is what the names of our images in the shipped files begin with.
const Shipped = "registry.example.com/layer-locality/"

// Image is an entry of a kustomization's images: a name of the shipped files is replaced by an
// image with a digest, and perhaps a tag.
func Image(name, image string) map[string]string {
	repository, digest, _ := strings.Cut(image, "@")
	if tag := strings.LastIndex(repository, ":"); tag > strings.LastIndex(repository, "/") {
		repository = repository[:tag]
	}
	return map[string]string{"name": name, "newName": repository, "digest": digest}
}
