package keychains

import (
	"context"
	"errors"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// OfTenant is what the keychain of a tenant's pull secret has besides: see logins.go of package registry for what differs.
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

// Credential is a credential and the keychain that has it; nil if there is none.
type Credential struct {
	Config authn.AuthConfig
	Of     authn.Keychain
}

// Renew asks the keychain of a credential that was refused for another one, and reports
// whether there is one now.
func (c *Credential) Renew(ctx context.Context, domain, repository string) bool {
	keychain, ok := c.Of.(refusable)
	if !ok {
		return false
	}
	for _, resource := range resources(domain, repository) {
		if !keychain.Refused(resource) {
			continue
		}
		if config, err := lookUp(ctx, c.Of, resource); err == nil && *config != c.Config && *config != (authn.AuthConfig{}) {
			c.Config = *config
			return true
		}
	}
	return false
}

// resources returns the names under which keychains have credentials for a repository.
func resources(domain, repository string) []resource {
	if domain == "docker.io" {
		// docker login writes the second name.
		return []resource{{domain, repository}, {name.DefaultRegistry, repository}}
	}
	return []resource{{domain, repository}}
}

// For returns the distinct credentials for a repository in the order of the
// keychains, or the empty credential if there are none. Keychains that cannot be
// read count as empty; the error names them.
func For(ctx context.Context, domain, repository string, all []authn.Keychain) ([]Credential, error) {
	var found []Credential
	var broken []error
	add := func(config authn.AuthConfig, of authn.Keychain) {
		config = plain(config)
		known := slices.ContainsFunc(found, func(c Credential) bool { return c.Config == config })
		switch {
		case known, of == NotAnonymously:
		case of == Anonymous:
			found = append(found, Credential{})
		case config != authn.AuthConfig{}:
			found = append(found, Credential{config, of})
		}
	}
	for _, keychain := range all {
		if several, ok := keychain.(Several); ok { // by the kubelet's rules, also for the names of Docker Hub
			matching, err := several.Matching(ctx, resource{domain, repository})
			if err != nil {
				broken = append(broken, err)
			}
			for _, config := range matching {
				add(config, keychain)
			}
			continue
		}
		for _, resource := range resources(domain, repository) {
			if config, err := lookUp(ctx, keychain, resource); err != nil {
				broken = append(broken, err)
			} else {
				add(*config, keychain)
			}
		}
	}
	if len(found) == 0 && !slices.Contains(all, NotAnonymously) {
		found = append(found, Credential{})
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
	own := plain(*credential)
	return &own, nil
}

// plain returns a credential without the same in another form, which some keychains add.
func plain(credential authn.AuthConfig) authn.AuthConfig {
	if credential.Username != "" && credential.Password != "" {
		credential.Auth = ""
	}
	return credential
}

// resource is the key of credentials in keychains: host/repository.
type resource struct{ domain, repository string }

func (r resource) RegistryStr() string { return r.domain }
func (r resource) String() string      { return r.domain + "/" + r.repository }
