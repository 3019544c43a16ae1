//go:build e2e

package critest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/suites"
)

// The registries that critest pulls from.
const (
	staging = "gcr.io/k8s-staging-cri-tools"
	release = "registry.k8s.io"
	legacy  = "k8s.gcr.io"
)

// critestImages builds equivalents of the images that critest pulls, by the
// reference it uses. They correspond to what images/ of cri-tools and
// test/images of Kubernetes make from busybox, nginx and httpd. Programs are
// compiled below dir.
func critestImages(ctx context.Context, dir string) (map[string]v1.Image, error) {
	busybox, err := suites.BusyboxLayer(ctx)
	if err != nil {
		return nil, err
	}
	server, err := compile(ctx, dir, "server")
	if err != nil {
		return nil, err
	}
	euid, err := compile(ctx, dir, "euid")
	if err != nil {
		return nil, err
	}

	all := map[string]v1.Image{}
	var errs []error
	add := func(reference string, config v1.Config, own ...suites.File) {
		layers := []v1.Layer{busybox}
		if len(own) > 0 {
			layer, err := suites.Layer(own)
			errs = append(errs, err)
			layers = append(layers, layer)
		}
		image, err := suites.Image(config, layers)
		errs = append(errs, err)
		all[reference] = image
	}
	marked := func(name string) suites.File { return suites.File{Path: name, Mode: 0o644} }
	shell := v1.Config{Cmd: []string{"sh"}}

	add(release+"/e2e-test-images/busybox:1.29-2", shell)
	for _, name := range []string{"test-image-1", "test-image-2", "test-image-3", "test-image-latest"} {
		add(staging+"/"+name+":latest", shell, marked(name))
	}
	for _, tag := range []string{"1", "2", "3"} {
		add(staging+"/test-image-tags:"+tag, shell, marked("same-image"))
	}
	for _, tag := range []string{"test", "all"} {
		add(staging+"/test-image-tag:"+tag, shell, marked("test-image-tag-"+tag))
	}
	for name, user := range map[string]string{
		"uid": "1002", "username": "www-data", "uid-group": "1003:1004", "username-group": "www-data:1004",
	} {
		add(staging+"/test-image-user-"+name+":latest", v1.Config{Cmd: shell.Cmd, User: user})
	}
	add(staging+"/test-image-predefined-group:latest", v1.Config{Cmd: shell.Cmd, User: "1000"},
		suites.File{Path: "etc/passwd", Mode: 0o644, Content: suites.Passwd + "default-user:x:1000:1000::/home/default-user:/bin/sh\n"},
		suites.File{Path: "etc/group", Mode: 0o644, Content: suites.Group + "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"},
	)

	web := func(reference, name string, arguments ...string) {
		path := "usr/sbin/" + name
		add(reference, v1.Config{Entrypoint: append([]string{"/" + path}, arguments...)},
			suites.File{Path: path, Mode: 0o755, Content: server})
	}
	web(release+"/e2e-test-images/httpd:2.4.39-4", "httpd", ":80")
	web(release+"/e2e-test-images/nginx:1.14-2", "nginx", ":80", "/var/run/nginx.pid", "master process")
	web(staging+"/hostnet-nginx-"+runtime.GOARCH+":latest", "nginx", ":12003")
	add(release+"/e2e-test-images/nonewprivs:1.3", v1.Config{Entrypoint: []string{"/euid"}},
		suites.File{Path: "euid", Mode: 0o4755, Content: euid})

	// Not the image from which the cluster starts sandboxes, because critest
	// removes this one.
	pause, err := images.Build(images.Image{Format: images.Docker, Layers: []images.Layer{{Name: "critest", Size: 1 << 10}}})
	errs = append(errs, err)
	all[release+"/pause:3.9"], all[legacy+"/pause:3.9"] = pause, pause
	return all, errors.Join(errs...)
}

// compile builds the program in testdata/<name> so that it needs no
// libraries.
func compile(ctx context.Context, dir, name string) (string, error) {
	out := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=",
		"-o", out, "./testdata/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s: %w: %s", name, err, output)
	}
	content, err := os.ReadFile(out)
	return string(content), err
}
