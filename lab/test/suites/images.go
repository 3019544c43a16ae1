package suites

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Passwd and Group are those files of the images.
const (
	Passwd = "root:x:0:0:root:/root:/bin/sh\n" +
		"www-data:x:33:33:www-data:/var/www:/bin/false\n" +
		"nobody:x:65534:65534:nobody:/home:/bin/false\n"
	Group = "root:x:0:\nwww-data:x:33:\nnobody:x:65534:\n"
)

// standIns are programs that suites need and some builds of busybox lack.
var standIns = map[string]string{
	"ipcs":  "#!/bin/sh\nexec cat /proc/sysvipc/shm\n",
	"pgrep": "#!/bin/sh\nexec pidof \"$@\"\n",
}

// BusyboxLayer is a small system around the host's busybox.
func BusyboxLayer(ctx context.Context) (v1.Layer, error) {
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
	files := []File{
		{Path: "bin/busybox", Mode: 0o755, Content: string(program)},
		{Path: "etc/passwd", Mode: 0o644, Content: Passwd},
		{Path: "etc/group", Mode: 0o644, Content: Group},
		{Path: "root/", Mode: 0o700},
		{Path: "tmp/", Mode: 0o1777},
		{Path: "var/run/", Mode: 0o755},
	}
	names := strings.Fields(string(applets))
	for _, name := range names {
		if name != "busybox" {
			// Not symbolic links: masking one would mask all of them.
			files = append(files, File{Path: "bin/" + name, Mode: 0o755, Link: "bin/busybox"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(standIns)) {
		if !slices.Contains(names, name) {
			files = append(files, File{Path: "bin/" + name, Mode: 0o755, Content: standIns[name]})
		}
	}
	return Layer(files)
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

// File is an entry of a layer: a folder if its path ends in a slash, a hard
// link to the file Link if that is set.
type File struct {
	Path, Link, Content string
	Mode                int64 // as for chmod(1)
}

// Layer makes a layer of files.
func Layer(files []File) (v1.Layer, error) {
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	for _, f := range files {
		header := &tar.Header{Name: f.Path, Mode: f.Mode, Size: int64(len(f.Content)), Typeflag: tar.TypeReg}
		switch {
		case f.Link != "":
			header.Typeflag, header.Linkname = tar.TypeLink, f.Link
		case strings.HasSuffix(f.Path, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if _, err := io.WriteString(archive, f.Content); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	})
}

// Image makes an image of layers, for this machine's architecture.
func Image(config v1.Config, layers []v1.Layer) (v1.Image, error) {
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
