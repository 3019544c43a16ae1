package layershare

import (
	"context"
	"strings"

	"github.com/opencontainers/go-digest"
	specsv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

const (
	// maxLayers is how many layers an image that shares them may have. The overlay
	// driver cannot run images of more than 500.
	maxLayers = 512

	// maxLayerBytes is more than any layer has.
	maxLayerBytes = 1 << 50

	// encryptedSuffix ends the media type of a layer that a pull decrypts: the copy
	// never takes it from the store.
	encryptedSuffix = "+encrypted"
)

// layersOf returns the layers of the image that a copy from source copies, from the
// bottom up, and which member it chooses if the image is an index; no layers of what is no
// image to run, or cannot be read. A source has the manifest of a single image at hand; that
// of a member of an index takes a request.
func layersOf(ctx context.Context, source types.ImageSource, system *types.SystemContext) (layers []types.BlobInfo, member *digest.Digest) {
	text, mimeType, err := source.GetManifest(ctx, nil)
	if err != nil {
		return nil, nil
	}

	if manifest.MIMETypeIsMultiImage(mimeType) {
		list, err := manifest.ListFromBlob(text, mimeType)
		if err != nil {
			return nil, nil
		}

		chosen, err := list.ChooseInstance(system)
		if err != nil {
			return nil, nil
		}

		member = &chosen
		if text, mimeType, err = source.GetManifest(ctx, member); err != nil {
			return nil, nil
		}
	}

	parsed, err := manifest.FromBlob(text, mimeType)
	if err != nil {
		return nil, nil
	}

	switch parsed.ConfigInfo().MediaType {
	case specsv1.MediaTypeImageConfig, manifest.DockerV2Schema2ConfigMediaType:
	default:
		return nil, nil
	}

	infos := parsed.LayerInfos()
	if len(infos) > maxLayers {
		return nil, nil
	}

	layers = make([]types.BlobInfo, len(infos))
	for i := range infos {
		layers[i] = infos[i].BlobInfo
	}

	return layers, member
}

// commonBase returns how many layers two images have in common, from the bottom up.
// The store takes layers in this order: a layer that lies on others in one of the
// images would come there with them, perhaps much later.
func commonBase(a, b []types.BlobInfo) int {
	for i := range min(len(a), len(b)) {
		if a[i].Digest != b[i].Digest || !canShare(a[i]) || !canShare(b[i]) {
			return i
		}
	}

	return min(len(a), len(b))
}

// canShare reports whether a copy takes such a layer from the store.
func canShare(layer types.BlobInfo) bool {
	return layer.Digest.Validate() == nil && layer.Size >= 0 && layer.Size <= maxLayerBytes &&
		len(layer.URLs) == 0 && !strings.HasSuffix(layer.MediaType, encryptedSuffix)
}

// size is the layer's size in the manifest, within reason: sums do not overflow.
func size(layer types.BlobInfo) int64 { return min(max(layer.Size, 0), maxLayerBytes) }
