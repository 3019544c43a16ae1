package imagelayers

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// checkLayers fails unless layers keep what is promised to CRI clients.
func checkLayers(t *testing.T, infos []types.BlobInfo) {
	t.Helper()

	before := slices.Clone(infos)
	layers := FromManifest(infos)

	if !slices.EqualFunc(before, infos, func(a, b types.BlobInfo) bool {
		return a.Digest == b.Digest && a.Size == b.Size && a.MediaType == b.MediaType
	}) {
		t.Fatal("the layers of the manifest were changed")
	}

	slices.Reverse(before)

	if !maps.Equal(layers.Spec().GetAnnotations(), FromManifest(before).Spec().GetAnnotations()) {
		t.Fatal("the result depends on the order of layers")
	}

	if layers == nil {
		return
	}

	if n := len(layers.Spec().GetAnnotations()); n == 0 || n > MaxPerImage {
		t.Fatalf("%d layers", n)
	}

	for key, value := range layers.Spec().GetAnnotations() {
		d, ok := strings.CutPrefix(key, Prefix)
		if !ok || digest.Digest(d).Validate() != nil {
			t.Errorf("key %q is not %s<valid digest>", key, Prefix)
		}

		size, err := strconv.ParseUint(value, 10, 63)
		if err != nil || strconv.FormatUint(size, 10) != value {
			t.Errorf("value %q of %s is not a size", value, key)
		}

		if !slices.ContainsFunc(infos, func(info types.BlobInfo) bool {
			return info.Digest.String() == d && info.Size == int64(size) && !strings.HasSuffix(info.MediaType, encryptedSuffix)
		}) {
			t.Errorf("%s=%s is in no usable layer of the manifest", key, value)
		}
	}

	// Half of the budget must do, too.
	limit := layers.WireSize() / 2
	if kept := NewBudget(limit).Apply([]*Layers{layers, layers}, 0); wireSize(kept) > limit {
		t.Errorf("%d bytes in a budget of %d", wireSize(kept), limit)
	}
}

// FuzzManifest takes the way of a manifest from a registry to annotations.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"layers":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := manifest.FromBlob(data, manifest.GuessMIMEType(data))
		if err != nil {
			return
		}

		infos := []types.BlobInfo{}
		for _, layer := range parsed.LayerInfos() {
			infos = append(infos, layer.BlobInfo)
		}

		checkLayers(t, infos)
	})
}

// FuzzFromManifest builds lists that no manifest parser lets through: one layer
// a line, as "<digest> <size> <media type>". A '~' in a digest stands for one
// that is valid.
func FuzzFromManifest(f *testing.F) {
	f.Add("", uint16(0))
	f.Fuzz(func(t *testing.T, list string, more uint16) {
		infos := blobs("more", int(more%(2*MaxPerImage)))

		for line := range strings.Lines(list) {
			fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
			fields = append(fields, "", "")
			size, _ := strconv.ParseInt(fields[1], 10, 64) // 0 does as well
			infos = append(infos, types.BlobInfo{
				Digest:    digest.Digest(strings.ReplaceAll(fields[0], "~", digestA.String())),
				Size:      size,
				MediaType: fields[2],
			})
		}

		checkLayers(t, infos)
	})
}

// FuzzMerge tries to get an annotation of an image's author to clients that
// looks like a layer.
func FuzzMerge(f *testing.F) {
	f.Add("org.opencontainers.image.title", "x", "imageLayer."+digestB.String(), "1")

	layers := FromManifest([]types.BlobInfo{blob(digestA, 10)})

	f.Fuzz(func(t *testing.T, key1, value1, key2, value2 string) {
		authored := map[string]string{key1: value1, key2: value2}
		merged := layers.Merge(maps.Clone(authored))

		for k, v := range merged {
			runes := []rune(k)
			if n := len(Prefix); len(runes) >= n && (strings.EqualFold(string(runes[:n]), Prefix) ||
				// Not what EqualFold compares: \u0130 becomes i in lower case only.
				strings.ToLower(string(runes[:n])) == strings.ToLower(Prefix) || //nolint:staticcheck // see above
				strings.ToUpper(string(runes[:n])) == strings.ToUpper(Prefix)) { //nolint:staticcheck // see above
				if k != key(digestA) || v != "10" {
					t.Errorf("reserved key %q=%q came through", k, v)
				}
			} else if authored[k] != v {
				t.Errorf("%q=%q came from nowhere", k, v)
			}
		}

		for k := range authored {
			if _, kept := merged[k]; !kept && !isReserved(k) {
				t.Errorf("annotation %q was lost", k)
			}
		}
	})
}

func FuzzIsValid(f *testing.F) {
	for _, seed := range []string{
		digestA.String(), "", ":", "sha256:", "sha256:" + strings.Repeat("g", 64), "sha256:" + strings.Repeat("A", 64),
		"sha256:" + strings.Repeat("a", 32) + "x" + strings.Repeat("a", 31), "sha256:" + strings.Repeat("a", 65),
		"sha512:" + strings.Repeat("a", 128), "md5:" + strings.Repeat("a", 32), "sha256+b64:" + strings.Repeat("a", 64),
	} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, s string) {
		if d := digest.Digest(s); isValid(d) != (d.Validate() == nil) {
			t.Errorf("%q: valid %v, by go-digest %v", s, isValid(d), d.Validate())
		}
	})
}
