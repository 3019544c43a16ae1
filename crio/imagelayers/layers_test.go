package imagelayers

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	"go.podman.io/image/v5/types"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	digestA = digest.FromString("a")
	digestB = digest.FromString("b")
	digestC = digest.FromString("c")
)

// TestMain keeps what the budget and the switch log out of the results; tests
// that look at it hook into the logger.
func TestMain(m *testing.M) {
	flag.Parse()

	if !testing.Verbose() && os.Getenv(switchTestChild) == "" {
		logrus.SetOutput(io.Discard)
	}

	os.Exit(m.Run())
}

func key(d digest.Digest) string { return Prefix + d.String() }

func blob(d digest.Digest, size int64) types.BlobInfo {
	return types.BlobInfo{Digest: d, Size: size, MediaType: "application/vnd.oci.image.layer.v1.tar+gzip"}
}

// blobs returns n distinct layers of 1 to n bytes.
func blobs(prefix string, n int) []types.BlobInfo {
	infos := make([]types.BlobInfo, 0, n)
	for i := range n {
		infos = append(infos, blob(digest.FromString(prefix+strconv.Itoa(i)), int64(i+1)))
	}

	return infos
}

func TestFromManifest(t *testing.T) {
	encrypted := blob(digestB, 20)
	encrypted.MediaType += "+encrypted"

	sha512 := digest.SHA512.FromString("a")

	for _, tc := range []struct {
		name  string
		infos []types.BlobInfo
		want  map[string]string
	}{
		{name: "no layers"},
		{
			name:  "compressed sizes by digest",
			infos: []types.BlobInfo{blob(digestA, 10), blob(digestB, 20)},
			want:  map[string]string{key(digestA): "10", key(digestB): "20"},
		},
		{
			name:  "media type is not needed",
			infos: []types.BlobInfo{{Digest: digestA, Size: 10}},
			want:  map[string]string{key(digestA): "10"},
		},
		{
			name:  "other digest algorithm",
			infos: []types.BlobInfo{blob(sha512, 10)},
			want:  map[string]string{key(sha512): "10"},
		},
		{
			name:  "empty layer and the largest size",
			infos: []types.BlobInfo{blob(digestA, 0), blob(digestB, math.MaxInt64)},
			want:  map[string]string{key(digestA): "0", key(digestB): "9223372036854775807"},
		},
		{
			name:  "unknown size, as in Docker schema 1",
			infos: []types.BlobInfo{blob(digestA, -1), blob(digestB, math.MinInt64), blob(digestC, 30)},
			want:  map[string]string{key(digestC): "30"},
		},
		{
			name:  "encrypted",
			infos: []types.BlobInfo{blob(digestA, 10), encrypted},
			want:  map[string]string{key(digestA): "10"},
		},
		{
			name: "invalid digests",
			infos: []types.BlobInfo{
				blob("", 1), blob("sha256:", 2), blob("sha256:abc", 3), blob("md5:d41d8cd98f00b204e9800998ecf8427e", 4),
				blob(digest.Digest(strings.ToUpper(digestA.String())), 5), blob(digestA+"\n", 6), blob(digestA+digestA, 7),
				blob(digest.Digest(digestA.Encoded()), 8), blob("sha256:"+digest.Digest(strings.Repeat("g", 64)), 9),
				blob(digestB, 10),
			},
			want: map[string]string{key(digestB): "10"},
		},
		{
			name:  "nothing usable",
			infos: []types.BlobInfo{blob("", 1), blob(digestA, -1), encrypted},
		},
		{
			name:  "repeated",
			infos: []types.BlobInfo{blob(digestA, 32), blob(digestB, 20), blob(digestA, 32)},
			want:  map[string]string{key(digestA): "32", key(digestB): "20"},
		},
		{
			name:  "repeated with contradictory sizes",
			infos: []types.BlobInfo{blob(digestA, 10), blob(digestA, 12), blob(digestA, -1), blob(digestA, 11)},
			want:  map[string]string{key(digestA): "12"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 2 {
				got := FromManifest(tc.infos)
				if (got == nil) != (tc.want == nil) || !maps.Equal(got.Spec().GetAnnotations(), tc.want) {
					t.Errorf("got %v, want %v", got.Spec().GetAnnotations(), tc.want)
				}
				// What is present does not depend on the order of the layers.
				slices.Reverse(tc.infos)
			}
		})
	}
}

func TestFromManifestReportsTheLargestOfTooMany(t *testing.T) {
	infos := blobs("", MaxPerImage+100)
	got := FromManifest(infos).Spec().GetAnnotations()

	if len(got) != MaxPerImage {
		t.Fatalf("got %d layers, want %d", len(got), MaxPerImage)
	}

	for _, info := range infos {
		if _, reported := got[key(info.Digest)]; reported != (info.Size > 100) {
			t.Errorf("layer of %d bytes: reported %v", info.Size, reported)
		}
	}
}

func TestFromManifestChoosesByDigestAmongEqualSizes(t *testing.T) {
	infos := blobs("", MaxPerImage+100)
	for i := range infos {
		infos[i].Size = 7
	}

	got := FromManifest(infos).Spec().GetAnnotations()

	slices.SortFunc(infos, func(a, b types.BlobInfo) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })

	for i, info := range infos {
		if _, reported := got[key(info.Digest)]; reported != (i < MaxPerImage) {
			t.Errorf("layer %d in the order of digests: reported %v", i, reported)
		}
	}
}

