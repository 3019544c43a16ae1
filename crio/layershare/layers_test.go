package layershare

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	specsv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// manifests is a source with the manifests that it has, the first one at the top.
type manifests struct {
	types.ImageSource // not used

	texts, mimeTypes []string
	asked            int
}

func (m *manifests) GetManifest(context.Context, *digest.Digest) ([]byte, string, error) {
	if m.asked >= len(m.texts) {
		return nil, "", errors.New("404")
	}

	m.asked++

	return []byte(m.texts[m.asked-1]), m.mimeTypes[m.asked-1], nil
}

func TestLayersOf(t *testing.T) {
	const (
		single = `{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:a", "size": 7}], "config": `
		image  = single + `{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:b", "size": 1}}`
		docker = `{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "digest": "sha256:a", "size": 7}],
			"config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:b", "size": 1}}`
		index = `{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
			"digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "size": 1, "platform": {"os": "linux", "architecture": "ARCH"}}]}`
	)

	many := func(layers int) string {
		one := `{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:a", "size": 7}`

		return strings.Replace(image, one, strings.TrimSuffix(strings.Repeat(one+",", layers), ","), 1)
	}

	for name, tc := range map[string]struct {
		texts, mimeTypes []string
		want             int
	}{
		"an image":                  {[]string{image}, []string{specsv1.MediaTypeImageManifest}, 1},
		"of Docker":                 {[]string{docker}, []string{manifest.DockerV2Schema2MediaType}, 1},
		"an index":                  {[]string{strings.ReplaceAll(index, "ARCH", "amd64"), image}, []string{specsv1.MediaTypeImageIndex, specsv1.MediaTypeImageManifest}, 1},
		"for other machines":        {[]string{strings.ReplaceAll(index, "ARCH", "s390x"), image}, []string{specsv1.MediaTypeImageIndex, specsv1.MediaTypeImageManifest}, 0},
		"its member cannot be read": {[]string{strings.ReplaceAll(index, "ARCH", "amd64")}, []string{specsv1.MediaTypeImageIndex}, 0},
		"an index in an index":      {[]string{strings.ReplaceAll(index, "ARCH", "amd64"), index}, []string{specsv1.MediaTypeImageIndex, specsv1.MediaTypeImageIndex}, 0},
		"a broken index":            {[]string{"{"}, []string{specsv1.MediaTypeImageIndex}, 0},
		"an artifact":               {[]string{single + `{"mediaType": "application/vnd.oci.empty.v1+json", "digest": "sha256:b", "size": 2}}`}, []string{specsv1.MediaTypeImageManifest}, 0},
		"broken":                    {[]string{"{"}, []string{specsv1.MediaTypeImageManifest}, 0},
		"of an unknown kind":        {[]string{image}, []string{"text/plain"}, 0},
		"nothing":                   {nil, nil, 0},
		"as many layers as we take": {[]string{many(maxLayers)}, []string{specsv1.MediaTypeImageManifest}, maxLayers},
		"one more":                  {[]string{many(maxLayers + 1)}, []string{specsv1.MediaTypeImageManifest}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			layers, member := layersOf(t.Context(), &manifests{texts: tc.texts, mimeTypes: tc.mimeTypes}, amd64)
			if len(layers) != tc.want || tc.want > 0 && (member != nil) != (len(tc.texts) == 2) {
				t.Fatalf("got %v of %v, want %d layers", layers, member, tc.want)
			}

			if tc.want > 0 && (layers[0].Digest != "sha256:a" || layers[0].Size != 7) {
				t.Errorf("got %v", layers[0])
			}
		})
	}
}

func TestServes(t *testing.T) {
	for name, tc := range map[string]struct {
		size int64
		err  error
		want bool
	}{
		"as in the manifest":                     {100, nil, true},
		"a size that the registry does not send": {-1, nil, true},
		"another size":                           {99, nil, false},
		"nothing":                                {0, nil, false},
		"refused":                                {100, errors.New("401"), false},
	} {
		source := &blobs{size: tc.size, err: tc.err}
		if got := serves(t.Context(), source, types.BlobInfo{Digest: base.Digest, Size: 100}); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}

		if source.open != 0 {
			t.Errorf("%s: the answer was not closed", name)
		}
	}
}

// blobs is a source with one blob.
type blobs struct {
	types.ImageSource // not used

	size int64
	err  error
	open int
}

