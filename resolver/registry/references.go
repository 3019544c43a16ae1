package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/distribution/reference"
	podmanref "go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

// References returns, in the order in which the container runtime tries them,
// the full names (docker.io/library/busybox:latest, host/repository@sha256:...)
// that an image in a pod may mean: by the short-name aliases and the registries
// to search in registries.conf, or in docker.io if it names none. If an image
// has both a tag and a digest, only the digest is kept. Every error is an
// *Error.
func (c *Client) References(image string) ([]string, error) {
	references, err := c.conf.shortNames().References(image)
	if err != nil {
		return nil, invalidReference(image, err)
	}
	found := make([]string, len(references))
	for i, reference := range references {
		found[i] = reference.String()
		if n := len(found[i]); n > imageref.MaxLength { // because of what was added to it
			return nil, invalidReference(image, fmt.Errorf("%d characters in full, at most %d are possible", n, imageref.MaxLength))
		}
	}
	return found, nil
}

func invalidReference(image string, err error) *Error {
	return &Error{Reason: v1alpha1.ReasonInvalidReference, Reference: image, Err: text(nil, "invalid image name: %s", err)}
}

// sources returns where a reference can be fetched, in the order to try.
func (c *Client) sources(name string) ([]*source, error) {
	named, err := imageref.Full(name)
	if err != nil {
		return nil, invalidReference(name, err)
	}
	return c.conf.sources(named)
}

// registriesConf is a containers-registries.conf(5) file. A nil pointer means
// that there is none.
type registriesConf struct {
	system *types.SystemContext
	short  imageref.ShortNames
}

// shortNames returns the file's rules for names without a registry.
func (r *registriesConf) shortNames() *imageref.ShortNames {
	if r == nil {
		return &imageref.ShortNames{}
	}
	return &r.short
}

func loadRegistriesConf(path string) (*registriesConf, error) {
	if path == "" {
		return nil, nil
	}
	// Both paths are given, so that the host's own configuration is not used.
	system := &types.SystemContext{SystemRegistriesConfPath: path, SystemRegistriesConfDirPath: path + ".d"}
	sysregistriesv2.InvalidateCache()
	search, err := sysregistriesv2.UnqualifiedSearchRegistries(system)
	if err != nil {
		return nil, err
	}
	// The library has checked the aliases, but it returns them only with a lock
	// file that it writes below /var/cache.
	aliases, err := loadAliases(path)
	if err != nil {
		return nil, err
	}
	return &registriesConf{system: system, short: imageref.ShortNames{Aliases: aliases, Search: search}}, nil
}

// loadAliases returns the short names of registries.conf. Those of drop-ins
// replace those of the file.
func loadAliases(path string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(path+".d", "*.conf"))
	if err != nil {
		return nil, err
	}
	aliases := map[string]string{}
	for _, file := range append([]string{path}, files...) {
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue
		}
		var content struct {
			Aliases map[string]string `toml:"aliases"`
		}
		if _, err := toml.DecodeFile(file, &content); err != nil {
			return nil, fmt.Errorf("reading short-name aliases of %s: %w", file, err)
		}
		for name, repository := range content.Aliases {
			aliases[name] = repository
		}
	}
	return aliases, nil
}

// sources returns where a reference can be fetched, in the order to try.
func (r *registriesConf) sources(named reference.Named) ([]*source, error) {
	own := newSource(named)
	if r == nil {
		return []*source{own}, nil
	}
	registry, err := sysregistriesv2.FindRegistry(r.system, named.String())
	if err != nil {
		return nil, invalidReference(named.String(), err)
	}
	if registry == nil {
		return []*source{own}, nil
	}
	if registry.Blocked {
		return nil, &Error{Reason: v1alpha1.ReasonDenied, Err: text(nil, "%s is blocked in %s", registry.Prefix, r.system.SystemRegistriesConfPath)}
	}
	// The library has its own copy of the reference package, with its own types.
	ref, err := podmanref.ParseNormalizedNamed(named.String())
	if err != nil {
		return nil, invalidReference(named.String(), err)
	}
	endpoints, err := registry.PullSourcesFromReference(ref)
	if err != nil {
		return nil, invalidReference(named.String(), err)
	}
	sources := make([]*source, len(endpoints))
	for i, endpoint := range endpoints {
		rewritten, err := imageref.Full(endpoint.Reference.String())
		if err != nil {
			return nil, invalidReference(endpoint.Reference.String(), err)
		}
		sources[i] = newSource(rewritten)
		sources[i].insecure = endpoint.Endpoint.Insecure
		// The library treats host:5000 as something below the prefix host, and a
		// location is empty if the prefix is a wildcard. In both cases, the author of
		// the reference chooses the registry.
		listed, _, _ := strings.Cut(endpoint.Endpoint.Location, "/")
		sources[i].listed = listed == sources[i].domain
	}
	return sources, nil
}
