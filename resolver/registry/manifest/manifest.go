// Package manifest reads what a registry sends: manifests of images, and indexes of them.
// Nothing in it is trusted.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
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
	entries []descriptor
	body    []byte
}

type descriptor struct {
	MediaType types.MediaType `json:"mediaType"`
	Digest    digest.Digest   `json:"digest"`
	Size      *int64          `json:"size"`
	Platform  *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant"`
	} `json:"platform"`
}

// descriptors is a list with a bound, at which reading stops: a list of empty
// descriptors takes a hundred times its length in memory.
type descriptors struct {
	list    []descriptor
	most    int
	present bool
}

var errTooMany = errors.New("too many")

// UnmarshalJSON implements json.Unmarshaler.
func (d *descriptors) UnmarshalJSON(data []byte) error {
	d.list, d.present = nil, true
	decoder := json.NewDecoder(bytes.NewReader(data))
	switch token, err := decoder.Token(); {
	case err != nil:
		return err
	case token == nil:
		d.present = false
		return nil
	case token != json.Delim('['):
		return errors.New("not a list")
	}
	for decoder.More() {
		if len(d.list) == d.most {
			return errTooMany
		}
		d.list = append(d.list, descriptor{})
		if err := decoder.Decode(&d.list[len(d.list)-1]); err != nil {
			return err
		}
	}
	return nil
}

// Parse reads a manifest or an index. Manifests of artifacts are read like
// those of images: image volumes use them, and their layers are pulled the same way.
func Parse(body []byte, contentType string) (*Content, error) {
	document := struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Manifests     descriptors     `json:"manifests"`
		Config        *descriptor     `json:"config"`
		Layers        descriptors     `json:"layers"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}{
		Manifests: descriptors{most: maxEntries},
		Layers:    descriptors{most: v1alpha1.MaxLayers},
	}
	switch err := json.Unmarshal(body, &document); {
	case errors.Is(err, errTooMany) && document.Manifests.present && !document.Layers.present:
		return nil, fmt.Errorf("an index of more than %d manifests", maxEntries)
	case errors.Is(err, errTooMany):
		return nil, fmt.Errorf("a manifest of more than %d layers", v1alpha1.MaxLayers)
	case err != nil:
		return nil, errors.New("what was sent is neither a manifest nor an index")
	}
	if document.SchemaVersion == 1 || document.FSLayers != nil {
		return nil, errors.New("a manifest of schema 1, which states no sizes: push the image again in a format of this decade")
	}
	// No document may be a manifest to one reader and an index to another
	// (CVE-2021-41190).
	isManifest, isIndex := document.Layers.present || document.Config != nil, document.Manifests.present
	if isManifest == isIndex {
		return nil, errors.New("what was sent is neither a manifest nor an index, or both")
	}
	mediaType, err := mediaTypeOf(document.MediaType, contentType, isIndex)
	if err != nil {
		return nil, err
	}
	c := &Content{Index: isIndex, mediaType: mediaType}
	if isIndex {
		c.entries, c.body = document.Manifests.list, body
		return c, nil
	}
	c.layers, err = layers(document.Layers.list)
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
func layers(list []descriptor) ([]v1alpha1.ImageLayer, error) {
	found := make([]v1alpha1.ImageLayer, 0, len(list))
	sizes := make(map[string]int64, len(list))
	for i, layer := range list {
		name := layer.Digest.String()
		if err := imageref.ValidateDigest(layer.Digest); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		if layer.Size == nil || *layer.Size < 0 || *layer.Size > maxLayerSize {
			return nil, fmt.Errorf("layer %d: no size between 0 and %d bytes", i, int64(maxLayerSize))
		}
		size, known := sizes[name]
		switch {
		case !known:
			sizes[name] = *layer.Size
			found = append(found, v1alpha1.ImageLayer{Digest: name, Size: *layer.Size})
		case size != *layer.Size:
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
