package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/layer-locality/layer-locality/internal/sbom"
)

// file of an image.
type file struct {
	path    string
	mode    int64
	content []byte
}

// contents of an image, the same as those of deploy/images/Dockerfile.
type contents []file

// newContents returns the files of the image of a binary, with a folder of license texts.
func newContents(binary, texts string, certificates []byte, bom *cdx.BOM) (contents, error) {
	compiled, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var described bytes.Buffer
	if err := sbom.Write(&described, bom); err != nil {
		return nil, err
	}
	files := contents{
		{"usr/local/bin/" + program, 0o755, compiled},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, certificates},
		{"usr/share/sbom/" + program + ".cdx.json", 0o644, described.Bytes()},
	}
	err = filepath.WalkDir(texts, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(texts, name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		files = append(files, file{"usr/share/licenses/" + program + "/" + filepath.ToSlash(relative), 0o644, text})
		return err
	})
	return files, err
}

// image returns the image with one layer: it depends on the files alone, not on the time.
func (c contents) image(platform *v1.Platform, version string) (v1.Image, error) {
	archive, err := c.archive()
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Config = v1.Config{
		// Numeric, so that runAsNonRoot can be checked.
		User:       "65532:65532",
		Entrypoint: []string{"/usr/local/bin/" + program},
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
		StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":       program,
			"org.opencontainers.image.description": "Asks registries what images consist of, for the LayerLocality plugin",
			"org.opencontainers.image.version":     version,
		},
	}
	return mutate.ConfigFile(image, config)
}

// archive returns the files and the folders above them, sorted and without a date.
func (c contents) archive() ([]byte, error) {
	folders := map[string]bool{}
	files := slices.Clone(c)
	for _, f := range c {
		for folder := path.Dir(f.path); folder != "."; folder = path.Dir(folder) {
			if !folders[folder] {
				folders[folder] = true
				files = append(files, file{folder + "/", 0o755, nil})
			}
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.path, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}
