package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	podmanref "go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// maxReference is how many characters a reference may have, as in the schema of
// ImageManifest: a repository has at most 255, a tag 128, a digest less than 256.
const maxReference = 1024

// References returns, in the order in which the container runtime tries them, the
// full names (docker.io/library/busybox:latest, host/repository@sha256:...) that
// an image in a pod may mean: by the aliases of short names and the registries to
// search that registries.conf names, in docker.io if it names none. Of a tag and
// a digest the digest stays. Every error is an *Error.
func (c *Client) References(image string) ([]string, error) {
	names, err := c.conf.qualify(image)
	if err != nil {
		return nil, invalidReference(image, err)
	}
	var found []string
	for _, name := range names {
		named, err := parse(name)
		if err != nil {
			return nil, invalidReference(image, err)
		}
		full := named.String()
		if len(full) > maxReference { // by what was added to it
			return nil, invalidReference(image, fmt.Errorf("%d characters in full, at most %d are possible", len(full), maxReference))
		}
		if !slices.Contains(found, full) {
			found = append(found, full)
		}
	}
	return found, nil
}

// parse returns a name with either a tag or a digest.
func parse(name string) (reference.Named, error) {
	if len(name) > maxReference {
		return nil, fmt.Errorf("%d characters, at most %d are possible", len(name), maxReference)
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, err
	}
	if digested, ok := named.(reference.Digested); ok {
		if err := validDigest(digested.Digest()); err != nil {
			return nil, err
		}
		return reference.WithDigest(reference.TrimNamed(named), digested.Digest())
	}
	return reference.TagNameOnly(named), nil
}

func validDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return errors.New("no valid digest")
	}
	if d.Algorithm() != digest.SHA256 && d.Algorithm() != digest.SHA512 {
		return errors.New("digest is neither sha256 nor sha512")
	}
	return nil
}

func invalidReference(image string, err error) *Error {
	return &Error{Reason: v1alpha1.ReasonInvalidReference, Reference: image, Err: text(nil, "invalid image name: %s", err)}
}

// sources returns where a reference can be had, in the order to try.
func (c *Client) sources(name string) ([]*source, error) {
	named, err := parse(name)
	if err != nil {
		return nil, invalidReference(name, err)
	}
	return c.conf.sources(named)
}

// registriesConf is a containers-registries.conf(5) file. The nil pointer is the
// absence of one.
type registriesConf struct {
	system  *types.SystemContext
	aliases map[string]string
	search  []string
}

func loadRegistriesConf(path string) (*registriesConf, error) {
	if path == "" {
		return nil, nil
	}
	// Both paths are given: nothing of the host's own configuration counts.
	system := &types.SystemContext{SystemRegistriesConfPath: path, SystemRegistriesConfDirPath: path + ".d"}
	sysregistriesv2.InvalidateCache()
	search, err := sysregistriesv2.UnqualifiedSearchRegistries(system)
	if err != nil {
		return nil, err
	}
	// The library checked them; it reads them out only with a lock file that it
	// writes below /var/cache.
	aliases, err := loadAliases(path)
	if err != nil {
		return nil, err
	}
	return &registriesConf{system: system, aliases: aliases, search: search}, nil
}

// loadAliases returns the short names of registries.conf, of which the drop-ins
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

// qualify returns the names with registry that a name may mean.
func (r *registriesConf) qualify(image string) ([]string, error) {
	if len(image) > maxReference {
		return nil, fmt.Errorf("%d characters, at most %d are possible", len(image), maxReference)
	}
	parsed, err := reference.Parse(image)
	if err != nil {
		return nil, err
	}
	named, ok := parsed.(reference.Named)
	if !ok {
		return nil, errors.New("a digest without repository")
	}
	domain, _, slash := strings.Cut(named.Name(), "/")
	if r == nil || slash && (domain == "localhost" || strings.ContainsAny(domain, ".:")) {
		return []string{image}, nil
	}
	suffix := strings.TrimPrefix(image, named.Name())
	// An alias may be empty, to take one back that another file sets.
	if repository := r.aliases[named.Name()]; repository != "" {
		return []string{repository + suffix}, nil
	}
	if len(r.search) == 0 {
		return []string{image}, nil
	}
	names := make([]string, len(r.search))
	for i, registry := range r.search {
		names[i] = registry + "/" + image
	}
	return names, nil
}

// sources returns where a reference can be had, in the order to try.
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
	// The library has a copy of the reference package that its types belong to.
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
		rewritten, err := parse(endpoint.Reference.String())
		if err != nil {
			return nil, invalidReference(endpoint.Reference.String(), err)
		}
		sources[i] = newSource(rewritten)
		sources[i].insecure = endpoint.Endpoint.Insecure
		// The library takes host:5000 for something below the prefix host, and a
		// location is empty where the prefix is a wildcard: both leave the registry
		// to the reference's author.
		listed, _, _ := strings.Cut(endpoint.Endpoint.Location, "/")
		sources[i].listed = listed == sources[i].domain
	}
	return sources, nil
}