func TestNil(t *testing.T) {
	var none *Layers

	if none.Spec() != nil {
		t.Error("Spec must stay nil without layers, as stock CRI-O leaves it")
	}

	if none.WireSize() != 0 {
		t.Errorf("WireSize of nothing: %d", none.WireSize())
	}
}

func TestMerge(t *testing.T) {
	layers := FromManifest([]types.BlobInfo{blob(digestA, 10)})

	for _, tc := range []struct {
		name     string
		layers   *Layers
		manifest map[string]string
		want     map[string]string
	}{
		{name: "nothing"},
		{name: "layers only", layers: layers, want: map[string]string{key(digestA): "10"}},
		{name: "empty annotations only", manifest: map[string]string{}},
		{
			name:     "annotations only",
			manifest: map[string]string{"org.opencontainers.image.title": "x", "": "y"},
			want:     map[string]string{"org.opencontainers.image.title": "x", "": "y"},
		},
		{
			name:     "both",
			layers:   layers,
			manifest: map[string]string{"title": "x"},
			want:     map[string]string{"title": "x", key(digestA): "10"},
		},
		{
			name:   "reserved prefix in any case",
			layers: layers,
			manifest: map[string]string{
				key(digestA): "99", key(digestB): "1", Prefix: "2", "IMAGELAYER." + digestB.String(): "3", "imagelayer.x": "4",
				"\u0130mageLayer.x": "5", "\u0131mageLayer.x": "6",
				"imageLayer": "kept", "imageLayers.x": "kept", " imageLayer.x": "kept", "x.imageLayer.x": "kept",
			},
			want: map[string]string{
				key(digestA): "10",
				"imageLayer": "kept", "imageLayers.x": "kept", " imageLayer.x": "kept", "x.imageLayer.x": "kept",
			},
		},
		{name: "reserved prefix without layers", manifest: map[string]string{key(digestB): "1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			manifest := maps.Clone(tc.manifest)

			got := tc.layers.Merge(tc.manifest)
			if (got == nil) != (tc.want == nil) || !maps.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}

			if !maps.Equal(manifest, tc.manifest) {
				t.Errorf("the annotations of the manifest changed from %v to %v", manifest, tc.manifest)
			}
		})
	}
}

func TestMergeSharesNothing(t *testing.T) {
	layers := FromManifest([]types.BlobInfo{blob(digestA, 10)})
	manifest := map[string]string{"title": "x"}

	merged := layers.Merge(manifest)
	clear(merged)

	if len(manifest) != 1 || len(layers.Spec().GetAnnotations()) != 1 {
		t.Errorf("writing to the result changed manifest annotations %v or layers %v", manifest, layers.Spec().GetAnnotations())
	}
}

func TestWireSize(t *testing.T) {
	sha512 := digest.SHA512.FromString("a") // an entry of more than 127 bytes has a longer length field

	for _, infos := range [][]types.BlobInfo{
		{blob(digestA, 0)},
		{blob(digestA, math.MaxInt64), blob(digestB, 1)},
		{blob(sha512, 123456)},
		blobs("", MaxPerImage),
	} {
		layers := FromManifest(infos)
		if got, want := layers.WireSize(), proto.Size(layers.Spec()); got != want {
			t.Errorf("%d layers: WireSize is %d, protobuf needs %d", len(infos), got, want)
		}
	}
}

func BenchmarkFromManifest(b *testing.B) {
	for _, n := range []int{1, 10, 100, MaxPerImage + 1} {
		infos := blobs("", n)

		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				FromManifest(infos)
			}
		})
	}
}

// BenchmarkListImages is what layers add to the encoding and the decoding of a
// list of 1,000 images of 10 layers.
func BenchmarkListImages(b *testing.B) {
	const images, layers = 1000, 10

	var stock, patched runtimeapi.ListImagesResponse

	for i := range images {
		d := digest.FromString(fmt.Sprint("image", i))
		image := &runtimeapi.Image{
			Id: d.Encoded(), RepoTags: []string{fmt.Sprintf("registry.example.com/team/image-%d:latest", i)},
			RepoDigests: []string{"registry.example.com/team/image@" + d.String()}, Size: 1e8,
		}
		stock.Images = append(stock.Images, image)

		withLayers := &runtimeapi.Image{
			Id: image.GetId(), RepoTags: image.GetRepoTags(), RepoDigests: image.GetRepoDigests(), Size: image.GetSize(),
			Spec: FromManifest(blobs(d.Encoded(), layers)).Spec(),
		}
		patched.Images = append(patched.Images, withLayers)
	}

	for _, list := range []struct {
		name string
		*runtimeapi.ListImagesResponse
	}{{"stock", &stock}, {"patched", &patched}} {
		wire, err := proto.Marshal(list)
		if err != nil {
			b.Fatal(err)
		}

		b.Run("marshal/"+list.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := proto.Marshal(list); err != nil {
					b.Fatal(err)
				}
			}

			b.ReportMetric(float64(len(wire)), "wire-B")
		})
		b.Run("unmarshal/"+list.name, func(b *testing.B) {
			for b.Loop() {
				var received runtimeapi.ListImagesResponse
				if err := proto.Unmarshal(wire, &received); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
