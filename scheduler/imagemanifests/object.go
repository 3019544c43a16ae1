package imagemanifests

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// maxSize bounds the size of a layer (1 TiB), as the index and the schema do.
const maxSize = 1 << 40

// object has the parts of an ImageManifest that matter here.
type object struct {
	// digest of the manifest; empty if the names could not be resolved.
	digest imageref.Canonical
	// platform that an image index states for it; zero if there is no index.
	platform index.Platform
	// layers sorted by digest, each once, and their order in the manifest (index.Manifest).
	layers []index.Layer
	order  []uint16
	// names are the references, the digests they had, and the object's own
	// digest.
	names []name
}

type name struct {
	canonical imageref.Canonical
	// confirmed is the Unix time at which the registry last confirmed it.
	confirmed int64
}

// platformOf returns the platform on which a name stands for the object. For
// the digest of a manifest that is every platform: all nodes pull that
// manifest.
func (o *object) platformOf(n imageref.Canonical) index.Platform {
	if n == o.digest {
		return index.Platform{}
	}
	return o.platform
}

func (o *object) all() []name {
	if o == nil {
		return nil
	}
	return o.names
}

func (o *object) has(n imageref.Canonical) bool {
	return slices.ContainsFunc(o.all(), func(other name) bool { return other.canonical == n })
}

func (o *object) equal(other *object) bool {
	if o == nil || other == nil {
		return o == other
	}
	return o.digest == other.digest && o.platform == other.platform &&
		slices.Equal(o.names, other.names) && o.sameLayers(other)
}

func (o *object) sameLayers(other *object) bool {
	return slices.Equal(o.layers, other.layers) && slices.Equal(o.order, other.order)
}

// manifest returns the manifest for a platform.
func (o *object) manifest(platform index.Platform) index.Manifest {
	return index.Manifest{Platform: platform, Layers: o.layers, Order: o.order}
}

// convert returns the parts of an ImageManifest that matter. It returns nil if
// the object states neither the layers of an image nor that they cannot be
// known. The schema bounds what the apiserver accepts, but not what it stored
// under an older schema, so nothing here relies on it. References that are not
// valid names are left out, with an error. Strings that many objects share are
// interned.
func convert(m *v1alpha1.ImageManifest, intern func(string) string) (*object, error) {
	o := &object{}
	var err error
	if m.Spec.Digest != "" {
		if o.digest, err = parseDigest(m.Spec.Digest); err == nil && !v1alpha1.IsPageName(m.Name, m.Spec.Digest) {
			err = fmt.Errorf("digest %s in an object of another name", o.digest) // otherwise any object could have it
		}
		if err == nil {
			o.platform, err = parsePlatform(m.Spec.Platform, intern)
		}
		if err == nil {
			o.layers, o.order, err = convertLayers(m.Spec.Layers, intern)
		}
		if err != nil {
			return nil, err
		}
		o.add(o.digest, 0)
	} else if !meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionResolved) {
		return nil, nil
	}
	if len(m.Status.References) > v1alpha1.MaxReferences {
		return nil, fmt.Errorf("%d references, at most %d are possible", len(m.Status.References), v1alpha1.MaxReferences)
	}
	for i := range m.Status.References {
		if wrong := o.addReference(&m.Status.References[i]); wrong != nil {
			err = wrong
		}
	}
	if len(o.names) == 0 {
		return nil, err
	}
	return o, err
}

func (o *object) addReference(r *v1alpha1.ImageReference) error {
	canonical, err := imageref.Parse(r.Name)
	if err != nil {
		return err
	}
	var of imageref.Canonical
	if o.digest != "" && r.Digest != "" {
		if of, err = parseDigest(r.Digest); err != nil {
			return fmt.Errorf("reference %s: %w", r.Name, err)
		}
	}
	if isDigest := !strings.Contains(string(canonical), "/"); isDigest && o.digest != "" && canonical != o.digest && canonical != of {
		return fmt.Errorf("reference %s: the registry has %s for it", r.Name, r.Digest)
	}
	var confirmed int64
	if r.LastConfirmed != nil {
		confirmed = max(0, r.LastConfirmed.Unix())
	}
	o.add(canonical, confirmed)
	if of != "" {
		o.add(of, confirmed)
	}
	return nil
}

// add adds a name, or confirms it later.
func (o *object) add(canonical imageref.Canonical, confirmed int64) {
	for i := range o.names {
		if n := &o.names[i]; n.canonical == canonical {
			n.confirmed = max(n.confirmed, confirmed)
			return
		}
	}
	o.names = append(o.names, name{canonical, confirmed})
}

// convertLayers returns the layers sorted by digest, and their order. An image may list a
// layer twice; it is one blob.
func convertLayers(layers []v1alpha1.ImageLayer, intern func(string) string) (sorted []index.Layer, order []uint16, err error) {
	if len(layers) > v1alpha1.MaxLayers {
		return nil, nil, fmt.Errorf("%d layers, at most %d are possible", len(layers), v1alpha1.MaxLayers)
	}
	listed := make([]index.Layer, 0, len(layers))
	for _, l := range layers {
		of, err := parseDigest(l.Digest)
		if err != nil {
			return nil, nil, err
		}
		if l.Size < 0 || l.Size > maxSize {
			return nil, nil, fmt.Errorf("layer %s of %d bytes", of, l.Size)
		}
		listed = append(listed, index.Layer{Digest: intern(string(of)), Size: l.Size})
	}
	byDigest := func(a, b index.Layer) int { return strings.Compare(a.Digest, b.Digest) }
	sorted = slices.Clone(listed)
	slices.SortFunc(sorted, byDigest)
	sorted = slices.CompactFunc(sorted, func(a, b index.Layer) bool { return a.Digest == b.Digest })
	order = make([]uint16, len(listed))
	for i, l := range listed {
		at, _ := slices.BinarySearchFunc(sorted, l, byDigest)
		order[i] = uint16(at) //nolint:gosec // at most v1alpha1.MaxLayers
	}
	return sorted, order, nil
}

func parseDigest(s string) (imageref.Canonical, error) {
	if len(s) > 135 { // longer than sha512: the message has only its length
		return "", fmt.Errorf("digest of %d characters", len(s))
	}
	if err := digest.Digest(s).Validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w", s, err)
	}
	return imageref.Canonical(s), nil
}

func parsePlatform(s string, intern func(string) string) (index.Platform, error) {
	if s == "" {
		return index.Platform{}, nil
	}
	parts := strings.Split(s, "/")
	if len(s) > 64 || len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return index.Platform{}, fmt.Errorf("platform %.64q: want os/architecture or os/architecture/variant", s)
	}
	return index.Platform{OS: intern(parts[0]), Architecture: intern(parts[1])}, nil
}
