package imagelayers

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageLayers are the layers of one of 1,000 images, as a company has them: of ten layers,
// five are those of one of 20 bases, three of one of 100 stacks on these, two its own.
func imageLayers(image int) (infos []types.BlobInfo) {
	for i := range 10 {
		name := fmt.Sprint("own-", image, i)

		switch {
		case i < 5:
			name = fmt.Sprint("base-", image%20, i)
		case i < 8:
			name = fmt.Sprint("stack-", image%100, i)
		}

		infos = append(infos, types.BlobInfo{Digest: digest.FromString(name), Size: int64(20_000_000 + i)})
	}

	return infos
}

// preencoded has the encoding of each specification, as field 7 of an image.
type preencoded map[*runtimeapi.ImageSpec][]byte

func (p preencoded) add(spec *runtimeapi.ImageSpec) error {
	text, err := proto.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}

	p[spec] = protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), text)

	return nil
}

// marshal does what a codec of gRPC could do. Nothing encodes an image without one of
// its fields, so the field is taken away meanwhile: the list is written to.
func (p preencoded) marshal(list *runtimeapi.ListImagesResponse) (out []byte, err error) {
	out = make([]byte, 0, 1200*len(list.GetImages()))

	for _, image := range list.GetImages() {
		spec := image.GetSpec()
		image.Spec = nil
		out = protowire.AppendVarint(protowire.AppendTag(out, 1, protowire.BytesType), uint64(proto.Size(image)+len(p[spec])))
		out, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(out, image)
		image.Spec = spec

		if err != nil {
			return nil, fmt.Errorf("encoding: %w", err)
		}

		out = append(out, p[spec]...)
	}

	return out, nil
}

// BenchmarkEncodings is what was tried to make lists cheaper (lab/results): what
// the encoding takes at the server, the decoding at the client, and bytes between them.
func BenchmarkEncodings(b *testing.B) {
	interned, encoded := map[string]string{}, preencoded{}
	intern := func(text string) string {
		if known, found := interned[text]; found {
			return known
		}

		interned[text] = text

		return text
	}
	oneEntry := func(digestOf func(string) string) func([]types.BlobInfo) *runtimeapi.ImageSpec {
		return func(infos []types.BlobInfo) *runtimeapi.ImageSpec {
			var layers []string
			for _, info := range infos {
				layers = append(layers, digestOf(info.Digest.Encoded())+"="+strconv.FormatInt(info.Size, 10))
			}

			return &runtimeapi.ImageSpec{Annotations: map[string]string{"imageLayers": strings.Join(layers, ",")}}
		}
	}
	plain := func(list *runtimeapi.ListImagesResponse) ([]byte, error) { return proto.Marshal(list) }

	for _, try := range []struct {
		name    string
		spec    func([]types.BlobInfo) *runtimeapi.ImageSpec
		marshal func(*runtimeapi.ListImagesResponse) ([]byte, error)
	}{
		{"without layers", func([]types.BlobInfo) *runtimeapi.ImageSpec { return nil }, plain},
		{"as they are", func(infos []types.BlobInfo) *runtimeapi.ImageSpec { return FromManifest(infos).Spec() }, plain},
		{"shared strings", func(infos []types.BlobInfo) *runtimeapi.ImageSpec {
			shared := map[string]string{}
			for key, value := range FromManifest(infos).Spec().GetAnnotations() {
				shared[intern(key)] = intern(value)
			}

			return &runtimeapi.ImageSpec{Annotations: shared}
		}, plain},
		{"encoded before", func(infos []types.BlobInfo) *runtimeapi.ImageSpec {
			spec := FromManifest(infos).Spec()
			if err := encoded.add(spec); err != nil {
				b.Fatal(err)
			}

			return spec
		}, encoded.marshal},
		{"one entry an image", oneEntry(func(encoded string) string { return "sha256:" + encoded }), plain},
		{"one entry, digests in base64", oneEntry(func(encoded string) string {
			sum, err := hex.DecodeString(encoded)
			if err != nil {
				b.Fatal(err)
			}

			return base64.RawStdEncoding.EncodeToString(sum)
		}), plain},
	} {
		list := &runtimeapi.ListImagesResponse{}

		for i := range 1000 {
			d := digest.FromString(fmt.Sprint("image", i))
			list.Images = append(list.Images, &runtimeapi.Image{
				Id: d.Encoded(), RepoTags: []string{fmt.Sprintf("registry.example.com/team/image-%d:latest", i)},
				RepoDigests: []string{"registry.example.com/team/image@" + d.String()}, Size: 1e8, Spec: try.spec(imageLayers(i)),
			})
		}

		wire, err := try.marshal(list)
		if err != nil {
			b.Fatal(err)
		}

		if received := new(runtimeapi.ListImagesResponse); proto.Unmarshal(wire, received) != nil || !proto.Equal(received, list) {
			b.Fatalf("%s: the list is not what it was", try.name)
		}

		b.Run("marshal/"+try.name, func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				if _, err := try.marshal(list); err != nil {
					b.Fatal(err)
				}
			}

			b.ReportMetric(float64(len(wire)), "wire-B")
		})
		b.Run("unmarshal/"+try.name, func(b *testing.B) {
			for b.Loop() {
				var received runtimeapi.ListImagesResponse
				if err := proto.Unmarshal(wire, &received); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
