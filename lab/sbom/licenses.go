package sbom

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licenseclassifier/v2/assets"
)

// maxText is the size of a license text in bytes that is taken. The longest of all
// modules that we link has 40 KiB.
const maxText = 1 << 20

var (
	// licenseName matches files that contain licenses, and legalName all that have to
	// go with a binary.
	licenseName = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying)`)
	legalName   = regexp.MustCompile(licenseName.String() + `|(?i)^(copyright|notice|patents)`)
	// Source code, and the license of documentation, which is not linked.
	notLegalName = regexp.MustCompile(`(?i)\.(go|docs)$`)
)

// source is what go list has of a module that a program is compiled from.
type source struct {
	Path, Version string
	Replace       *source
	// Folders of the packages that are linked, by their path in the module.
	packages map[string]string
}

// tree is the source of a program: its modules, by their paths.
type tree struct {
	folder  string
	modules map[string]*source
}

// sources asks Go for the source of the binary, whose main package was compiled in the
// folder.
func sources(ctx context.Context, folder string, info *debug.BuildInfo) (*tree, error) {
	command := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,ImportPath,Module")
	command.Dir = folder
	command.Env = command.Environ()
	for _, setting := range info.Settings {
		switch setting.Key {
		case "GOOS", "GOARCH", "CGO_ENABLED":
			command.Env = append(command.Env, setting.Key+"="+setting.Value)
		case "-tags":
			command.Args = append(command.Args, "-tags", setting.Value)
		}
	}
	command.Args = append(command.Args, "--", info.Path)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%q in %s: %w: %s", command.Args, folder, err, bytes.TrimSpace(stderr.Bytes()))
	}
	modules := map[string]*source{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var found struct {
			Dir, ImportPath string
			Module          *source
		}
		if err := decoder.Decode(&found); errors.Is(err, io.EOF) {
			return &tree{folder, modules}, nil
		} else if err != nil {
			return nil, fmt.Errorf("what go list says: %w", err)
		}
		if found.Module == nil {
			continue // the standard library
		}
		module, known := modules[found.Module.Path]
		if !known {
			module = found.Module
			module.packages = map[string]string{}
			modules[module.Path] = module
		}
		name := path.Clean(strings.TrimPrefix(strings.TrimPrefix(found.ImportPath, module.Path), "/"))
		module.packages[name] = found.Dir
	}
}

// collect copies the license texts of a module in the binary to the folder.
func (t *tree) collect(module *debug.Module, to string) (*cdx.Licenses, error) {
	from := t.modules[module.Path]
	if from == nil || !from.is(module) {
		return nil, fmt.Errorf("module %s %s is in the binary, but not in what %s compiles", module.Path, module.Version, t.folder)
	}
	licenses, err := from.copyTexts(to)
	if err != nil {
		return nil, fmt.Errorf("module %s %s: %w", module.Path, module.Version, err)
	}
	return expression(licenses...), nil
}

// is reports whether the module is the one that Go recorded in a binary.
func (s *source) is(module *debug.Module) bool {
	if (s.Replace == nil) != (module.Replace == nil) {
		return false
	}
	return s.Path == module.Path && s.Version == strings.TrimPrefix(module.Version, "(devel)") &&
		(s.Replace == nil || s.Replace.is(module.Replace))
}

// copyTexts copies the texts from the folders of linked packages, and from those above
// them in the module, and returns what licenses they are.
func (s *source) copyTexts(to string) ([]string, error) {
	folders := map[string]string{}
	for name, folder := range s.packages {
		for ; name != "."; name, folder = path.Dir(name), filepath.Dir(folder) {
			folders[name] = folder
		}
		folders["."] = folder
	}
	var licenses []string
	for name, folder := range folders {
		found, err := copyFolder(folder, filepath.Join(to, name))
		if err != nil {
			return nil, err
		}
		licenses = append(licenses, found...)
	}
	if len(licenses) == 0 {
		return nil, errors.New("it has no license text")
	}
	return licenses, nil
}

// copyFolder copies the texts of one folder, and returns what licenses they are.
func copyFolder(from, to string) ([]string, error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	var licenses []string
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || !legalName.MatchString(name) || notLegalName.MatchString(name) {
			continue
		}
		file := filepath.Join(from, name)
		text, err := readText(file, entry)
		if err != nil {
			return nil, err
		}
		found, err := classify(text)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 && licenseName.MatchString(name) {
			return nil, fmt.Errorf("%s: of no known license", file)
		}
		licenses = append(licenses, found...)
		if err := os.MkdirAll(to, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(to, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	return licenses, nil
}

func readText(file string, entry fs.DirEntry) ([]byte, error) {
	if !entry.Type().IsRegular() {
		return nil, fmt.Errorf("%s: no regular file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err == nil && len(text) > maxText {
		err = fmt.Errorf("%s: more than %d bytes", file, maxText)
	}
	return text, err
}

var loadClassifier = sync.OnceValues(assets.DefaultClassifier)

// classify returns the SPDX identifiers of the licenses in a text.
func classify(text []byte) ([]string, error) {
	known, err := loadClassifier()
	if err != nil {
		return nil, err
	}
	var licenses []string
	for _, match := range known.Match(text).Matches {
		// Some modules have only the header that Apache proposes for source files.
		if match.MatchType == "License" || match.MatchType == "Header" {
			licenses = append(licenses, match.Name)
		}
	}
	return licenses, nil
}

// expression returns an SPDX expression that demands each of the licenses.
func expression(licenses ...string) *cdx.Licenses {
	slices.Sort(licenses)
	return &cdx.Licenses{{Expression: strings.Join(slices.Compact(licenses), " AND ")}}
}

// united returns the expression for a binary with these components.
func united(components []cdx.Component) *cdx.Licenses {
	var licenses []string
	for _, component := range components {
		licenses = append(licenses, strings.Split((*component.Licenses)[0].Expression, " AND ")...)
	}
	return expression(licenses...)
}
