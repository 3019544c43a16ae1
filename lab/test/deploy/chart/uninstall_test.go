//go:build integration

package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
)

// TestUninstall: helm install makes every object of the chart on a real apiserver, and after helm
// uninstall nothing is left, whatever its kind.
func TestUninstall(t *testing.T) {
	plane, err := controlplane.StartWith("../../../..", controlplane.Settings{Stock: true, NoCRDs: true, NoFsync: true})
	must(t, err)
	t.Cleanup(func() { must(t, plane.Stop()) })
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, plane.Kubeconfig(), 0o600))
	server, err := discovery.NewDiscoveryClientForConfig(plane.Config)
	must(t, err)
	client, err := dynamic.NewForConfig(plane.Config)
	must(t, err)

	set := []string{"--set-json=agent={\"enabled\":true,\"runtime\":\"containerd\"}", "--set-json=extender={\"enabled\":true}", "--set-json=scheduler={\"byNamespace\":true}",
		"--set-json=networkPolicy={\"enabled\":true,\"apiServers\":[\"192.0.2.1/32\"]}"}
	run := func(args ...string) {
		t.Helper()
		if out, failed, err := helm(t, append(args, "--namespace=kube-system", "--kubeconfig="+kubeconfig)...); err != nil {
			t.Fatalf("%q: %v: %s%s", args, err, out, failed)
		}
	}
	text, err := template(t, chart, "1.36.5", "agent.enabled=true", `agent.runtime="containerd"`, "extender.enabled=true", "scheduler.byNamespace=true",
		"networkPolicy.enabled=true", `networkPolicy.apiServers=["192.0.2.1/32"]`)
	must(t, err)
	var want []string
	for key := range objects(t, text) {
		kind, name, _ := strings.Cut(key, " ")
		_, name, _ = strings.Cut(name, "/")
		want = append(want, kind+" "+name)
	}

	run(append([]string{"install", "layer-locality", chart}, set...)...)
	// Helm's own record of the release is there, too.
	const record = "Secret sh.helm.release.v1.layer-locality.v1"
	got := ours(t, server, client)
	if missing := slices.DeleteFunc(append(want, record), func(o string) bool { return slices.Contains(got, o) }); len(missing) > 0 {
		t.Errorf("not installed: %q; found %q", missing, got)
	}

	run("uninstall", "layer-locality")
	// The apiserver removes a CustomResourceDefinition a moment later.
	must(t, poll.Until(t.Context(), 200*time.Millisecond, time.Minute, func(context.Context) error {
		if left := ours(t, server, client); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		groups, err := server.ServerGroups()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "layerlocality.io" }) {
			return errors.New("layerlocality.io is still served")
		}
		return nil
	}))
}

// ours returns all objects of the cluster that the release made or that have its name, as
// "KIND NAME".
func ours(t *testing.T, server *discovery.DiscoveryClient, client dynamic.Interface) []string {
	t.Helper()
	// What is just being removed cannot be discovered.
	lists, err := server.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	var found []string
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") {
				continue
			}
			all, err := client.Resource(version.WithResource(resource.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			must(t, err)
			for _, o := range all.Items {
				if o.GetAnnotations()["meta.helm.sh/release-name"] != "" || strings.Contains(o.GetName(), "layer") {
					found = append(found, resource.Kind+" "+o.GetName())
				}
			}
		}
	}
	return found
}
