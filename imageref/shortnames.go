package imageref

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// ShortNames are the rules by which nodes complete names without a registry, as in
// containers-registries.conf(5). Without any rules, such a name belongs to
// docker.io.
type ShortNames struct {
	// Aliases maps short names to repositories. A short name may have several
	// parts ("opensuse/tumbleweed"). An empty repository is no alias.
	Aliases map[string]string
	// Search lists the registries to search for a name without alias, in this
	// order.
	Search []string
}

// References returns the references that an image name in a pod may stand for, in
// the order in which a container runtime tries them. Each has a registry and
// either a tag or a digest (see Full). It is an error if the name is not valid, or
// not valid in one of the registries to search, because container runtimes then
// refuse it.
func (s *ShortNames) References(image string) ([]reference.Named, error) {
	names, err := s.Qualify(image)
	if err != nil {
		return nil, err
	}
	var found []reference.Named
	for _, name := range names {
		full, err := Full(name)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(found, func(known reference.Named) bool { return known.String() == full.String() }) {
			found = append(found, full)
		}
	}
	return found, nil
}

// Qualify returns a name completed with each registry it may belong to. A name
// that has a registry, or for which there is no rule, is returned as it is.
func (s *ShortNames) Qualify(image string) ([]string, error) {
	named, err := parseAsWritten(image)
	if err != nil {
		return nil, err
	}
	if hasRegistry(named) {
		return []string{image}, nil
	}
	if repository := s.Aliases[named.Name()]; repository != "" {
		return []string{repository + strings.TrimPrefix(image, named.Name())}, nil
	}
	if len(s.Search) == 0 {
		return []string{image}, nil
	}
	names := make([]string, len(s.Search))
	for i, registry := range s.Search {
		names[i] = registry + "/" + image
	}
	return names, nil
}

// parseAsWritten parses a name and adds nothing to it.
func parseAsWritten(name string) (reference.Named, error) {
	if err := checkLength(name); err != nil {
		return nil, err
	}
	parsed, err := reference.Parse(name)
	if err != nil {
		return nil, err
	}
	named, ok := parsed.(reference.Named)
	if !ok {
		return nil, errors.New("a digest without repository")
	}
	return named, nil
}

// hasRegistry reports whether a name begins with the host of a registry. Container
// runtimes decide so if the name has several parts and the first one contains a
// dot or a colon, or is localhost.
func hasRegistry(named reference.Named) bool {
	host, _, several := strings.Cut(named.Name(), "/")
	return several && (host == "localhost" || strings.ContainsAny(host, ".:"))
}

// ValidateAlias returns why a name cannot have an alias; nil if it can.
func ValidateAlias(name string) error {
	named, err := parseAsWritten(name)
	switch {
	case err != nil:
		return err
	case !reference.IsNameOnly(named):
		return fmt.Errorf("%s has a tag or a digest", name)
	case hasRegistry(named):
		return fmt.Errorf("%s has a registry", name)
	}
	return nil
}
