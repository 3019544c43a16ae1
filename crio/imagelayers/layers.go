// Package imagelayers turns the layers that an image manifest names into the
// annotations by which CRI clients learn what a node already holds:
//
//	imageLayer.<digest>: <compressed size in bytes>
//
// Everything that goes in comes from a registry, so nothing here returns an
// error: what cannot be used is left out, and what is left is bounded.
package imagelayers

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// Prefix starts the key of every layer annotation; the digest of the layer
	// as the registry serves it (compressed) follows. The prefix is reserved,
	// in whatever case it is written: annotations of image authors that start
	// with it are not handed to CRI clients.
	Prefix = "imageLayer."

	// MaxPerImage is the number of layers that are reported of one image. The
	// overlay driver cannot run images of more than 500 layers.
	MaxPerImage = 512

	// encryptedSuffix ends the media type of a layer that only the holders of
	// a key can use. It is never reused for another image.
	encryptedSuffix = "+encrypted"
)

// Layers are the reported layers of one image. A value never changes after it
// was made, so it may be cached and used by several goroutines; nil means that
// there is nothing to report.
type Layers struct {
	annotations map[string]string
	wireSize    int
	// exclusive is what WithExclusive returned last.
	exclusive atomic.Pointer[Layers]
}

// FromManifest selects what to report of the layers of an image manifest, as
// listed by types.Image.LayerInfos(). Left out are layers without a size (the
// manifest has Docker schema 1), encrypted layers and invalid digests. Repeated
// digests count once, with the largest size given. Of more than MaxPerImage
// layers the largest are reported. The result depends on the set of layers
// only, not on their order. It is nil if no layer remains or if SwitchEnv
// turned the reports off.
func FromManifest(infos []types.BlobInfo) *Layers {
	if !layersSwitch.isOn() {
		return nil
	}

	sizes := make(map[digest.Digest]int64, min(len(infos), MaxPerImage))

	for i := range infos {
		info := &infos[i]
		if info.Size < 0 || strings.HasSuffix(info.MediaType, encryptedSuffix) || !isValid(info.Digest) {
			continue
		}

		sizes[info.Digest] = max(sizes[info.Digest], info.Size)
	}

	annotations := make(map[string]string, min(len(sizes), MaxPerImage))
	for _, d := range largest(sizes, MaxPerImage) {
		annotations[Prefix+d.String()] = strconv.FormatInt(sizes[d], 10)
	}

	return newLayers(annotations)
}

// isValid reports whether Digest.Validate() returns no error. Nearly all digests
// are of SHA-256, and for these the regular expressions of Validate would take
// most of the time that FromManifest takes.
func isValid(d digest.Digest) bool {
	encoded, ok := strings.CutPrefix(string(d), "sha256:")
	if !ok {
		return d.Validate() == nil
	}

	return len(encoded) == digest.SHA256.Size()*2 && strings.Trim(encoded, "0123456789abcdef") == ""
}

// largest returns the digests of the n largest layers, or all if there are
// fewer. Among layers of one size the order of their digests decides.
func largest(sizes map[digest.Digest]int64, n int) []digest.Digest {
	digests := slices.Collect(maps.Keys(sizes))
	if len(digests) <= n {
		return digests
	}

	slices.SortFunc(digests, func(a, b digest.Digest) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})

	return digests[:n]
}

// newLayers takes ownership of annotations.
func newLayers(annotations map[string]string) *Layers {
	if len(annotations) == 0 {
		return nil
	}

	size := 0
	for key, value := range annotations {
		size += entryWireSize(key, value)
	}

	return &Layers{annotations: annotations, wireSize: size}
}

// Spec returns an image specification that carries the layers, for
// runtimeapi.Image. Its annotations are shared: they must not be written to. It
// is nil if there is nothing to report, as it is where layers are unknown.
func (l *Layers) Spec() *runtimeapi.ImageSpec {
	if l == nil {
		return nil
	}

	return &runtimeapi.ImageSpec{Annotations: l.annotations}
}

// Merge returns a new map of the annotations that the author wrote into the
// manifest, without those under the reserved prefix, and of the layers. It is
// nil if that leaves nothing.
func (l *Layers) Merge(manifestAnnotations map[string]string) map[string]string {
	var layers map[string]string
	if l != nil {
		layers = l.annotations
	}

	if len(manifestAnnotations)+len(layers) == 0 {
		return nil
	}

	merged := make(map[string]string, len(manifestAnnotations)+len(layers))

	for key, value := range manifestAnnotations {
		if !isReserved(key) {
			merged[key] = value
		}
	}

	maps.Copy(merged, layers)

	if len(merged) == 0 {
		return nil
	}

	return merged
}

// isReserved reports whether authors of images may not use a key. It ignores case, so
// that a client that does so too is not fooled. Both mappings count: "\u0130" has the
// lower case "i", "\u0131" the upper case "I".
func isReserved(key string) bool {
	for _, fold := range []func(string) string{strings.ToLower, strings.ToUpper} {
		if folded := fold(key); strings.HasPrefix(folded, fold(Prefix)) || folded == fold(ExclusiveKey) {
			return true
		}
	}

	return false
}

// WireSize is what the layers add to a CRI message, in bytes, without the few
// bytes of the image specification around them.
func (l *Layers) WireSize() int {
	if l == nil {
		return 0
	}

	return l.wireSize
}

// entryWireSize is the size of one entry of ImageSpec.annotations: a map entry
// is encoded as a message with the key as field 1 and the value as field 2.
func entryWireSize(key, value string) int {
	const annotationsField = 2

	entry := protowire.SizeTag(1) + protowire.SizeBytes(len(key)) +
		protowire.SizeTag(2) + protowire.SizeBytes(len(value))

	return protowire.SizeTag(annotationsField) + protowire.SizeBytes(entry)
}
