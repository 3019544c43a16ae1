package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/testkit"
)

var must = testkit.Must

// overlays are the folders of deploy/agent that are applied.
var overlays = []string{"containerd", "cri-o", "k3s", "okd"}

// shipped returns what an overlay of deploy/agent consists of.
func shipped(t *testing.T, overlay string) resmap.ResMap {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../deploy/agent/"+overlay)
	must(t, err)
	return built
}

// TestShippedArguments: the commands take the arguments of the shipped containers, and these
// mount what the arguments name.
func TestShippedArguments(t *testing.T) {
	for _, overlay := range overlays {
		var set appsv1.DaemonSet
		for _, resource := range shipped(t, overlay).Resources() {
			if resource.GetKind() == "DaemonSet" {
				must(t, yaml.UnmarshalStrict([]byte(resource.MustYaml()), &set))
			}
		}
		containers := set.Spec.Template.Spec.Containers
		if len(containers) != 2 {
			t.Fatalf("%s: %d containers", overlay, len(containers))
		}
		for _, container := range containers {
			var found *cobra.Command
			root := newCommand()
			found, rest, err := root.Find(container.Args)
			must(t, err)
			if found.Name() != container.Name {
				t.Errorf("%s: container %s runs %s", overlay, container.Name, found.Name())
			}
			if err := found.ParseFlags(rest); err != nil || len(found.Flags().Args()) > 0 {
				t.Errorf("%s: %q: %v", overlay, container.Args, err)
			}
			mounts := func(path string) bool {
				return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
					return path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")
				})
			}
			value := func(flag string) string { return found.Flags().Lookup(flag).Value.String() }
			paths := []string{value("handover")}
			switch {
			case container.Name == "publish":
				paths = append(paths, value("token-file"))
			case value("runtime") == withContainerd:
				paths = append(paths, value("socket"))
			default:
				root := strings.Trim(value("storage"), "[]")
				paths = append(paths, root+"/overlay-images", root+"/artifacts")
			}
			for _, path := range paths {
				if !mounts(path) {
					t.Errorf("%s: container %s mounts nothing at %s", overlay, container.Name, path)
				}
			}
		}
	}
}
