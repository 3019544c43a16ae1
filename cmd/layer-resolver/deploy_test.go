package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// shipped returns deploy/resolver with all components.
func shipped(t *testing.T) resmap.ResMap {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../../deploy/resolver")
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	overlay := fmt.Sprintf("resources: [%s]\ncomponents:\n", relative)
	entries, err := os.ReadDir(filepath.Join(root, "components"))
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d components, error %v", len(entries), err)
	}
	for _, entry := range entries {
		overlay += "- " + filepath.Join(relative, "components", entry.Name()) + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// arguments returns the arguments of the shipped container.
func arguments(t *testing.T, built resmap.ResMap) []string {
	t.Helper()
	for _, resource := range built.Resources() {
		if resource.GetKind() != "Deployment" {
			continue
		}
		var deployment appsv1.Deployment
		if err := yaml.Unmarshal([]byte(resource.MustYaml()), &deployment); err != nil {
			t.Fatal(err)
		}
		container := deployment.Spec.Template.Spec.Containers[0]
		if len(container.Command) > 0 || len(container.Args) == 0 || container.Args[0] != "run" {
			t.Fatalf("command %q, arguments %q", container.Command, container.Args)
		}
		return container.Args[1:]
	}
	t.Fatal("no Deployment")
	return nil
}

// TestDeployment: the command accepts the arguments of deploy/resolver, with
// all components, and uses the ports declared there.
func TestDeployment(t *testing.T) {
	command := newRunCommand()
	if err := command.ParseFlags(arguments(t, shipped(t))); err != nil {
		t.Fatal(err)
	}
	if rest := command.Flags().Args(); len(rest) > 0 {
		t.Errorf("arguments that are no flags: %q", rest)
	}
	for flag, want := range map[string]string{
		"leader-elect": "true", "metrics-bind-address": ":8443", "metrics-secure": "true", "health-probe-bind-address": ":8081",
		"pull-secrets": "true", "docker-config": "/etc/layer-resolver/docker/config.json",
		"ca-bundle":       "[/etc/layer-resolver/ca/ca-bundle.crt,/etc/layer-resolver/cluster-ca/ca-bundle.crt,/etc/layer-resolver/cluster-ca/service-ca.crt]",
		"cluster-mirrors": "true", "docker-config-secret": "openshift-config/pull-secret",
		"certs-dir":                         "/etc/layer-resolver/certs.d",
		"image-credential-provider-config":  "/etc/layer-resolver/credential-provider/credential-provider.yaml",
		"image-credential-provider-bin-dir": "/opt/credential-provider",
		"registries-conf":                   "/etc/layer-resolver/registries/registries.conf",
	} {
		if got := command.Flags().Lookup(flag).Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", flag, got, want)
		}
	}
}
