//go:build e2e

package critest

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
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
	busybox, err := busyboxLayer(ctx)
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
	add := func(reference string, config v1.Config, own ...file) {
		layers := []v1.Layer{busybox}
		if len(own) > 0 {
			layer, err := layerOf(own)
			errs = append(errs, err)
			layers = append(layers, layer)
		}
		image, err := imageOf(config, layers)
		errs = append(errs, err)
		all[reference] = image
	}
	marked := func(name string) file { return file{path: name, mode: 0o644} }
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
		file{path: "etc/passwd", mode: 0o644, content: passwd + "default-user:x:1000:1000::/home/default-user:/bin/sh\n"},
		file{path: "etc/group", mode: 0o644, content: group + "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"},
	)

	web := func(reference, name string, arguments ...string) {
		path := "usr/sbin/" + name
		add(reference, v1.Config{Entrypoint: append([]string{"/" + path}, arguments...)},
			file{path: path, mode: 0o755, content: server})
	}
	web(release+"/e2e-test-images/httpd:2.4.39-4", "httpd", ":80")
	web(release+"/e2e-test-images/nginx:1.14-2", "nginx", ":80", "/var/run/nginx.pid", "master process")
	web(staging+"/hostnet-nginx-"+runtime.GOARCH+":latest", "nginx", ":12003")
	add(release+"/e2e-test-images/nonewprivs:1.3", v1.Config{Entrypoint: []string{"/euid"}},
		file{path: "euid", mode: 0o4755, content: euid})

	// Not the image from which the cluster starts sandboxes, because critest
	// removes this one.
	pause, err := images.Build(images.Image{Format: images.Docker, Layers: []images.Layer{{Name: "critest", Size: 1 << 10}}})
	errs = append(errs, err)
	all[release+"/pause:3.9"], all[legacy+"/pause:3.9"] = pause, pause
	return all, errors.Join(errs...)
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\n" +
		"www-data:x:33:33:www-data:/var/www:/bin/false\n" +
		"nobody:x:65534:65534:nobody:/home:/bin/false\n"
	group = "root:x:0:\nwww-data:x:33:\nnobody:x:65534:\n"
)

// standIns are programs that critest needs and some builds of busybox lack.
var standIns = map[string]string{
	"ipcs":  "#!/bin/sh\nexec cat /proc/sysvipc/shm\n",
	"pgrep": "#!/bin/sh\nexec pidof \"$@\"\n",
}

// busyboxLayer is a small system around the host's busybox.
func busyboxLayer(ctx context.Context) (v1.Layer, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w: 'make deps' installs it", err)
	}
	if err := checkStatic(path); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	applets, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", path, err)
	}
	files := []file{
		{path: "bin/busybox", mode: 0o755, content: string(program)},
		{path: "etc/passwd", mode: 0o644, content: passwd},
		{path: "etc/group", mode: 0o644, content: group},
		{path: "root/", mode: 0o700},
		{path: "tmp/", mode: 0o1777},
		{path: "var/run/", mode: 0o755},
	}
	names := strings.Fields(string(applets))
	for _, name := range names {
		if name != "busybox" {
			// Not symbolic links: masking one would mask all of them.
			files = append(files, file{path: "bin/" + name, mode: 0o755, link: "bin/busybox"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(standIns)) {
		if !slices.Contains(names, name) {
			files = append(files, file{path: "bin/" + name, mode: 0o755, content: standIns[name]})
		}
	}
	return layerOf(files)
}

// checkStatic refuses a program that needs a dynamic linker, because the
// images have none.
func checkStatic(path string) error {
	program, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer program.Close()
	for _, segment := range program.Progs {
		if segment.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not linked statically: on Debian and Ubuntu, install busybox-static", path)
		}
	}
	return nil
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

// file is an entry of a layer: a folder if its path ends in a slash, a hard
// link to the file link if that is set.
type file struct {
	path, link, content string
	mode                int64 // as for chmod(1)
}

func layerOf(files []file) (v1.Layer, error) {
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	for _, f := range files {
		header := &tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		switch {
		case f.link != "":
			header.Typeflag, header.Linkname = tar.TypeLink, f.link
		case strings.HasSuffix(f.path, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
		if _, err := io.WriteString(archive, f.content); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	})
}

func imageOf(config v1.Config, layers []v1.Layer) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	content, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	content = content.DeepCopy()
	content.OS, content.Architecture, content.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(image, content)
}
