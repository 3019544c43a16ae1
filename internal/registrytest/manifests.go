package registrytest

import (
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Object is a JSON object of a manifest.
type Object = map[string]any

// LayerOf returns the entry of a layer, whose digest is that of its name.
func LayerOf(name string, size int64) Object {
	return Object{"mediaType": ocispec.MediaTypeImageLayerGzip, "digest": digest.FromString(name).String(), "size": size}
}

// ManifestOf returns the manifest of an image.
func ManifestOf(layers ...Object) Object {
	return Object{
		"schemaVersion": 2,
		"mediaType":     ocispec.MediaTypeImageManifest,
		"config":        Object{"mediaType": ocispec.MediaTypeImageConfig, "digest": digest.FromString("config").String(), "size": 2},
		"layers":        layers,
	}
}

// EntryOf returns the entry of a manifest in an index, for a platform, which may be empty.
func EntryOf(id digest.Digest, platform string) Object {
	entry := Object{"mediaType": ocispec.MediaTypeImageManifest, "digest": id.String(), "size": 100}
	if platform != "" {
		parts := append(strings.Split(platform, "/"), "")
		entry["platform"] = Object{"os": parts[0], "architecture": parts[1], "variant": parts[2]}
	}
	return entry
}

// IndexOf returns an index.
func IndexOf(entries ...Object) Object {
	return Object{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex, "manifests": entries}
}

// Keychain has one credential for one registry.
type Keychain struct {
	Registry   string
	Credential authn.AuthConfig
}

// Login returns a keychain with a user and password.
func Login(registry, user, password string) Keychain {
	return Keychain{registry, authn.AuthConfig{Username: user, Password: password}}
}

// Resolve returns the credential for its registry, and none for others.
func (k Keychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	if target.RegistryStr() != k.Registry {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(k.Credential), nil
}
