// Package manifest reads what a registry sends: manifests of images, and indexes of them.
// Nothing in it is trusted.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/ocimanifest"
)

const (
	// maxLayerSize is the largest size in compressed bytes that a layer may claim;
	// the schema of ImageManifest has the same limit. With at most MaxLayers
	// layers the sum cannot overflow.
	maxLayerSize = 1 << 40
	// maxEntries bounds the manifests of an index.
	maxEntries = 1000
)

// Content is a manifest, or an index of manifests.
type Content struct {
	// Index is set if it is an index.
	Index     bool
	mediaType types.MediaType
	// layers of a manifest, checked and without duplicates.
	layers []v1alpha1.ImageLayer
	// entries of an index, not checked, and the index as it was sent.
	entries ocimanifest.List
	body    []byte
}

// Parse reads a manifest or an index. Manifests of artifacts are read like
// those of images: image volumes use them, and their layers are pulled the same way.
func Parse(body []byte, contentType string) (*Content, error) {
	var document ocimanifest.Document
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, errors.New("what was sent is neither a manifest nor an index")
	}
	if document.IsSchema1() {
		return nil, errors.New("a manifest of schema 1, which states no sizes: push the image again as OCI or schema 2")
	}
	// No document may be a manifest to one reader and an index to another
	// (CVE-2021-41190).
	isManifest, isIndex := document.Layers != nil || document.Config != nil, document.Manifests != nil
	if isManifest == isIndex {
		return nil, errors.New("what was sent is neither a manifest nor an index, or both")
	}
	mediaType, err := mediaTypeOf(types.MediaType(document.MediaType), contentType, isIndex)
	if err != nil {
		return nil, err
	}
	c := &Content{Index: isIndex, mediaType: mediaType}
	if isIndex {
		if len(document.Manifests) > maxEntries {
			return nil, fmt.Errorf("an index of more than %d manifests", maxEntries)
		}
		c.entries, c.body = document.Manifests, body
		return c, nil
	}
	c.layers, err = layers(document.Layers)
	return c, err
}

// mediaTypeOf returns the media type that a document states. Without one, it
// returns the type of the Content-Type header, or else the type that the
// document looks like.
func mediaTypeOf(stated types.MediaType, contentType string, isIndex bool) (types.MediaType, error) {
	if stated == "" {
		sent, _, err := mime.ParseMediaType(contentType)
		switch {
		case err == nil && isKnown(types.MediaType(sent)):
			stated = types.MediaType(sent)
		case isIndex:
			stated = types.OCIImageIndex
		default:
			stated = types.OCIManifestSchema1
		}
	}
	if !isKnown(stated) {
		return "", errors.New("a media type that container runtimes do not take")
	}
	if stated.IsIndex() != isIndex {
		return "", errors.New("a media type that is not that of the content")
	}
	return stated, nil
}

func isKnown(t types.MediaType) bool {
	return slices.Contains([]types.MediaType{
		types.OCIImageIndex, types.DockerManifestList, types.OCIManifestSchema1, types.DockerManifestSchema2,
	}, t)
}

// layers checks the layers of a manifest. A layer that occurs twice is returned
// once, since it is pulled and stored once.
func layers(list ocimanifest.List) ([]v1alpha1.ImageLayer, error) {
	if len(list) > v1alpha1.MaxLayers {
		return nil, fmt.Errorf("a manifest of more than %d layers", v1alpha1.MaxLayers)
	}
	found := make([]v1alpha1.ImageLayer, 0, len(list))
	sizes := make(map[string]int64, len(list))
	for i, layer := range list {
		name := layer.Digest
		if err := imageref.ValidateDigest(digest.Digest(name)); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		if layer.Size < 0 || layer.Size > maxLayerSize {
			return nil, fmt.Errorf("layer %d: no size between 0 and %d bytes", i, int64(maxLayerSize))
		}
		size, known := sizes[name]
		switch {
		case !known:
			sizes[name] = layer.Size
			found = append(found, v1alpha1.ImageLayer{Digest: name, Size: layer.Size})
		case size != layer.Size:
			return nil, fmt.Errorf("layer %d: another size than before in the same manifest", i)
		}
	}
	return found, nil
}

// Spec returns the spec of an ImageManifest for a manifest.
func (c *Content) Spec(digest digest.Digest, platform string) v1alpha1.ImageManifestSpec {
	spec := v1alpha1.ImageManifestSpec{
		Digest:    digest.String(),
		MediaType: string(c.mediaType),
		Platform:  platform,
		Layers:    c.layers,
	}
	for _, layer := range c.layers {
		spec.Size += layer.Size
	}
	return spec
}
