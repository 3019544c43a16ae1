// Package sbom writes the software bill of materials of a Go binary as a CycloneDX
// document, and collects the license texts that have to go with the binary. It uses what
// Go recorded in the binary (debug/buildinfo), and the source that it was compiled from.
//
// Generators for Go alone miss two things in our binaries: modules without a version
// (Kubernetes and its staging modules are built in one workspace), and C libraries that are
// linked in. cyclonedx-gomod 1.10 states one license for a module, where 18 of
// layer-resolver's 103 have several, and none for those of the workspace; go-licenses 2.0
// copies neither PATENTS nor a second license beside the first.
package sbom

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/package-url/packageurl-go"
)

// Library is a C library linked into the binary. License is an SPDX expression.
type Library struct {
	Name, Version, License string
}

// Options are what the binary does not record.
type Options struct {
	// Name and Version of the program.
	Name, Version string
	// Workspace is the version of modules that have none because they were built
	// from their folder. If it is empty, such a module is an error.
	Workspace string
	// Upstream, if not empty, is the upstream of a patched binary: module and
	// version, joined by "@".
	Upstream string
	// Libraries are the ones that are linked in statically.
	Libraries []Library
	// Source is the folder where the binary was compiled.
	Source string
	// Texts is the folder that gets the license texts of each module, in
	// <module>@<version>. Those of Go (std@go<version>) and of Libraries have to be
	// there.
	Texts string
}

// Describe reads the binary in the file and collects license texts. Equal input gives
// equal output, without times or random numbers.
func Describe(ctx context.Context, file string, options Options) (*cdx.BOM, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: not a Go binary with build information: %w", file, err)
	}
	hash, err := sum(file)
	if err != nil {
		return nil, err
	}
	program := module(info.Main.Path, options.Version)
	program.Type = cdx.ComponentTypeApplication
	program.Name = options.Name
	program.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hash}}
	program.Properties = settings(info)
	if options.Upstream != "" {
		path, version, found := strings.Cut(options.Upstream, "@")
		if !found || path == "" || version == "" {
			return nil, fmt.Errorf("upstream %q: not MODULE@VERSION", options.Upstream)
		}
		ancestor := module(path, version)
		ancestor.BOMRef = "" // nothing refers to it, and references must be unique
		program.Pedigree = &cdx.Pedigree{Ancestors: &[]cdx.Component{ancestor}}
	}

	modules, err := sources(ctx, options.Source, info)
	if err != nil {
		return nil, err
	}
	program.Licenses, err = modules.collect(&info.Main, filepath.Join(options.Texts, info.Main.Path+"@"+options.Version))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var components []cdx.Component
	for _, dependency := range info.Deps {
		component, err := resolve(dependency, options.Workspace)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		component.Licenses, err = modules.collect(dependency, filepath.Join(options.Texts, component.Name+"@"+component.Version))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		components = append(components, component)
	}
	standard := module("std", info.GoVersion)
	standard.Licenses = expression("BSD-3-Clause")
	foreign := []cdx.Component{standard}
	for _, library := range options.Libraries {
		purl := packageurl.NewPackageURL(packageurl.TypeGeneric, "", library.Name, library.Version, nil, "").ToString()
		foreign = append(foreign, cdx.Component{
			BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: library.Name, Version: library.Version, PackageURL: purl,
			Licenses: expression(library.License),
		})
	}
	for _, component := range foreign {
		folder := filepath.Join(options.Texts, component.Name+"@"+component.Version)
		if entries, err := os.ReadDir(folder); err != nil || len(entries) == 0 {
			return nil, fmt.Errorf("no license text of %s %s in %s", component.Name, component.Version, folder)
		}
	}
	components = append(components, foreign...)
	program.Licenses = united(append(components, program))
	sort.Slice(components, func(i, j int) bool { return components[i].BOMRef < components[j].BOMRef })
	references := make([]string, 0, len(components))
	for i := range components {
		references = append(references, components[i].BOMRef)
	}

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &program}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: program.BOMRef, Dependencies: &references}}
	return bom, nil
}

// Write writes the document as JSON of CycloneDX 1.6.
func Write(w io.Writer, bom *cdx.BOM) error {
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}

// resolve returns the component of a dependency as it was built: for a replaced
// module, its replacement.
func resolve(dependency *debug.Module, workspace string) (cdx.Component, error) {
	if dependency.Replace != nil {
		dependency = dependency.Replace
	}
	version := dependency.Version
	if version == "" || version == "(devel)" {
		if workspace == "" {
			return cdx.Component{}, fmt.Errorf("module %s has no version: name that of the workspace", dependency.Path)
		}
		version = workspace
	}
	return module(dependency.Path, version), nil
}

// module returns a component with the package URL of a Go module, following
// https://github.com/package-url/purl-spec: the last part of the path is the name,
// and the whole path is in lower case.
func module(path, version string) cdx.Component {
	namespace, name := "", strings.ToLower(path)
	if i := strings.LastIndex(name, "/"); i >= 0 {
		namespace, name = name[:i], name[i+1:]
	}
	purl := packageurl.NewPackageURL(packageurl.TypeGolang, namespace, name, strings.TrimPrefix(version, "go"), nil, "").ToString()
	return cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}

// settings returns the build settings that characterize the binary: platform, cgo
// and tags.
func settings(info *debug.BuildInfo) *[]cdx.Property {
	properties := []cdx.Property{{Name: "go:version", Value: info.GoVersion}}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "GOOS", "GOARCH", "CGO_ENABLED", "-tags":
			properties = append(properties, cdx.Property{Name: "go:build:" + setting.Key, Value: setting.Value})
		}
	}
	return &properties
}

// sum returns the file's SHA-256 in hexadecimal digits.
func sum(file string) (digest string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
