package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/authn/kubernetes"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
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
	refused(target authn.Resource) (forgotten bool)
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
		if !keychain.refused(resource) {
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

// maxDockerConfig is how many bytes of a docker config file are read: the limit
// of a Secret.
const maxDockerConfig = 1 << 20

// KeychainFromDockerConfig returns the credentials of a docker config file, by
// the rules of the kubelet for Secrets of type kubernetes.io/dockerconfigjson.
// Credential helpers are not run. The file is read again when it has changed.
// The returned error is that of the first read.
func KeychainFromDockerConfig(path string) (authn.Keychain, error) {
	k := &dockerConfig{path: path}
	_, err := k.load()
	if err != nil {
		return nil, err
	}
	return k, nil
}

type dockerConfig struct {
	path     string
	mu       sync.Mutex
	content  []byte
	keychain authn.Keychain
}

// Resolve implements authn.Keychain.
func (d *dockerConfig) Resolve(target authn.Resource) (authn.Authenticator, error) {
	keychain, err := d.load()
	if err != nil {
		return nil, err
	}
	return keychain.Resolve(target)
}

// load reads the file every time, which costs less than a request, and parses it if
// it has changed.
func (d *dockerConfig) load() (authn.Keychain, error) {
	content, err := readAtMost(d.path, maxDockerConfig)
	if err != nil {
		return nil, fmt.Errorf("docker config: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keychain != nil && bytes.Equal(content, d.content) {
		return d.keychain, nil
	}
	keychain, err := kubernetes.NewFromPullSecrets(context.Background(), []corev1.Secret{{
		Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: content},
	}})
	if err != nil {
		return nil, fmt.Errorf("docker config %s: %w", d.path, err)
	}
	d.content, d.keychain = content, keychain
	return keychain, nil
}

func readAtMost(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s: more than %d bytes", path, limit)
	}
	return content, err
}
