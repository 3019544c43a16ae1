// Package keychains has credentials for registries: those of docker configurations in files and pull secrets, of the
// kubelet's credential provider plugins, and of Google Cloud.
package keychains

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// maxDockerConfig is how many bytes of a docker config file are read: the limit
// of a Secret.
const maxDockerConfig = 1 << 20

// ReadAtMost returns the content of a file, or an error if it is longer than the limit (bytes).
func ReadAtMost(path string, limit int64) ([]byte, error) {
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
	path    string
	mu      sync.Mutex
	content []byte
	keyring *Keyring
}

// Resolve implements authn.Keychain.
func (d *dockerConfig) Resolve(target authn.Resource) (authn.Authenticator, error) {
	return First(context.Background(), d, target)
}

// Matching implements Several.
func (d *dockerConfig) Matching(ctx context.Context, target authn.Resource) ([]authn.AuthConfig, error) {
	keyring, err := d.load()
	if err != nil {
		return nil, err
	}
	return keyring.Matching(ctx, target)
}

// load reads the file every time, which costs less than a request, and parses it if
// it has changed.
func (d *dockerConfig) load() (*Keyring, error) {
	content, err := ReadAtMost(d.path, maxDockerConfig)
	if err != nil {
		return nil, fmt.Errorf("docker config: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keyring != nil && bytes.Equal(content, d.content) {
		return d.keyring, nil
	}
	keyring := &Keyring{}
	_, ignored, err := keyring.Add(corev1.SecretTypeDockerConfigJson, content)
	if err != nil {
		return nil, fmt.Errorf("docker config %s: %w", d.path, err)
	}
	if ignored > 0 {
		klog.Background().Info("Entries of a docker config are ignored: they name no registry", "path", d.path, "entries", ignored)
	}
	d.content, d.keyring = content, keyring
	return keyring, nil
}
