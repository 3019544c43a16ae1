package sbom

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// binary builds the command of this package: test binaries record no dependencies.
func binary(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sbom")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", file, "../cmd/sbom").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return file
}

// options returns those of that binary, with texts of what is not a module.
func options(t *testing.T) Options {
	t.Helper()
	texts := t.TempDir()
	for _, name := range []string{"std@" + runtime.Version(), "libseccomp@2.5.4"} {
		write(t, filepath.Join(texts, name, "LICENSE"), "a text")
	}
	return Options{
		Name: "kubelet", Version: "v1.2.3+layerlocality.1", Workspace: "v1.2.3",
		Upstream:  "k8s.io/kubernetes@v1.2.3",
		Libraries: []Library{{Name: "libseccomp", Version: "2.5.4", License: "LGPL-2.1-only"}},
		Source:    "..", Texts: texts,
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDescribe(t *testing.T) {
	options := options(t)
	bom, err := Describe(t.Context(), binary(t), options)
	if err != nil {
		t.Fatal(err)
	}
	program := bom.Metadata.Component
	if program.Name != "kubelet" || !strings.HasSuffix(program.PackageURL, "@v1.2.3%2Blayerlocality.1") {
		t.Errorf("program: %s, %s", program.Name, program.PackageURL)
	}
	if ancestor := (*program.Pedigree.Ancestors)[0].PackageURL; ancestor != "pkg:golang/k8s.io/kubernetes@v1.2.3" {
		t.Errorf("ancestor: %s", ancestor)
	}
	found := map[string]string{}
	for _, component := range *bom.Components {
		found[component.Name] = component.PackageURL
	}
	for name, want := range map[string]string{
		"std":                                  "pkg:golang/std@1.",
		"github.com/CycloneDX/cyclonedx-go":    "pkg:golang/github.com/cyclonedx/cyclonedx-go@v",
		"github.com/package-url/packageurl-go": "pkg:golang/github.com/package-url/packageurl-go@v",
		"libseccomp":                           "pkg:generic/libseccomp@2.5.4",
	} {
		if !strings.Contains(found[name], want) {
			t.Errorf("%s: %q, want %q in it", name, found[name], want)
		}
	}
	for _, text := range []string{
		"github.com/layer-locality/layer-locality/lab@v1.2.3+layerlocality.1/LICENSE",
		"github.com/CycloneDX/cyclonedx-go@*/LICENSE", // in the module cache !cyclone!d!x
		"github.com/CycloneDX/cyclonedx-go@*/NOTICE",
	} {
		if files, err := filepath.Glob(filepath.Join(options.Texts, text)); err != nil || len(files) != 1 {
			t.Errorf("%s: %v, %v", text, files, err)
		}
	}
	if all, want := (*program.Licenses)[0].Expression, "Apache-2.0 AND BSD-3-Clause AND ISC AND LGPL-2.1-only AND MIT"; all != want {
		t.Errorf("licenses: %s, want %s", all, want)
	}
	if all := (*bom.Dependencies)[0].Dependencies; len(*all) != len(*bom.Components) {
		t.Errorf("the program depends on %d of %d components", len(*all), len(*bom.Components))
	}

	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := Write(w, bom); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("equal input gave different output")
	}
	var back cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&back); err != nil {
		t.Fatal(err)
	}
	if back.SpecVersion != cdx.SpecVersion1_6 || len(*back.Components) != len(*bom.Components) {
		t.Errorf("read back: version %s, %d components", back.SpecVersion, len(*back.Components))
	}
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct {
		module    *debug.Module
		workspace string
		want      string
	}{
		"plain":     {&debug.Module{Path: "a.io/b", Version: "v1.0.0"}, "", "pkg:golang/a.io/b@v1.0.0"},
		"workspace": {&debug.Module{Path: "k8s.io/api", Version: "(devel)"}, "v1.36.5+x", "pkg:golang/k8s.io/api@v1.36.5%2Bx"},
		"replaced": {
			&debug.Module{Path: "a.io/b", Version: "v1.0.0", Replace: &debug.Module{Path: "c.io/d", Version: "v2.0.0"}},
			"", "pkg:golang/c.io/d@v2.0.0",
		},
		"unknown": {&debug.Module{Path: "k8s.io/api", Version: "(devel)"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			component, err := resolve(test.module, test.workspace)
			if (err != nil) != (test.want == "") {
				t.Fatal(err)
			}
			if component.PackageURL != test.want {
				t.Errorf("got %s, want %s", component.PackageURL, test.want)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	made := binary(t)
	other := t.TempDir()
	write(t, filepath.Join(other, "go.mod"), "module example.com/other")
	missing := func(name string) Options {
		options := options(t)
		if err := os.RemoveAll(filepath.Join(options.Texts, name)); err != nil {
			t.Fatal(err)
		}
		return options
	}
	for _, test := range []struct {
		file    string
		options Options
		want    string
	}{
		{text, Options{}, "not a Go binary"},
		{text + ".absent", Options{}, "no such file"},
		{self, Options{Workspace: "v1", Upstream: "k8s.io/kubernetes"}, "not MODULE@VERSION"},
		{made, Options{Source: other}, "no required module provides package github.com/layer-locality/layer-locality/lab/cmd/sbom"},
		{made, missing("std@" + runtime.Version()), "no license text of std"},
		{made, missing("libseccomp@2.5.4"), "no license text of libseccomp 2.5.4"},
	} {
		if _, err := Describe(t.Context(), test.file, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.file, err, test.want)
		}
	}
}
