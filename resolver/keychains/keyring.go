package keychains

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
)

// Several is a keychain that may have several credentials for an image. The kubelet tries all of them.
type Several interface {
	authn.Keychain
	// Matching returns the credentials for an image in the order to try them.
	Matching(ctx context.Context, target authn.Resource) ([]authn.AuthConfig, error)
}

// Keyring has the credentials of docker configurations. The kubelet's own code reads them, matches them with an image and
// puts them into order: the most specific first, of all configurations together.
type Keyring struct {
	credentialprovider.BasicDockerKeyring
}

var _ Several = (*Keyring)(nil)

// Add adds the docker configuration of a Secret of this type. It returns the number of its entries, and how many of them
// are ignored since they name no registry. What is no such configuration is an error to the kubelet, too; the error may quote it.
func (k *Keyring) Add(kind corev1.SecretType, content []byte) (entries, ignored int, err error) {
	var config credentialprovider.DockerConfigJSON
	switch {
	case len(content) == 0:
	case kind == corev1.SecretTypeDockercfg:
		err = json.Unmarshal(content, &config.Auths)
	default:
		err = json.Unmarshal(content, &config)
	}
	if err != nil {
		return 0, 0, err
	}
	entries = len(config.Auths)
	for key := range config.Auths {
		// The kubelet ignores them, too, but logs them as they are, with a password perhaps.
		if _, err := url.Parse("https://" + strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")); err != nil {
			delete(config.Auths, key)
			ignored++
		}
	}
	k.BasicDockerKeyring.Add(nil, config.Auths)
	return entries, ignored, nil
}

// Matching implements Several.
func (k *Keyring) Matching(_ context.Context, target authn.Resource) ([]authn.AuthConfig, error) {
	known, _ := k.Lookup(target.String())
	found := make([]authn.AuthConfig, len(known))
	for i := range known {
		found[i] = authn.AuthConfig{Username: known[i].Username, Password: known[i].Password}
	}
	return found, nil
}

// Resolve implements authn.Keychain with the first credential.
func (k *Keyring) Resolve(target authn.Resource) (authn.Authenticator, error) {
	return First(context.Background(), k, target)
}

// First returns the credential of a keychain that is tried first.
func First(ctx context.Context, keychain Several, target authn.Resource) (authn.Authenticator, error) {
	found, err := keychain.Matching(ctx, target)
	if err != nil || len(found) == 0 {
		return authn.Anonymous, err
	}
	return authn.FromConfig(found[0]), nil
}

// matches reports whether one of the kubelet's patterns of images matches.
func matches(patterns []string, target authn.Resource) bool {
	for _, pattern := range patterns {
		if ok, err := credentialprovider.URLsMatchStr(pattern, target.String()); err == nil && ok {
			return true
		}
	}
	return false
}