func (b *blobs) GetBlob(context.Context, types.BlobInfo, types.BlobInfoCache) (io.ReadCloser, int64, error) {
	if b.err != nil {
		return nil, 0, b.err
	}

	b.open++

	return b, b.size, nil
}

func (b *blobs) Read([]byte) (int, error) { panic("all of a layer would be read") }

func (b *blobs) Close() error {
	b.open--

	return nil
}

// Manifests come from registries: whatever they have, two images have no more in common than
// what both can share, and sums of sizes do not overflow.
func FuzzCommonBase(f *testing.F) {
	image := &image{node: newNode(), config: specsv1.MediaTypeImageConfig, layers: []specsv1.Descriptor{base, layer("own", 1)}}

	text, mimeType, err := image.opened().GetManifest(f.Context(), nil)
	if err != nil {
		f.Fatal(err)
	}

	f.Add(text, text)
	f.Add(text, []byte(strings.ReplaceAll(string(text), "100000000", "-1")))
	f.Add(text, []byte(strings.ReplaceAll(string(text), "tar+gzip", "tar+gzip+encrypted")))
	f.Add([]byte(`{"layers": [null, {"size": 9223372036854775807}]}`), []byte("{}"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		layers := map[int][]types.BlobInfo{}
		for i, text := range [][]byte{a, b} {
			layers[i], _ = layersOf(t.Context(), &manifests{texts: []string{string(text)}, mimeTypes: []string{mimeType}}, amd64)
		}

		common := commonBase(layers[0], layers[1])
		w := waiter{layers: layers[1]}

		for i := range common {
			if one, other := layers[0][i], layers[1][i]; one.Digest != other.Digest || !canShare(one) || !canShare(other) || w.bytes([]int{i}) < 0 {
				t.Errorf("layer %d: %v, %v", i, one, other)
			}
		}

		all := make([]int, common)
		for i := range all {
			all[i] = i
		}

		if w.bytes(all) < 0 {
			t.Error("the sum of sizes overflows")
		}

		for _, image := range layers {
			var sum int64
			for _, layer := range image {
				sum += size(layer)
			}

			if sum < 0 {
				t.Error("the sum of sizes overflows")
			}
		}
	})
}

// A layer may be empty, and as large as any is.
func TestCanShare(t *testing.T) {
	for bytes, want := range map[int64]bool{-1: false, 0: true, maxLayerBytes: true, maxLayerBytes + 1: false} {
		if got := canShare(types.BlobInfo{Digest: base.Digest, Size: bytes}); got != want {
			t.Errorf("a layer of %d bytes: %v", bytes, got)
		}
	}
}

// The rate of a connection is that of the second half of what is read, unless all of that had
// come before somebody read it, as on a busy machine.
func TestRateOf(t *testing.T) {
	const second = time.Second

	for name, test := range map[string]struct {
		first, rest time.Duration // until each half
		want        int64         // bytes a second
	}{
		"steady":                  {second / 2, second / 2, measureBytes},
		"faster in the end":       {second, second / 2, measureBytes},
		"much faster":             {second, 0, measureBytes / 2 * speedUp},
		"nothing after the first": {second, 30 * second, measureBytes / 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			got := rateOf(t.Context(), &halves{first: test.first, rest: test.rest}, types.BlobInfo{})
			if diff := got - test.want; diff < -test.want/20 || diff > test.want/20 {
				t.Errorf("%s: %d bytes a second, want %d", name, got, test.want)
			}
		})
	}
}

// halves is a source with one blob, of which the first byte comes at once and the rest in two parts.
type halves struct {
	types.ImageSource // not used

	ctx         context.Context //nolint:containedctx // of the request
	first, rest time.Duration
	read        int
}

func (h *halves) GetBlob(ctx context.Context, _ types.BlobInfo, _ types.BlobInfoCache) (io.ReadCloser, int64, error) {
	h.ctx = ctx

	return h, measureBytes, nil
}

func (h *halves) Read(p []byte) (int, error) {
	wait := time.Duration(0)

	switch h.read {
	case 0:
		wait, p = h.first, p[:1]
	case measureBytes/2 + 1:
		wait = h.rest
	}

	if err := sleep(h.ctx, wait); err != nil {
		return 0, err
	}

	if h.read <= measureBytes/2 {
		p = p[:min(len(p), measureBytes/2+1-h.read)]
	}

	h.read += len(p)

	return len(p), nil
}

func (h *halves) Close() error { return nil }
