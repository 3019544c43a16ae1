// Command krew does what krew does with a plugin's manifest: it checks the rules that krew
// documents (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/), and installs the
// plugin of this machine from an archive. krew itself is not available to the tests.
package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

// manifest is what a plugin's manifest has.
type manifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Caveats          string     `json:"caveats"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
	Files  []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"files"`
}

var (
	pluginName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	sha        = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// check returns the rule that a manifest in a file of that name breaks.
func check(file string, m *manifest) error {
	switch s := &m.Spec; {
	case m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin":
		return fmt.Errorf("it is a %s of %s", m.Kind, m.APIVersion)
	case !pluginName.MatchString(m.Metadata.Name) || strings.HasPrefix(m.Metadata.Name, "kubectl-"):
		return fmt.Errorf("the name %q: lower-case letters, digits and dashes, without kubectl-", m.Metadata.Name)
	case filepath.Base(file) != m.Metadata.Name+".yaml":
		return fmt.Errorf("the file of plugin %s is called %s", m.Metadata.Name, filepath.Base(file))
	case s.ShortDescription == "" || strings.Contains(s.ShortDescription, "\n") || strings.HasSuffix(s.ShortDescription, ".") || len(s.ShortDescription) > 60:
		return fmt.Errorf("the short description %q: one short line without a full stop", s.ShortDescription)
	case s.Description == "" || s.Homepage == "":
		return errors.New("no description or no homepage")
	case len(s.Platforms) == 0:
		return errors.New("no platforms")
	}
	if _, err := version.ParseSemantic(m.Spec.Version); err != nil || !strings.HasPrefix(m.Spec.Version, "v") {
		return fmt.Errorf("the version %q: a semantic version that begins with v", m.Spec.Version)
	}
	for _, p := range m.Spec.Platforms {
		if err := checkPlatform(&p); err != nil {
			return fmt.Errorf("platform %v: %w", p.Selector.MatchLabels, err)
		}
	}
	return nil
}

func checkPlatform(p *platform) error {
	u, err := url.Parse(p.URI)
	switch {
	case p.Selector.MatchLabels["os"] == "" || p.Selector.MatchLabels["arch"] == "":
		return errors.New("no os or no arch")
	case err != nil || u.Scheme != "https" || !strings.HasSuffix(u.Path, ".tar.gz") && !strings.HasSuffix(u.Path, ".zip"):
		return fmt.Errorf("the uri %q: https, of a .tar.gz or a .zip", p.URI)
	case !sha.MatchString(p.SHA256):
		return fmt.Errorf("the checksum %q", p.SHA256)
	case p.Bin == "" || !filepath.IsLocal(p.Bin):
		return fmt.Errorf("the program %q", p.Bin)
	case (p.Selector.MatchLabels["os"] == "windows") != strings.HasSuffix(p.Bin, ".exe"):
		return fmt.Errorf("the program %q: .exe on windows and nowhere else", p.Bin)
	case len(p.Files) == 0:
		return errors.New("no files")
	}
	license := false
	for _, f := range p.Files {
		if !filepath.IsLocal(f.From) || !filepath.IsLocal(f.To) && f.To != "." {
			return fmt.Errorf("the file %q to %q leaves the folder", f.From, f.To)
		}
		license = license || f.From == "LICENSE"
	}
	if !license {
		return errors.New("its LICENSE is not among the files")
	}
	return nil
}

// install installs the plugin of this machine below folder: the files in store, and a link to the
// program in bin. All archives have to be those of the checksums.
func install(m *manifest, archives, folder string) error {
	installed := false
	for _, p := range m.Spec.Platforms {
		u, err := url.Parse(p.URI)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(archives, path.Base(u.Path)))
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != p.SHA256 {
			return fmt.Errorf("%s has another checksum than in the manifest", path.Base(u.Path))
		}
		store := filepath.Join(folder, "store", p.Selector.MatchLabels["os"]+"-"+p.Selector.MatchLabels["arch"])
		if err := unpack(filepath.Join(archives, path.Base(u.Path)), store, &p); err != nil {
			return fmt.Errorf("%s: %w", path.Base(u.Path), err)
		}
		if p.Selector.MatchLabels["os"] != runtime.GOOS || p.Selector.MatchLabels["arch"] != runtime.GOARCH {
			continue
		}
		bin := filepath.Join(folder, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join(store, p.Bin), filepath.Join(bin, "kubectl-"+strings.ReplaceAll(m.Metadata.Name, "-", "_"))); err != nil {
			return err
		}
		installed = true
	}
	if !installed {
		return fmt.Errorf("nothing for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	return nil
}

// unpack unpacks the files of a platform from an archive. All of them, and the program, have to
// be there.
func unpack(archive, store string, p *platform) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	zipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	wanted := map[string]string{}
	for _, f := range p.Files {
		wanted[path.Clean(f.From)] = filepath.Join(f.To, path.Base(f.From))
	}
	for reader := tar.NewReader(zipped); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		to, ok := wanted[path.Clean(header.Name)]
		if !ok || header.Typeflag != tar.TypeReg {
			continue
		}
		delete(wanted, path.Clean(header.Name))
		data, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(store, to)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(store, to), data, header.FileInfo().Mode()); err != nil {
			return err
		}
	}
	for from := range wanted {
		return fmt.Errorf("there is no %s in it", from)
	}
	info, err := os.Stat(filepath.Join(store, p.Bin))
	if err == nil && info.Mode()&0o111 == 0 {
		err = fmt.Errorf("%s cannot be executed", p.Bin)
	}
	return err
}

func run() error {
	file := flag.String("manifest", "", "manifest of the plugin")
	archives := flag.String("archives", "", "folder with the archives that it names")
	folder := flag.String("install", "", "folder to install to")
	flag.Parse()
	text, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	m := &manifest{}
	if err := yaml.UnmarshalStrict(text, m); err != nil {
		return err
	}
	if err := check(*file, m); err != nil {
		return err
	}
	return install(m, *archives, *folder)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
