package imageref

import (
	"slices"
	"strings"

	"k8s.io/utils/lru"
)

// Table turns the names in pods into the canonical names that nodes may report
// for them.
type Table struct {
	short    *ShortNames
	mirrors  []mirror
	resolved *lru.Cache
}

type mirror struct {
	prefix    string
	locations []string
}

// cached is how many names of pods a Table remembers: parsing one costs
// microseconds, and all pods of a workload have the same names.
const cached = 4096

// NewTable returns a Table that applies the rules for short names. The rules must
// not change afterwards.
func NewTable(short *ShortNames) *Table {
	return &Table{short: short, resolved: lru.New(cached)}
}

// AddMirror adds locations below which images below prefix may also be found.
func (t *Table) AddMirror(prefix string, locations ...string) {
	t.mirrors = append(t.mirrors, mirror{prefix, locations})
}

// Candidates returns the canonical names that an image in a pod may have on a
// node, the most likely first: each reference that it may stand for, followed by
// those of the mirrors in the order in which they were added. It returns none if
// the name is not valid, which the kubelet reports. The result is shared and
// must not be changed.
func (t *Table) Candidates(image string) []Canonical {
	if len(image) > MaxLength {
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
	references, err := t.short.References(image)
	if err != nil {
		return nil
	}
	var found []Canonical
	add := func(name Canonical) {
		if !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	for _, named := range references {
		add(canonical(named))
		// Mirrors are written with the whole name, docker.io/library/busybox.
		repository, suffix := named.Name(), strings.TrimPrefix(named.String(), named.Name())
		for _, m := range t.mirrors {
			rest, ok := strings.CutPrefix(repository, m.prefix)
			if !ok || rest != "" && rest[0] != '/' {
				continue
			}
			for _, location := range m.locations {
				if name, err := Parse(location + rest + suffix); err == nil {
					add(name)
				}
			}
		}
	}
	return found
}
