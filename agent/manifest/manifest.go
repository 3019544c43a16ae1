// Package manifest reads manifests and indexes of images that a node has. They come from
// registries, so everything is bounded and checked.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/ocimanifest"
)

// MaxBytes is the size of a manifest that is read; container runtimes take no larger ones
// (go.podman.io/image/internal/iolimits, containerd/core/remotes).
const MaxBytes = 4 << 20

// encryptedSuffix ends the media type of a layer that only the holders of a key can use.
const encryptedSuffix = "+encrypted"

// Manifest is the content of an image manifest or an index.
type Manifest struct {
	// Config is the digest of the configuration; empty for an index.
	Config string
	// Layers are those of the image, the base first. They are missing if no other image can
	// use them, or if their sizes are not known: then Unknown is the reason.
	Layers  []v1alpha1.ImageLayer
	Unknown error
	// Manifests are the entries of an index, those of attestations among them.
	Manifests []Entry
	// left is how many layers and manifests were left out for want of room.
	left int
}

// Entry is a manifest, or another index, that an index lists.
type Entry struct {
	Digest string
	// Platform is what it is for; nil if the index does not state it.
	Platform *ocispec.Platform
}

// Parse reads a manifest or an index in the form of OCI or Docker (schema 2).
func Parse(data []byte) (*Manifest, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("manifest of %d bytes, at most %d are read", len(data), MaxBytes)
	}
	var parsed ocimanifest.Document
	if err := json.Unmarshal(data, &parsed); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	switch {
	case parsed.IsSchema1():
		return nil, errors.New("manifest of Docker's schema 1: it has no sizes of layers")
	case parsed.Manifests != nil && parsed.Config == nil:
		return index(parsed.Manifests)
	case parsed.Config == nil || !v1alpha1.IsDigest(parsed.Config.Digest):
		return nil, errors.New("manifest without a configuration: it is of no image")
	}
	m := &Manifest{Config: parsed.Config.Digest}
	m.Layers, m.Unknown = layers(parsed.Layers)
	return m, nil
}

func layers(all ocimanifest.List) ([]v1alpha1.ImageLayer, error) {
	if len(all) > v1alpha1.MaxLayers {
		return nil, fmt.Errorf("more than %d layers", v1alpha1.MaxLayers)
	}
	layers := make([]v1alpha1.ImageLayer, len(all))
	for i, l := range all {
		switch {
		case strings.HasSuffix(l.MediaType, encryptedSuffix):
			return nil, errors.New("encrypted layers: no other image uses them")
		case !v1alpha1.IsDigest(l.Digest) || l.Size < 0 || l.Size > v1alpha1.MaxLayerBytes:
			return nil, fmt.Errorf("layer %.150q of %d bytes", l.Digest, l.Size)
		}
		layers[i] = v1alpha1.ImageLayer{Digest: l.Digest, Size: l.Size}
	}
	return layers, nil
}

func index(all ocimanifest.List) (*Manifest, error) {
	m := &Manifest{}
	for _, d := range all {
		if !v1alpha1.IsDigest(d.Digest) {
			continue
		}
		entry := Entry{Digest: d.Digest}
		if p := d.Platform; p != nil {
			if len(p.OSFeatures) > 0 && string(p.OSFeatures) != "[]" && string(p.OSFeatures) != "null" {
				continue // containerd 2.3 takes it on no node: none has features (platforms.DefaultSpec)
			}
			entry.Platform = &ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
		}
		m.Manifests = append(m.Manifests, entry)
	}
	if len(m.Manifests) == 0 {
		return nil, errors.New("index without manifests")
	}
	return m, nil
}
