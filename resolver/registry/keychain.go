package registry

import (
	"context"
	"errors"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// OfTenant is what the keychain of a tenant's pull secret has besides: see logins.go for what differs.
type OfTenant interface{ OfTenant() }

// marker is a keychain without credentials, for how the others are used.
type marker string

// Resolve implements authn.Keychain.
func (marker) Resolve(authn.Resource) (authn.Authenticator, error) { return authn.Anonymous, nil }

// Keychains that stand for requests without credentials, wherever else these would be made.
var (
	// Anonymous is for a request without credentials.
	Anonymous authn.Keychain = marker("anonymous")
	// NotAnonymously keeps a request without credentials from being made.
	NotAnonymously authn.Keychain = marker("not anonymous")
)

// refusable is a keychain that is notified which of its credentials a registry refuses. It
// reports whether it forgot that of a repository, and may have another one.
type refusable interface {
	Refused(target authn.Resource) (forgotten bool)
}

// credential is a credential and the keychain that has it; nil if there is none.
type credential struct {
	config authn.AuthConfig
	of     authn.Keychain
}

// renew asks the keychain of a credential that was refused for another one, and reports
// whether there is one now.
func (c *credential) renew(ctx context.Context, s *source) bool {
	keychain, ok := c.of.(refusable)
	if !ok {
		return false
	}
	for _, resource := range resources(s) {
		if !keychain.Refused(resource) {
			continue
		}
		if config, err := lookUp(ctx, c.of, resource); err == nil && *config != c.config && *config != (authn.AuthConfig{}) {
			c.config = *config
			return true
		}
	}
	return false
}

// resources returns the names under which keychains have credentials for a source.
func resources(s *source) []resource {
	if s.domain == "docker.io" {
		// docker login writes the second name.
		return []resource{{s.domain, s.repository}, {name.DefaultRegistry, s.repository}}
	}
	return []resource{{s.domain, s.repository}}
}

// credentials returns the distinct credentials for a source in the order of the
// keychains, or the empty credential if there are none. Keychains that cannot be
// read count as empty; the error names them.
func credentials(ctx context.Context, s *source, keychains []authn.Keychain) ([]credential, error) {
	var found []credential
	var broken []error
	for _, keychain := range keychains {
		for _, resource := range resources(s) {
			config, err := lookUp(ctx, keychain, resource)
			known := slices.ContainsFunc(found, func(c credential) bool { return err == nil && c.config == *config })
			switch {
			case err != nil:
				broken = append(broken, err)
			case known, keychain == NotAnonymously:
			case keychain == Anonymous:
				found = append(found, credential{})
			case *config != authn.AuthConfig{}:
				found = append(found, credential{*config, keychain})
			}
		}
	}
	if len(found) == 0 && !slices.Contains(keychains, NotAnonymously) {
		found = append(found, credential{})
	}
	return found, errors.Join(broken...)
}

func lookUp(ctx context.Context, keychain authn.Keychain, target resource) (*authn.AuthConfig, error) {
	authenticator, err := authn.Resolve(ctx, keychain, target)
	if err != nil {
		return nil, err
	}
	credential, err := authn.Authorization(ctx, authenticator)
	if err != nil {
		return nil, err
	}
	own := *credential
	if own.Username != "" && own.Password != "" {
		own.Auth = "" // the same in another form, which some keychains add
	}
	return &own, nil
}

// resource is the key of credentials in keychains: host/repository.
type resource struct{ domain, repository string }

func (r resource) RegistryStr() string { return r.domain }
func (r resource) String() string      { return r.domain + "/" + r.repository }
