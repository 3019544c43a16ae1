package registry

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/distribution/reference"
	podmanref "go.podman.io/image/v5/docker/reference"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/resolver/mirrors"
)

// References returns, in the order in which the container runtime tries them,
// the full names (docker.io/library/busybox:latest, host/repository@sha256:...)
// that an image in a pod may mean: by the short-name aliases and the registries
// to search in registries.conf, or in docker.io if it names none. If an image
// has both a tag and a digest, only the digest is kept. Every error is an
// *Error.
func (c *Client) References(image string) ([]string, error) {
	references, err := c.conf.ShortNames().References(image)
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
	return sourcesOf(named, c.conf, c.mirrored.Load())
}

// SetMirrors replaces the mirrors that the cluster states, which come before those of Config.Mirrors. Of the rules of registries.conf
// and these, that for the longest part of a name counts; of two for the same part, these. It
// returns what is wrong with those that are left out.
func (c *Client) SetMirrors(all []mirrors.Entry) []error {
	rules, errs := mirrors.New(slices.Concat(all, c.mirrors))
	c.mirrored.Store(rules)
	return errs
}

// sourcesOf returns where a reference can be fetched, in the order to try, by the file and the
// other rules. As for container runtimes, mirrors of what is
// blocked are asked.
func sourcesOf(named reference.Named, conf *mirrors.Conf, rules *mirrors.Rules) ([]*source, error) {
	registry, err := conf.Find(named)
	if err != nil {
		return nil, invalidReference(named.String(), err)
	}
	mirrored := rules.Find(named)
	if registry == nil && mirrored == nil {
		mirrored = rules.FindAny(named)
	}
	var forms []*mirrors.Form
	ofCluster := mirrored != nil && (registry == nil || len(mirrored.Prefix) >= len(registry.Prefix))
	if ofCluster {
		registry, forms = mirrored.For(named)
	}
	if registry == nil {
		return []*source{newSource(named)}, nil
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
	if registry.Blocked {
		endpoints = endpoints[:len(endpoints)-1] // the last one is the registry itself
	}
	sources := make([]*source, 0, len(endpoints))
	for i, endpoint := range endpoints {
		rewritten, err := imageref.Full(endpoint.Reference.String())
		if err != nil {
			return nil, invalidReference(endpoint.Reference.String(), err)
		}
		// The file may have a rule for the mirror itself, too.
		own, err := conf.Find(rewritten)
		if err != nil || own != nil && own.Blocked {
			continue
		}
		s := newSource(rewritten)
		// Of the file's own mirrors only what stands with them counts, as for container
		// runtimes; the cluster's objects cannot say it.
		s.insecure = endpoint.Endpoint.Insecure || ofCluster && own != nil && own.Insecure
		// The library treats host:5000 as something below the prefix host, and a
		// location is empty if the prefix is a wildcard. In both cases, the author of
		// the reference chooses the registry, as where mirrors have it as their source.
		listed, _, _ := strings.Cut(endpoint.Endpoint.Location, "/")
		s.listed = listed == s.domain && (!ofCluster || i < len(forms))
		if i < len(forms) && forms[i] != nil {
			s.path = cmp.Or(forms[i].Path, s.path)
			if of := reference.Domain(named); s.domain != of {
				s.query = "?" + url.Values{"ns": {of}}.Encode()
			}
		}
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		return nil, &Error{Reason: v1alpha1.ReasonDenied, Err: text(nil, "%s is blocked in registries.conf or in the cluster, and no mirror has %s", registry.Prefix, named)}
	}
	return sources, nil
}
