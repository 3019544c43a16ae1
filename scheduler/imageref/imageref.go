// Package imageref makes the names of images comparable. A pod says "busybox",
// the node that holds it says "docker.io/library/busybox:latest" and
// "docker.io/library/busybox@sha256:...": all have to meet.
package imageref

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"k8s.io/utils/lru"
)

// Canonical is a name that can be compared: "docker.io/library/busybox:latest"
// for a tag, and for a digest the digest alone ("sha256:..."), because it names
// the same content in whatever repository it is.
type Canonical string

// maxLength bounds what is parsed: a repository has at most 255 characters, a
// tag 128, a digest of any registered algorithm less than 256.
const maxLength = 1024

// Parse returns the canonical form of a name that has no short-name table to
// go through, such as those in NodeStatus. A name without registry is one of
// docker.io, a name without tag and digest has the tag latest, and of a tag and
// a digest the digest counts, as for every container runtime.
func Parse(name string) (Canonical, error) {
	if len(name) > maxLength {
		return "", fmt.Errorf("image name of %d characters, at most %d are possible", len(name), maxLength)
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", fmt.Errorf("image name %q: %w", name, err)
	}
	return canonical(named), nil
}

func canonical(named reference.Named) Canonical {
	if digested, ok := named.(reference.Digested); ok {
		return Canonical(digested.Digest().String())
	}
	return Canonical(reference.TagNameOnly(named).String())
}

// Table turns the names in pods into the canonical names that nodes may report
// for them.
type Table struct {
	short    map[string]string
	search   []string
	mirrors  []mirror
	resolved *lru.Cache
}

type mirror struct {
	prefix    string
	locations []string
}

// cached is how many names of pods a Table remembers: parsing one costs
// microseconds, and the pods of a workload all bring the same.
const cached = 4096

// NewTable returns a Table with the aliases of short names (name to
// repository), the registries to search for other short names, and for
// prefixes of repositories the locations that may replace them, in the order
// in which mirrors were added.
func NewTable(short map[string]string, search []string) *Table {
	return &Table{short: short, search: search, resolved: lru.New(cached)}
}

// AddMirror makes images below prefix also findable below the locations.
func (t *Table) AddMirror(prefix string, locations ...string) {
	t.mirrors = append(t.mirrors, mirror{prefix, locations})
}

// Candidates returns the canonical names that an image in a pod may have on a
// node, the most likely first. There are none if the name is not valid: the
// kubelet will tell the user. The result is shared and must not be changed.
func (t *Table) Candidates(image string) []Canonical {
	if len(image) > maxLength {
		return nil
	}
	if known, ok := t.resolved.Get(image); ok {
		return known.([]Canonical)
	}
	found := t.candidates(image)
	t.resolved.Add(image, found)
	return found
}

func (t *Table) candidates(image string) []Canonical {
	var found []Canonical
	add := func(name string) {
		parsed, err := Parse(name)
		if err != nil {
			return
		}
		for _, known := range found {
			if known == parsed {
				return
			}
		}
		found = append(found, parsed)
	}
	for _, name := range t.qualify(image) {
		add(name)
		// Mirrors are written with the whole name, docker.io/library/busybox.
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			continue
		}
		repository, suffix := named.Name(), strings.TrimPrefix(named.String(), named.Name())
		for _, m := range t.mirrors {
			rest, ok := strings.CutPrefix(repository, m.prefix)
			if !ok || rest != "" && rest[0] != '/' {
				continue
			}
			for _, location := range m.locations {
				add(location + rest + suffix)
			}
		}
	}
	return found
}

// qualify gives a short name its registry; other names it returns as they are.
func (t *Table) qualify(image string) []string {
	first, _, slash := strings.Cut(image, "/")
	if slash && (first == "localhost" || strings.ContainsAny(first, ".:")) {
		return []string{image}
	}
	if !slash {
		end := len(image)
		if i := strings.IndexAny(image, ":@"); i >= 0 {
			end = i
		}
		if repository, ok := t.short[image[:end]]; ok {
			return []string{repository + image[end:]}
		}
	}
	if len(t.search) == 0 {
		return []string{image}
	}
	names := make([]string, len(t.search))
	for i, registry := range t.search {
		names[i] = registry + "/" + image
	}
	return names
}
