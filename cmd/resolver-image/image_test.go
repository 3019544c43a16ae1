package main

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func testImage(t *testing.T) v1.Image {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	binary := write(program, "the program")
	write("licenses/std@go1/LICENSE", "a text")
	c, err := newContents(binary, filepath.Join(dir, "licenses"), []byte("authorities"), cdx.NewBOM())
	if err != nil {
		t.Fatal(err)
	}
	image, err := c.image(&v1.Platform{OS: "linux", Architecture: "arm64"}, "v1+layerlocality.1")
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// TestImage: the image has what the Dockerfile gives it, runs without root, and is the same
// each time.
func TestImage(t *testing.T) {
	image := testImage(t)
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, error %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	found := map[string]int64{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || !header.ModTime.IsZero() && header.ModTime.Unix() != 0 {
			t.Errorf("%s: owner %d, date %s", header.Name, header.Uid, header.ModTime)
		}
		found[header.Name] = header.Mode
	}
	for name, mode := range map[string]int64{
		"usr/": 0o755, "usr/local/bin/" + program: 0o755, "etc/ssl/certs/ca-certificates.crt": 0o644,
		"usr/share/sbom/" + program + ".cdx.json": 0o644, "usr/share/licenses/" + program + "/std@go1/LICENSE": 0o644,
	} {
		if found[name] != mode {
			t.Errorf("%s has mode %o, want %o; there are %q", name, found[name], mode, slices.Sorted(maps.Keys(found)))
		}
	}

	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../deploy/images/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	instruction := func(pattern string) string {
		all := regexp.MustCompile(`(?m)^`+pattern+`$`).FindAllStringSubmatch(string(text), -1)
		if all == nil {
			t.Fatalf("the Dockerfile has no %s", pattern)
		}
		return all[len(all)-1][1] // that of layer-resolver is the last
	}
	want := v1.Config{
		User: instruction("USER (.*)"), StopSignal: instruction("STOPSIGNAL (.*)"), Env: []string{instruction("ENV (.*)")},
		Entrypoint: []string{strings.Trim(instruction("ENTRYPOINT (.*)"), `[]"`)}, Labels: config.Config.Labels,
	}
	if !reflect.DeepEqual(config.Config, want) || config.OS != "linux" || config.Architecture != "arm64" {
		t.Errorf("%s/%s, %+v, the Dockerfile has %+v", config.OS, config.Architecture, config.Config, want)
	}

	one, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if two, err := testImage(t).Digest(); err != nil || one != two {
		t.Errorf("%s, then %s, error %v", one, two, err)
	}
}

// TestVersion: the image is called as the other ones are.
func TestVersion(t *testing.T) {
	version, err := readVersion("../../versions.env")
	if err != nil || !regexp.MustCompile(`^v1\.\d+\.\d+\+layerlocality\.\d+$`).MatchString(version) {
		t.Errorf("%q, error %v", version, err)
	}
	if _, err := readVersion("versions.env"); err == nil || !strings.Contains(err.Error(), "root of the repository") {
		t.Errorf("error %v", err)
	}
}
