// Package keychains has the credentials that layer-resolver itself holds for registries: those of a docker config
// file, of the kubelet's credential provider plugins, and of Google Cloud.
package keychains

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/authn/kubernetes"
	corev1 "k8s.io/api/core/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// FromDockerConfig returns the credentials of a docker config file, by
// the rules of the kubelet for Secrets of type kubernetes.io/dockerconfigjson.
// Credential helpers are not run. The file is read again when it has changed.
// The returned error is that of the first read.
func FromDockerConfig(path string) (authn.Keychain, error) {
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
	content, err := os.ReadFile(d.path)
	if err != nil {
		return nil, fmt.Errorf("docker config: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keychain != nil && bytes.Equal(content, d.content) {
		return d.keychain, nil
	}
	keychain, err := fromContent(content)
	if err != nil {
		return nil, fmt.Errorf("docker config %s: %w", d.path, err)
	}
	d.content, d.keychain = content, keychain
	return keychain, nil
}

// fromContent returns the credentials of the content of a docker config file.
func fromContent(content []byte) (authn.Keychain, error) {
	return kubernetes.NewFromPullSecrets(context.Background(), []corev1.Secret{{
		Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: content},
	}})
}

// fromAuths returns credentials by patterns of images, by the rules of the kubelet.
func fromAuths(auths map[string]credentialprovider.AuthConfig) (authn.Keychain, error) {
	content, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		return nil, err
	}
	return fromContent(content)
}

// matching returns a keychain that has some credential for each image that a pattern matches.
func matching(patterns []string) (authn.Keychain, error) {
	auths := map[string]credentialprovider.AuthConfig{}
	for _, pattern := range patterns {
		auths[pattern] = credentialprovider.AuthConfig{Username: "matches", Password: "matches"}
	}
	return fromAuths(auths)
}
