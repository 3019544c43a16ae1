// Package resolver tests what scripts/resolver-image.sh makes.
package resolver

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const program = "layer-resolver"

func build(t *testing.T) v1.Image {
	t.Helper()
	out := t.TempDir()
	script := exec.CommandContext(t.Context(), "../../../../scripts/resolver-image.sh", "--out", out)
	script.Stderr = os.Stderr
	if err := script.Run(); err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(out, runtime.GOARCH, program+".tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// TestImage: the image has what the Dockerfile gives it, runs without root, and is the same
// each time.
func TestImage(t *testing.T) {
	image := build(t)
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
		if header.Uid != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s: owner %d, date %s", header.Name, header.Uid, header.ModTime)
		}
		found[header.Name] = header.Mode
	}
	for name, mode := range map[string]int64{
		"usr/": 0o755, "usr/local/bin/" + program: 0o755, "etc/ssl/certs/ca-certificates.crt": 0o644,
		"usr/share/sbom/" + program + ".cdx.json": 0o644, "usr/share/licenses/" + program + "/std@" + runtime.Version() + "/LICENSE": 0o644,
	} {
		if found[name] != mode {
			t.Errorf("%s has mode %o, want %o; there are %q", name, found[name], mode, slices.Sorted(maps.Keys(found)))
		}
	}

	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../../deploy/images/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	// What all images have stands before the first program's.
	_, of, _ := strings.Cut(string(text), "FROM base AS "+program+"\n")
	own, _, _ := strings.Cut(of, "\nFROM ")
	common, _, _ := strings.Cut(string(text), "\nFROM base AS ")
	instruction := func(pattern string) string {
		all := regexp.MustCompile(`(?m)^`+pattern+`$`).FindAllStringSubmatch(common+"\n"+own, -1)
		if len(all) != 1 {
			t.Fatalf("the Dockerfile has %d times %s for %s", len(all), pattern, program)
		}
		return all[0][1]
	}
	want := v1.Config{
		User: instruction("USER (.*)"), StopSignal: instruction("STOPSIGNAL (.*)"), Env: []string{instruction("ENV (.*)")},
		Entrypoint: []string{strings.Trim(instruction("ENTRYPOINT (.*)"), `[]"`)}, Labels: config.Config.Labels,
	}
	if !reflect.DeepEqual(config.Config, want) || config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("%s/%s, %+v, the Dockerfile has %+v", config.OS, config.Architecture, config.Config, want)
	}
	if version := config.Config.Labels["org.opencontainers.image.version"]; !regexp.MustCompile(`^v1\.\d+\.\d+\+layerlocality\.\d+$`).MatchString(version) {
		t.Errorf("version %q", version)
	}

	one, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if two, err := build(t).Digest(); err != nil || one != two {
		t.Errorf("%s, then %s, error %v", one, two, err)
	}
}
