package manifest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/ocimanifest"
)

func digest(name string) string { return fmt.Sprintf("sha256:%064x", name) }

// image returns a manifest with layers of one byte.
func image(layers ...string) string {
	list := make([]string, len(layers))
	for i, l := range layers {
		list[i] = fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":1}`, digest(l))
	}
	return fmt.Sprintf(`{"schemaVersion":2,"config":{"digest":%q,"size":3},"layers":[%s]}`, digest("config"), strings.Join(list, ","))
}

func TestParse(t *testing.T) {
	one := []v1alpha1.ImageLayer{{Digest: digest("b"), Size: 1}, {Digest: digest("a"), Size: 1}, {Digest: digest("b"), Size: 1}}
	for name, test := range map[string]struct {
		text string
		want Manifest
	}{
		"in order":   {image("b", "a", "b"), Manifest{Config: digest("config"), Layers: one}},
		"no layers":  {image(), Manifest{Config: digest("config"), Layers: []v1alpha1.ImageLayer{}}},
		"an index":   {fmt.Sprintf(`{"manifests":[{"digest":%q,"platform":{"os":"linux","architecture":"arm","variant":"v7","os.features":[]}},{"digest":%q,"platform":{"os":"linux","architecture":"arm","os.features":["x"]}},{"digest":"x"},{"digest":%q}]}`, digest("m"), digest("of features"), digest("n")), Manifest{Manifests: []Entry{{digest("m"), &ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}}, {Digest: digest("n")}}}},
		"Docker's":   {strings.ReplaceAll(image("b", "a", "b"), "oci.image.layer.v1.tar+gzip", "docker.image.rootfs.diff.tar.gzip"), Manifest{Config: digest("config"), Layers: one}},
		"with a hat": {`{"manifests":null,` + image("b", "a", "b")[1:], Manifest{Config: digest("config"), Layers: one}},
	} {
		got, err := Parse([]byte(test.text))
		if err != nil || !reflect.DeepEqual(got, &test.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

func TestRefused(t *testing.T) {
	many := make([]string, v1alpha1.MaxLayers+1)
	for name, test := range map[string]struct{ text, why string }{
		"no JSON":        {"{", "unexpected end"},
		"schema 1":       {`{"schemaVersion":1,"fsLayers":[]}`, "schema 1"},
		"an artifact":    {`{"schemaVersion":2,"layers":[]}`, "of no image"},
		"an odd config":  {`{"config":{"digest":"../../etc"}}`, "of no image"},
		"an empty index": {`{"manifests":[]}`, "without manifests"},
		"no list":        {`{"manifests":{}}`, "not a list"},
		"no digests":     {`{"manifests":[{"digest":"x"}]}`, "without manifests"},
		"too large":      {strings.Repeat(" ", MaxBytes+1), "bytes"},
	} {
		if m, err := Parse([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.why) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	// What is an image, but has no layers to report.
	for name, test := range map[string]struct{ text, why string }{
		"many layers":   {image(many...), "more than 512 layers"},
		"encrypted":     {strings.Replace(image("a", "b"), "tar+gzip", "tar+gzip+encrypted", 1), "encrypted"},
		"negative":      {strings.Replace(image("a"), `"size":1}`, `"size":-1}`, 1), "-1 bytes"},
		"larger than 1": {strings.Replace(image("a"), `"size":1}`, `"size":1099511627777}`, 1), "1099511627777 bytes"},
		"no size":       {strings.Replace(image("a"), `,"size":1}`, `}`, 1), "-1 bytes"},
		"no digest":     {strings.Replace(image("a"), digest("a"), "latest", 1), "latest"},
	} {
		m, err := Parse([]byte(test.text))
		if err != nil || m.Config == "" || m.Layers != nil || m.Unknown == nil || !strings.Contains(m.Unknown.Error(), test.why) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// A list that no runtime would take costs no memory in proportion to its length.
func TestManyDescriptors(t *testing.T) {
	text := []byte(`{"manifests":[` + strings.Repeat("{},", 1_000_000) + `{}]}`)
	result := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if m, err := Parse(text); err == nil {
				b.Fatalf("%+v", m)
			}
		}
	})
	if got := result.AllocedBytesPerOp(); got > 1<<20 {
		t.Errorf("%d bytes for a text of %d", got, len(text))
	}
}

// FuzzParse: what is accepted can be used without another look.
func FuzzParse(f *testing.F) {
	for _, text := range []string{image("a", "b"), image(), `{"manifests":[{"digest":"` + digest("a") + `"}]}`, `{"schemaVersion":1}`, `[]`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse([]byte(text))
		if err != nil {
			return
		}
		if (m.Config == "") == (len(m.Manifests) == 0) || len(m.Layers) > v1alpha1.MaxLayers || len(m.Manifests) > ocimanifest.MaxList {
			t.Errorf("%+v", m)
		}
		for _, l := range m.Layers {
			if !v1alpha1.IsDigest(l.Digest) || l.Size < 0 || l.Size > v1alpha1.MaxLayerBytes {
				t.Errorf("%+v", l)
			}
		}
	})
}
