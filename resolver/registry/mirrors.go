package registry

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"

	"github.com/layer-locality/layer-locality/resolver/policy"
)

const (
	// maxMirrored bounds the sources that have mirrors in the cluster, and maxMirrors the
	// mirrors of each.
	maxMirrored = 1000
	maxMirrors  = 32
)

// Mirrors are the mirrors of a source, as an object of the cluster states them
// (ImageDigestMirrorSet, ImageTagMirrorSet).
type Mirrors struct {
	// Source is a registry, a repository, a part of its path, or *.domain.
	Source string
	// Mirrors take the place of Source in a name, in the order to try.
	Mirrors []string
	// Tags is set if the mirrors are for tags; otherwise they are for digests.
	Tags bool
	// Only is set if the source itself is not asked.
	Only bool
}

var repositoryName = regexp.MustCompile("^(?:" + reference.NameRegexp.String() + ")$")

// checkRepository returns an error if a text is no registry or repository.
func checkRepository(text string) error {
	host, _, deep := strings.Cut(text, "/")
	if err := policy.CheckHost(host); err != nil {
		return err
	}
	if len(text) > 512 || deep && !repositoryName.MatchString(text) {
		return fmt.Errorf("%.100q is no repository", text)
	}
	return nil
}

// SetMirrors replaces the mirrors that the cluster states. Of the rules of registries.conf
// and these, that for the longest part of a name counts; of two for the same part, these. It
// returns what is wrong with those that are left out.
func (c *Client) SetMirrors(all []Mirrors) []error {
	var errs []error
	var rules []sysregistriesv2.Registry
	for _, m := range all {
		rule, wrong := ruleOf(&m)
		errs = append(errs, wrong...)
		if rule == nil {
			continue
		}
		at := slices.IndexFunc(rules, func(r sysregistriesv2.Registry) bool { return r.Prefix == rule.Prefix })
		switch {
		case at < 0 && len(rules) == maxMirrored:
			errs = append(errs, fmt.Errorf("%s: more than %d sources have mirrors", m.Source, maxMirrored))
		case at < 0:
			rules = append(rules, *rule)
		default:
			rules[at].Mirrors = append(rules[at].Mirrors, rule.Mirrors...)
			rules[at].Blocked = rules[at].Blocked || rule.Blocked
		}
	}
	for i := range rules {
		var kept []sysregistriesv2.Endpoint
		count := map[string]int{}
		for _, mirror := range rules[i].Mirrors {
			if slices.Contains(kept, mirror) {
				continue
			}
			count[mirror.PullFromMirror]++
			switch n := count[mirror.PullFromMirror]; {
			case n <= maxMirrors:
				kept = append(kept, mirror)
			case n == maxMirrors+1:
				errs = append(errs, fmt.Errorf("%s: more than %d mirrors for tags or for digests", rules[i].Prefix, maxMirrors))
			}
		}
		rules[i].Mirrors = kept
	}
	c.mirrored.Store(&rules)
	return errs
}

// ruleOf returns mirrors as a rule of registries.conf, in the way in which OpenShift writes
// them there, without those that are not valid; nil if the source is not.
func ruleOf(m *Mirrors) (*sysregistriesv2.Registry, []error) {
	var errs []error
	rule := &sysregistriesv2.Registry{Prefix: m.Source, Blocked: m.Only}
	domain, wild := strings.CutPrefix(m.Source, "*.")
	if err := checkRepository(domain); err != nil || wild && strings.ContainsAny(domain, "/:") {
		return nil, []error{fmt.Errorf("source of mirrors %.100q: expected a registry, a repository, or *.domain", m.Source)}
	}
	if !wild {
		rule.Location = m.Source
	}
	use := sysregistriesv2.MirrorByDigestOnly
	if m.Tags {
		use = sysregistriesv2.MirrorByTagOnly
	}
	for _, mirror := range m.Mirrors {
		if err := checkRepository(mirror); err != nil {
			errs = append(errs, fmt.Errorf("mirror of %s: %w", m.Source, err))
			continue
		}
		rule.Mirrors = append(rule.Mirrors, sysregistriesv2.Endpoint{Location: mirror, PullFromMirror: use})
	}
	return rule, errs
}

// mirroredBy returns the cluster's rule for a reference; nil if there is none.
func (c *Client) mirroredBy(named reference.Named) *sysregistriesv2.Registry {
	rules := c.mirrored.Load()
	if rules == nil {
		return nil
	}
	var found *sysregistriesv2.Registry
	for i := range *rules {
		rule := &(*rules)[i]
		if inSource(named, rule.Prefix) && (found == nil || len(rule.Prefix) > len(found.Prefix)) {
			found = rule
		}
	}
	return found
}

// inSource reports whether a reference is in a source of mirrors.
func inSource(named reference.Named, source string) bool {
	if suffix, wild := strings.CutPrefix(source, "*"); wild {
		host, _, _ := strings.Cut(reference.Domain(named), ":")
		return strings.HasSuffix(host, suffix)
	}
	return named.Name() == source || strings.HasPrefix(named.Name(), source+"/")
}
