// Package ocimanifest decodes manifests and indexes of images, as OCI and Docker (schema 2) have
// them. They come from registries, so lists are bounded; whoever uses them checks the rest.
package ocimanifest

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// MaxList is how many entries of a list are decoded, one more than the resolver takes of an index.
const MaxList = 1001

// Document is a manifest, an index, or neither.
type Document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Config        *Descriptor     `json:"config"`
	Layers        List            `json:"layers"`
	Manifests     List            `json:"manifests"`
	FSLayers      json.RawMessage `json:"fsLayers"`
}

// IsSchema1 reports whether it is of Docker's schema 1, which states no sizes.
func (d *Document) IsSchema1() bool { return d.SchemaVersion == 1 || d.FSLayers != nil }

// Descriptor is of a configuration, a layer, or a manifest.
type Descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"` // in a list -1 if it is not stated
	Platform  *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant"`
		// OSFeatures is a list of what the operating system must have.
		OSFeatures json.RawMessage `json:"os.features"`
	} `json:"platform"`
}

// ContainerdTakes returns which entry of an index containerd takes, by their platforms, nil where none is stated; -1 if it
// takes none. It takes the first one of the best platform, and one without platform if nothing else matches: that counts if
// its configuration is of a platform that matches (images.Manifest of github.com/containerd/containerd/v2/core/images).
func ContainerdTakes(of []*ocispec.Platform, matcher platforms.MatchComparer) int {
	taken := -1
	for i, p := range of {
		switch {
		case p != nil && !matcher.Match(*p):
		case taken < 0, p != nil && (of[taken] == nil || matcher.Less(*p, *of[taken])):
			taken = i
		}
	}
	return taken
}

// List has the first MaxList descriptors of a list; nil if there is none. All empty ones of a long
// list would take a hundred times its length in memory.
type List []Descriptor

// UnmarshalJSON implements json.Unmarshaler. It is called with valid JSON.
func (l *List) UnmarshalJSON(data []byte) error {
	*l = nil
	decoder := json.NewDecoder(bytes.NewReader(data))
	if token, err := decoder.Token(); err != nil || token == nil {
		return err
	} else if token != json.Delim('[') {
		return errors.New("not a list")
	}
	for *l = (List{}); decoder.More() && len(*l) < MaxList; {
		next := Descriptor{Size: -1}
		if err := decoder.Decode(&next); err != nil {
			return err
		}
		*l = append(*l, next)
	}
	return nil
}
