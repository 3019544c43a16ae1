//go:build e2e

package conformance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
	"github.com/layer-locality/layer-locality/lab/test/suites"
)

// repositories map the registries of Kubernetes' tests to a folder of the cluster's: the file that KUBE_TEST_REPO_LIST
// names.
func repositories(registry string) string {
	return "promoterE2eRegistry: " + registry + "/e2e-test-images\ngcEtcdRegistry: " + registry + "\ngcRegistry: " + registry + "\n"
}

// push fills the cluster's registry with what the Dockerfiles in test/images of k8s.io/kubernetes make: programs compiled
// from that source, in a root file system of Debian instead of Alpine's, and busybox of this machine.
func push(ctx context.Context, t *testing.T, c *cluster.Cluster, root string) {
	t.Helper()
	debian, err := tarball.LayerFromFile(root)
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := suites.BusyboxLayer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(livetest.Module(t, "k8s.io/kubernetes", "KUBERNETES_VERSION"), "test", "images")
	var errs []error
	read := func(path string) string {
		content, err := os.ReadFile(path)
		errs = append(errs, err)
		return string(content)
	}
	program := func(path, built string) suites.File {
		return suites.File{Path: path, Mode: 0o755, Content: read(binary(t, built))}
	}
	layer := func(files ...suites.File) v1.Layer {
		l, err := suites.Layer(files)
		errs = append(errs, err)
		return l
	}
	add := func(config v1.Config, layers []v1.Layer, names ...string) {
		image, err := suites.Image(config, layers)
		if errs = append(errs, err); errors.Join(errs...) != nil {
			return
		}
		for _, name := range names {
			_, err := images.Push(ctx, c.Registry().Address+"/"+name, image)
			errs = append(errs, err)
		}
	}
	// used returns the names of an image in the version that the tests pull.
	versions := versionsOf(ctx, t, c)
	used := func(names ...string) (all []string) {
		for _, name := range names {
			found := false
			for _, reference := range versions {
				if strings.HasPrefix(reference, name+":") {
					all, found = append(all, reference), true
				}
			}
			if !found {
				t.Fatalf("e2e.test uses no image %s", name)
			}
		}
		return all
	}
	const tests = "e2e-test-images/"

	agnhost := layer(program("agnhost", "stock/agnhost"), suites.File{Path: "agnhost-2", Link: "agnhost", Mode: 0o755}, suites.File{Path: "uploads/", Mode: 0o755},
		suites.File{Path: "localhost.crt", Mode: 0o644, Content: read(filepath.Join(source, "agnhost/porter/localhost.crt"))},
		suites.File{Path: "localhost.key", Mode: 0o644, Content: read(filepath.Join(source, "agnhost/porter/localhost.key"))})
	server := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	add(server, []v1.Layer{debian, agnhost}, used(tests+"agnhost")...)
	for _, name := range []string{"kitten", "nautilus"} {
		pages := filepath.Join(source, name, "html")
		add(v1.Config{Entrypoint: server.Entrypoint, Cmd: []string{"test-webserver"}}, []v1.Layer{debian, agnhost, layer(
			suites.File{Path: name + ".jpg", Mode: 0o644, Content: read(filepath.Join(pages, name+".jpg"))},
			suites.File{Path: "data.json", Mode: 0o644, Content: read(filepath.Join(pages, "data.json"))},
		)}, used(tests+name)...)
	}
	add(v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}}, []v1.Layer{debian}, used(tests+"nginx")...)
	add(v1.Config{Cmd: []string{"bash"}}, []v1.Layer{debian}, used(tests+"glibc-dns-testing")...)
	shell := v1.Config{Cmd: []string{"sh"}}
	add(shell, []v1.Layer{busybox}, used(tests+"busybox")...)
	add(v1.Config{Cmd: shell.Cmd, User: "1234"}, []v1.Layer{busybox}, used(tests+"nonroot")...)
	setuid := program("usr/local/bin/nnp", "stock/nonewprivs")
	setuid.Mode = 0o6755
	add(v1.Config{Cmd: []string{"nnp"}}, []v1.Layer{busybox, layer(setuid)}, used(tests+"nonewprivs")...)
	add(v1.Config{Entrypoint: []string{"/sample-apiserver"}}, []v1.Layer{layer(program("sample-apiserver", "stock/sample-apiserver"))}, used(tests+"sample-apiserver")...)
	add(v1.Config{}, []v1.Layer{busybox, layer(program("usr/local/bin/etcd", "tools/etcd"))}, used("etcd")...)
	pause, err := images.Pause()
	errs = append(errs, err)
	add(v1.Config{Entrypoint: []string{"/pause"}}, []v1.Layer{layer(suites.File{Path: "pause", Mode: 0o755, Content: string(pause)})}, used("pause")...)

	add(v1.Config{}, []v1.Layer{debian, layer(program("kube-proxy", "stock/kube-proxy"))}, "kube-proxy:1")
	add(v1.Config{}, []v1.Layer{layer(program("coredns", "tools/coredns"))}, "coredns:1")
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// versionsOf returns the images that the tests use and that come from the cluster's registry, without its name.
func versionsOf(ctx context.Context, t *testing.T, c *cluster.Cluster) (names []string) {
	t.Helper()
	list := exec.CommandContext(ctx, binary(t, "stock/e2e.test"), "--list-images")
	list.Env = environment(t, c)
	text, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v", list, err)
	}
	for _, line := range strings.Fields(string(text)) {
		if name, ours := strings.CutPrefix(line, c.Registry().Address+"/"); ours {
			names = append(names, name)
		}
	}
	return names
}
