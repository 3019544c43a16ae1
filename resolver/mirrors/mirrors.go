// Package mirrors has the mirrors of registries that objects of the cluster state (ImageDigestMirrorSet,
// ImageTagMirrorSet), as rules of registries.conf.
package mirrors

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
	// MaxSources bounds the sources that have mirrors in the cluster, and MaxEach the
	// mirrors of each.
	MaxSources = 1000
	MaxEach    = 32
)

// Entry has the mirrors of a source, as an object of the cluster states them.
type Entry struct {
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

// Rules are rules of registries.conf, one for each source.
type Rules []sysregistriesv2.Registry

// New returns the rules for entries, and what is wrong with those that are left out.
func New(entries []Entry) (Rules, []error) {
	var errs []error
	var rules Rules
	for _, m := range entries {
		rule, wrong := ruleOf(&m)
		errs = append(errs, wrong...)
		if rule == nil {
			continue
		}
		at := slices.IndexFunc(rules, func(r sysregistriesv2.Registry) bool { return r.Prefix == rule.Prefix })
		switch {
		case at < 0 && len(rules) == MaxSources:
			errs = append(errs, fmt.Errorf("%s: more than %d sources have mirrors", m.Source, MaxSources))
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
			case n <= MaxEach:
				kept = append(kept, mirror)
			case n == MaxEach+1:
				errs = append(errs, fmt.Errorf("%s: more than %d mirrors for tags or for digests", rules[i].Prefix, MaxEach))
			}
		}
		rules[i].Mirrors = kept
	}
	return rules, errs
}

// ruleOf returns mirrors as a rule of registries.conf, in the way in which OpenShift writes
// them there, without those that are not valid; nil if the source is not.
func ruleOf(m *Entry) (*sysregistriesv2.Registry, []error) {
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

// Find returns the rule for a reference: that for the longest part of its name; nil if there is none.
func (r Rules) Find(named reference.Named) *sysregistriesv2.Registry {
	var found *sysregistriesv2.Registry
	for i := range r {
		if inSource(named, r[i].Prefix) && (found == nil || len(r[i].Prefix) > len(found.Prefix)) {
			found = &r[i]
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
