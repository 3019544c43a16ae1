package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// archive writes an archive with files of a mode.
func archive(t *testing.T, file string, mode int64, names ...string) {
	t.Helper()
	var data bytes.Buffer
	zipped := gzip.NewWriter(&data)
	writer := tar.NewWriter(zipped)
	for _, name := range names {
		if err := writer.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: 4}); err != nil {
			t.Fatal(err)
		}
		_, _ = writer.Write([]byte("text"))
	}
	_, _ = writer.Close(), zipped.Close()
	if err := os.WriteFile(file, data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What scripts/krew.sh makes of archives keeps the rules and installs.
func TestManifest(t *testing.T) {
	folder := t.TempDir()
	for _, of := range []string{runtime.GOOS + "_" + runtime.GOARCH, "windows_amd64"} {
		program := "kubectl-layers"
		if strings.HasPrefix(of, "windows") {
			program += ".exe"
		}
		archive(t, filepath.Join(folder, "kubectl-layers_v1.36.5_layerlocality.1_"+of+".tar.gz"), 0o755, program, "LICENSE")
	}
	script := exec.CommandContext(t.Context(), "../../../../scripts/krew.sh", folder)
	script.Stderr = os.Stderr
	text, err := script.Output()
	if err != nil {
		t.Fatal(err)
	}
	parse := func() *manifest {
		m := &manifest{}
		if err := yaml.UnmarshalStrict(text, m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	if err := check("layers.yaml", parse()); err != nil {
		t.Error(err)
	}
	if err := install(parse(), folder, filepath.Join(folder, "installed")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(folder, "installed/bin/kubectl-layers")); err != nil || info.Mode()&0o111 == 0 {
		t.Error(err)
	}
	for name, change := range map[string]func(*manifest){
		"kind":        func(m *manifest) { m.Kind = "Plugins" },
		"name":        func(m *manifest) { m.Metadata.Name = "kubectl-layers" },
		"file":        func(m *manifest) { m.Metadata.Name = "layer" },
		"version":     func(m *manifest) { m.Spec.Version = "1.36.5" },
		"description": func(m *manifest) { m.Spec.ShortDescription = "a\nb" },
		"platforms":   func(m *manifest) { m.Spec.Platforms = nil },
		"uri":         func(m *manifest) { m.Spec.Platforms[0].URI = "http://example.com/x.tar.gz" },
		"checksum":    func(m *manifest) { m.Spec.Platforms[0].SHA256 = "abc" },
		"program":     func(m *manifest) { m.Spec.Platforms[0].Bin = "../kubectl-layers" },
		"exe":         func(m *manifest) { m.Spec.Platforms[0].Selector.MatchLabels["os"] = "windows" },
		"files":       func(m *manifest) { m.Spec.Platforms[0].Files[0].To = "../.." },
		"license":     func(m *manifest) { m.Spec.Platforms[0].Files = m.Spec.Platforms[0].Files[:1] },
	} {
		m := parse()
		change(m)
		if err := check("layers.yaml", m); err == nil {
			t.Errorf("%s: no rule is broken", name)
		}
	}
	for name, change := range map[string]func(*manifest){
		"checksum": func(m *manifest) { m.Spec.Platforms[0].SHA256 = strings.Repeat("0", 64) },
		"file":     func(m *manifest) { m.Spec.Platforms[0].Files[0].From = "none" },
		"archive":  func(m *manifest) { m.Spec.Platforms[0].URI = "https://example.com/none.tar.gz" },
	} {
		m := parse()
		change(m)
		if err := install(m, folder, filepath.Join(folder, name)); err == nil {
			t.Errorf("%s: installed", name)
		}
	}
}
