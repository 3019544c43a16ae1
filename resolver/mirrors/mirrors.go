// Package mirrors has the mirrors of registries that objects of the cluster state (ImageDigestMirrorSet,
// ImageTagMirrorSet), as rules of registries.conf.
package mirrors

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	podmanref "go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"

	"github.com/layer-locality/layer-locality/resolver/policy"
)

const (
	// MaxSources bounds the sources that have mirrors.
	MaxSources = 1000
	// MaxEach bounds the mirrors of a source, for tags and for digests.
	MaxEach = 32
)

// Entry has the mirrors of a source, as an object of the cluster states them.
type Entry struct {
	// Source is a registry, a repository, a part of its path, *.domain, or * for registries without a rule.
	Source string
	// Mirrors take the place of Source in a name, in the order to try. Without any, the mirrors for * are not those of Source.
	Mirrors []string
	// Insecure are those of them that may be asked by plain HTTP and with any certificate.
	Insecure []string
	// Forms are those of mirrors that containerd asks.
	Forms map[string]Form
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

// Form is how containerd asks a mirror, which it tells the registry that it is asked for.
type Form struct {
	// Path takes the place of /v2, if it is not empty.
	Path     string
	rewrites rewrites
}

// mirror is a mirror with its form; nil unless containerd asks it.
type mirror struct {
	sysregistriesv2.Endpoint
	form *Form
}

// Rule has the mirrors of a source.
type Rule struct {
	Prefix  string
	Blocked bool
	mirrors []mirror
}

// For returns the rule for a reference alone, with the mirrors that are asked for it, and the form of each: nil unless
// containerd asks it.
func (r *Rule) For(named reference.Named) (own *sysregistriesv2.Registry, forms []*Form) {
	own = &sysregistriesv2.Registry{Prefix: named.Name(), Endpoint: sysregistriesv2.Endpoint{Location: named.Name()}, Blocked: r.Blocked}
	use := sysregistriesv2.MirrorByTagOnly
	if _, ok := named.(reference.Digested); ok {
		use = sysregistriesv2.MirrorByDigestOnly
	}
	for _, m := range r.mirrors {
		if m.PullFromMirror != use {
			continue
		}
		below := strings.TrimPrefix(named.Name(), r.Prefix)
		switch {
		case m.form != nil && m.form.rewrites != nil:
			below = path.Clean("/" + m.form.rewrites.apply(reference.Path(named)))
		case strings.HasPrefix(r.Prefix, "*"):
			below = "/" + reference.Path(named)
		}
		// Nodes go on with the next mirror, too, after what is no name.
		at := m.Location + below
		if checkRepository(at) == nil && len(at) <= podmanref.NameTotalLengthMax {
			own.Mirrors, forms = append(own.Mirrors, sysregistriesv2.Endpoint{Location: at, Insecure: m.Insecure}), append(forms, m.form)
		}
	}
	return own, forms
}

// Rules have one for each source.
type Rules struct {
	bySource []Rule
	// anywhere is the rule for registries without another; without a source.
	anywhere *Rule
}

// New returns the rules for entries, and what is wrong with those that are left out.
func New(entries []Entry) (*Rules, []error) {
	var errs []error
	rules := &Rules{}
	for i := range entries {
		rule, wrong := ruleOf(&entries[i])
		errs = append(errs, wrong...)
		if rule == nil {
			continue
		}
		if rule.Prefix == anyRegistry {
			if rules.anywhere != nil {
				rules.anywhere.add(rule)
			} else {
				rules.anywhere = rule
			}
			continue
		}
		at := slices.IndexFunc(rules.bySource, func(r Rule) bool { return r.Prefix == rule.Prefix })
		switch {
		case at < 0 && len(rules.bySource) == MaxSources:
			errs = append(errs, fmt.Errorf("%s: more than %d sources have mirrors", rule.Prefix, MaxSources))
		case at < 0:
			rules.bySource = append(rules.bySource, *rule)
		default:
			rules.bySource[at].add(rule)
		}
	}
	for i := range rules.bySource {
		errs = append(errs, bound(&rules.bySource[i])...)
	}
	if rules.anywhere != nil {
		errs = append(errs, bound(rules.anywhere)...)
	}
	return rules, errs
}

// add adds what another rule for the same source has.
func (r *Rule) add(more *Rule) {
	r.mirrors, r.Blocked = append(r.mirrors, more.mirrors...), r.Blocked || more.Blocked
}

// bound leaves each mirror of a rule once, and no more than MaxEach for tags and for digests.
func bound(rule *Rule) (errs []error) {
	var kept []mirror
	count := map[string]int{}
	for _, m := range rule.mirrors {
		if slices.ContainsFunc(kept, func(other mirror) bool { return other.Endpoint == m.Endpoint }) {
			continue
		}
		count[m.PullFromMirror]++
		switch n := count[m.PullFromMirror]; {
		case n <= MaxEach:
			kept = append(kept, m)
		case n == MaxEach+1:
			errs = append(errs, fmt.Errorf("%s: more than %d mirrors for tags or for digests", rule.Prefix, MaxEach))
		}
	}
	rule.mirrors = kept
	return errs
}

// ruleOf returns mirrors as a rule, without those that are not valid; nil if the source is not.
func ruleOf(m *Entry) (*Rule, []error) {
	var errs []error
	rule := &Rule{Prefix: m.Source, Blocked: m.Only}
	domain, wild := strings.CutPrefix(m.Source, "*.")
	if err := checkRepository(domain); m.Source != anyRegistry && (err != nil || wild && strings.ContainsAny(domain, "/:")) {
		return nil, []error{fmt.Errorf("source of mirrors %.100q: expected a registry, a repository, or *.domain", m.Source)}
	}
	use := sysregistriesv2.MirrorByDigestOnly
	if m.Tags {
		use = sysregistriesv2.MirrorByTagOnly
	}
	for _, location := range m.Mirrors {
		if err := checkRepository(location); err != nil {
			errs = append(errs, fmt.Errorf("mirror of %s: %w", m.Source, err))
			continue
		}
		found := mirror{Endpoint: sysregistriesv2.Endpoint{Location: location, PullFromMirror: use, Insecure: slices.Contains(m.Insecure, location)}}
		if form, ok := m.Forms[location]; ok {
			found.form = &form
		}
		rule.mirrors = append(rule.mirrors, found)
	}
	return rule, errs
}

// Find returns the rule for a reference: that for the longest part of its name; nil if there is none with mirrors.
func (r *Rules) Find(named reference.Named) *Rule {
	if found := r.find(named); found != nil && (len(found.mirrors) > 0 || found.Blocked) {
		return found
	}
	return nil
}

func (r *Rules) find(named reference.Named) (found *Rule) {
	if r == nil {
		return nil
	}
	for i := range r.bySource {
		rule := &r.bySource[i]
		if inSource(named, rule.Prefix) && (found == nil || len(rule.Prefix) > len(found.Prefix)) {
			found = rule
		}
	}
	return found
}

// FindAny returns the rule for registries without another one, for that of a reference; nil if there is none.
func (r *Rules) FindAny(named reference.Named) *Rule {
	if r == nil || r.anywhere == nil || r.find(named) != nil {
		return nil
	}
	own := *r.anywhere
	own.Prefix = reference.Domain(named)
	return &own
}

// inSource reports whether a reference is in a source of mirrors.
func inSource(named reference.Named, source string) bool {
	if suffix, wild := strings.CutPrefix(source, "*"); wild {
		host, _, _ := strings.Cut(reference.Domain(named), ":")
		return strings.HasSuffix(host, suffix)
	}
	return named.Name() == source || strings.HasPrefix(named.Name(), source+"/")
}
