package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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

// content is a manifest, or an index of manifests.
type content struct {
	index     bool
	mediaType types.MediaType
	// layers of a manifest, checked and without duplicates.
	layers []v1alpha1.ImageLayer
	// entries of an index, not checked.
	entries []descriptor
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

// parseContent reads a manifest or an index. Manifests of artifacts are read like
// those of images: image volumes use them, and their layers are pulled the same way.
func parseContent(body []byte, contentType string) (*content, error) {
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
		return nil, invalidManifest("an index of more than %d manifests", maxEntries)
	case errors.Is(err, errTooMany):
		return nil, invalidManifest("a manifest of more than %d layers", v1alpha1.MaxLayers)
	case err != nil:
		return nil, invalidManifest("what was sent is neither a manifest nor an index")
	}
	if document.SchemaVersion == 1 || document.FSLayers != nil {
		return nil, invalidManifest("a manifest of schema 1, which states no sizes: push the image again in a format of this decade")
	}
	// No document may be a manifest to one reader and an index to another
	// (CVE-2021-41190).
	isManifest, isIndex := document.Layers.present || document.Config != nil, document.Manifests.present
	if isManifest == isIndex {
		return nil, invalidManifest("what was sent is neither a manifest nor an index, or both")
	}
	mediaType, err := mediaTypeOf(document.MediaType, contentType, isIndex)
	if err != nil {
		return nil, err
	}
	c := &content{index: isIndex, mediaType: mediaType}
	if isIndex {
		c.entries = document.Manifests.list
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
		return "", invalidManifest("a media type that container runtimes do not take")
	}
	if stated.IsIndex() != isIndex {
		return "", invalidManifest("a media type that is not that of the content")
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
			return nil, invalidManifest("layer %d: %s", i, err)
		}
		if layer.Size == nil || *layer.Size < 0 || *layer.Size > maxLayerSize {
			return nil, invalidManifest("layer %d: no size between 0 and %d bytes", i, int64(maxLayerSize))
		}
		size, known := sizes[name]
		switch {
		case !known:
			sizes[name] = *layer.Size
			found = append(found, v1alpha1.ImageLayer{Digest: name, Size: *layer.Size})
		case size != *layer.Size:
			return nil, invalidManifest("layer %d: another size than before in the same manifest", i)
		}
	}
	return found, nil
}

// spec returns the spec of an ImageManifest for a manifest.
func (c *content) spec(digest digest.Digest, platform string) v1alpha1.ImageManifestSpec {
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

// choice is a manifest of an index.
type choice struct {
	digest   digest.Digest
	platform string
}

// choose returns the manifests of an index for platforms, without duplicates.
func (c *content) choose(platforms []string) ([]choice, error) {
	var chosen []choice
	for _, platform := range platforms {
		wanted, err := v1.ParsePlatform(platform)
		if err != nil || wanted.OS == "" || wanted.Architecture == "" {
			continue
		}
		entry := c.match(wanted)
		if entry == nil {
			continue
		}
		if err := imageref.ValidateDigest(entry.Digest); err != nil {
			return nil, invalidManifest("the index's manifest for %s: %s", platform, err)
		}
		if entry.Platform != nil {
			wanted.Variant = entry.Platform.Variant
		}
		if !slices.ContainsFunc(chosen, func(other choice) bool { return other.digest == entry.Digest }) {
			chosen = append(chosen, choice{entry.Digest, wanted.String()})
		}
	}
	if len(chosen) == 0 {
		return nil, &Error{
			Reason: v1alpha1.ReasonPlatformNotFound,
			Err:    text(nil, "no manifest for the nodes' platforms (%s) among the %d of the index", strings.Join(platforms, ", "), len(c.entries)),
		}
	}
	return chosen, nil
}

// variants returns the variants of an architecture in the order in which
// container runtimes prefer them. Nodes do not report their variant: an arm
// node counts as v7, which is the usual one.
func variants(architecture string) []string {
	switch architecture {
	case "arm":
		return []string{"v7", "v6", "v5", ""}
	case "arm64":
		return []string{"v8", ""}
	}
	return []string{""}
}

// match returns the entry that a container runtime would choose on a platform:
// the first of the best variant, an entry without platform if nothing else
// matches, nil if nothing does.
func (c *content) match(wanted *v1.Platform) *descriptor {
	order := variants(wanted.Architecture)
	if wanted.Variant != "" {
		order = []string{wanted.Variant}
	}
	best, rank := (*descriptor)(nil), len(order)+1
	for i := range c.entries {
		entry := &c.entries[i]
		at := len(order)
		if p := entry.Platform; p != nil {
			if at = slices.Index(order, p.Variant); at < 0 || p.OS != wanted.OS || p.Architecture != wanted.Architecture {
				continue
			}
		}
		if at < rank {
			best, rank = entry, at
		}
	}
	return best
}
