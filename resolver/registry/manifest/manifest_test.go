package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	podman "go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/internal/registrytest"
)

func encode(t testing.TB, content any) []byte {
	t.Helper()
	body, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestInvalidContent(t *testing.T) {
	valid := digest.FromString("layer").String()
	layer := func(digest string, size any) object {
		return object{"schemaVersion": 2, "config": object{}, "layers": []object{{"digest": digest, "size": size}}}
	}
	entries := make([]object, maxEntries+1)
	for i := range entries {
		entries[i] = entryOf(digest.FromString(fmt.Sprint(i)), "linux/amd64")
	}
	for name, c := range map[string]struct {
		content any
		text    string
	}{
		"schema 1":             {object{"schemaVersion": 1, "fsLayers": []object{{"blobSum": valid}}}, "schema 1"},
		"schema 1 in 2":        {object{"schemaVersion": 2, "config": object{}, "layers": []object{}, "fsLayers": []object{}}, "schema 1"},
		"both":                 {object{"schemaVersion": 2, "layers": []object{}, "manifests": []object{}}, "or both"},
		"both by config":       {object{"schemaVersion": 2, "config": object{}, "manifests": []object{}}, "or both"},
		"neither":              {object{"schemaVersion": 2}, "neither"},
		"an array":             {[]object{}, "neither"},
		"layers of what":       {object{"schemaVersion": 2, "config": object{}, "layers": "none"}, "neither"},
		"negative size":        {layer(valid, -1), "layer 0: no size"},
		"no size":              {layer(valid, nil), "layer 0: no size"},
		"a fraction":           {layer(valid, 1.5), "neither"},
		"huge size":            {layer(valid, int64(maxLayerSize)+1), "layer 0: no size"},
		"size beyond int64":    {layer(valid, 1e30), "neither"},
		"largest int64":        {layer(valid, int64(math.MaxInt64)), "layer 0: no size"},
		"no digest":            {layer("", 1), "layer 0: no valid digest"},
		"short digest":         {layer("sha256:00", 1), "layer 0: no valid digest"},
		"upper case digest":    {layer("sha256:"+strings.Repeat("A", 64), 1), "layer 0: no valid digest"},
		"sha384":               {layer("sha384:"+strings.Repeat("0", 96), 1), "layer 0: digest is neither"},
		"two sizes":            {manifestOf(layerOf("a", 1), layerOf("a", 2)), "layer 1: another size"},
		"unknown type":         {object{"mediaType": "text/plain", "config": object{}, "layers": []object{}}, "media type"},
		"huge type":            {object{"mediaType": strings.Repeat("a", 1<<20), "config": object{}, "layers": []object{}}, "media type"},
		"index as manifest":    {object{"mediaType": manifestType, "manifests": []object{}}, "media type"},
		"manifest as index":    {object{"mediaType": indexType, "layers": []object{}}, "media type"},
		"too many in an index": {indexOf(entries...), "1000 manifests"},
	} {
		_, err := Parse(encode(t, c.content), "")
		if err == nil || !strings.Contains(err.Error(), c.text) || len(err.Error()) > maxText {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
	if _, err := Parse([]byte(`{"schemaVersion":2,"config":{},"layers":[]}{}`), ""); err == nil {
		t.Error("what follows a manifest is overlooked")
	}
}

func TestValidContent(t *testing.T) {
	const dockerManifest, dockerList = "application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.distribution.manifest.list.v2+json"
	for _, c := range []struct {
		name, contentType, body, want string
		layers                        int
	}{
		{"stated", "text/plain", `{"mediaType":"` + dockerManifest + `","config":{},"layers":[]}`, dockerManifest, 0},
		{"sent", dockerManifest + "; charset=utf-8", `{"config":{},"layers":[]}`, dockerManifest, 0},
		{"sent list", dockerList, `{"manifests":[]}`, dockerList, 0},
		{"by its looks", "application/octet-stream", `{"config":{},"layers":[]}`, manifestType, 0},
		{"index by its looks", "", `{"manifests":[]}`, indexType, 0},
		{"from scratch", "", `{"config":{},"layers":null}`, manifestType, 0},
		{"artifact", "", `{"mediaType":"` + manifestType + `","artifactType":"application/vnd.cncf.model","config":{"mediaType":"application/vnd.oci.empty.v1+json"},"layers":[{"digest":"sha256:` + strings.Repeat("0", 64) + `","size":1099511627776}]}`, manifestType, 1},
	} {
		content, err := Parse([]byte(c.body), c.contentType)
		if err != nil || string(content.mediaType) != c.want || len(content.layers) != c.layers {
			t.Errorf("%s: %+v, %v, want %s", c.name, content, err, c.want)
		}
	}
}

// A list of a million empty descriptors is small on the wire.
func TestMemoryOfHostileContent(t *testing.T) {
	for _, field := range []string{"layers", "manifests"} {
		body := []byte(`{"` + field + `":[` + strings.Repeat("{},", (maxBody-100)/3) + `{}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Parse(body, ""); err == nil {
			t.Errorf("%s: no error", field)
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 4*maxBody {
			t.Errorf("%s: %d bytes of %d made %d", field, maxBody, len(body), got)
		}
	}
}

func TestChoose(t *testing.T) {
	id := digest.FromString
	nested := entryOf(id("nested"), "linux/amd64")
	// Nodes do not report theirs: the first entry counts.
	windows := func(name, version string) object {
		entry := entryOf(id(name), "windows/amd64")
		entry["platform"] = object{"os": "windows", "architecture": "amd64", "os.version": version}
		return entry
	}
	nested["mediaType"] = indexType
	for _, c := range []struct {
		name      string
		entries   []object
		platforms []string
		want      string
	}{
		{"one", []object{entryOf(id("a"), "linux/amd64")}, amd64, "a linux/amd64"},
		{"another os", []object{entryOf(id("w"), "windows/amd64")}, amd64, ""},
		{"the first of two", []object{entryOf(id("a"), "linux/amd64"), entryOf(id("b"), "linux/amd64")}, amd64, "a linux/amd64"},
		{"no variant of amd64", []object{entryOf(id("v3"), "linux/amd64/v3"), entryOf(id("a"), "linux/amd64")}, amd64, "a linux/amd64"},
		{"only a variant of amd64", []object{entryOf(id("v3"), "linux/amd64/v3")}, amd64, ""},
		{"a variant that its author made up", []object{entryOf(id("a"), "linux/amd64/\x1b]0;"+strings.Repeat("v", 100)), entryOf(id("a"), "linux/amd64")}, amd64, "a linux/amd64"},
		{"arm v7 and another variant", []object{entryOf(id("a"), "linux/arm/x"), entryOf(id("a"), "linux/arm/v7")}, []string{"linux/arm"}, "a linux/arm/v7"},
		{"arm64 v8", []object{entryOf(id("a"), "linux/arm64"), entryOf(id("v8"), "linux/arm64/v8")}, []string{"linux/arm64"}, "v8 linux/arm64/v8"},
		{"arm64", []object{entryOf(id("v9"), "linux/arm64/v9"), entryOf(id("a"), "linux/arm64")}, []string{"linux/arm64"}, "a linux/arm64"},
		{"arm", []object{entryOf(id("v5"), "linux/arm/v5"), entryOf(id("v7"), "linux/arm/v7"), entryOf(id("v6"), "linux/arm/v6")}, []string{"linux/arm"}, "v7 linux/arm/v7"},
		{"arm v6 at best", []object{entryOf(id("v5"), "linux/arm/v5"), entryOf(id("v6"), "linux/arm/v6")}, []string{"linux/arm"}, "v6 linux/arm/v6"},
		{"variant wanted", []object{entryOf(id("v7"), "linux/arm/v7"), entryOf(id("v6"), "linux/arm/v6")}, []string{"linux/arm/v6"}, "v6 linux/arm/v6"},
		{"attestation", []object{entryOf(id("x"), "unknown/unknown")}, amd64, ""},
		{"without platform", []object{entryOf(id("x"), ""), entryOf(id("a"), "linux/amd64")}, amd64, "a linux/amd64"},
		{"only without platform", []object{entryOf(id("x"), ""), entryOf(id("y"), "")}, amd64, "x linux/amd64"},
		{"one for two", []object{entryOf(id("a"), "linux/amd64"), entryOf(id("a"), "linux/arm64")}, []string{"linux/amd64", "linux/arm64"}, "a linux/amd64"},
		{"nested", []object{nested}, amd64, "nested linux/amd64"},
		{"versions of Windows", []object{windows("a", "10.0.20348.1"), windows("b", "10.0.26100.1")}, []string{"windows/amd64"}, "a windows/amd64"},
		{"versions of Windows, with containerd", []object{windows("a", "10.0.20348.1"), windows("b", "10.0.26100.1")}, []string{"windows/amd64" + Containerd}, "a windows/amd64"},
		{"no platforms", []object{entryOf(id("a"), "linux/amd64")}, nil, ""},
		{"platforms that are none", []object{entryOf(id("a"), "linux/amd64")}, []string{"", "linux", "linux/amd64/a/b", "/"}, ""},
		{"nothing", nil, amd64, ""},
	} {
		content, err := Parse(encode(t, object{"manifests": append([]object{}, c.entries...)}), "")
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		chosen, err := content.Choose(c.platforms)
		if c.want == "" {
			if none := (*PlatformNotFound)(nil); !errors.As(err, &none) {
				t.Errorf("%s: %v, %v", c.name, chosen, err)
			}
			continue
		}
		name, platform, _ := strings.Cut(c.want, " ")
		if err != nil || len(chosen) != 1 || chosen[0].Digest != id(name) || chosen[0].Platform != platform {
			t.Errorf("%s: %v, %v, want %s", c.name, chosen, err, c.want)
		}
	}
	content, err := Parse([]byte(`{"manifests":[{"digest":"sha256:0","platform":{"os":"linux","architecture":"amd64"}}]}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := content.Choose(amd64); err == nil || errors.As(err, new(*PlatformNotFound)) {
		t.Errorf("a digest that is none: %v", err)
	}
}

func FuzzManifest(f *testing.F) {
	id := digest.FromString("a")
	for _, seed := range []object{
		manifestOf(), manifestOf(layerOf("a", 1), layerOf("b", 2)), indexOf(entryOf(id, "linux/arm64/v8"), entryOf(id, "")),
		{"schemaVersion": 1, "fsLayers": []object{}}, {"layers": []object{}, "manifests": []object{}},
	} {
		f.Add(encode(f, seed), manifestType)
		f.Add(encode(f, seed), "")
	}
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		content, err := Parse(body, contentType)
		if err != nil {
			if len(err.Error()) > maxText {
				t.Errorf("%v", err)
			}
			return
		}
		if content.Index {
			chosen, err := content.Choose([]string{"linux/amd64", "linux/arm64", "linux/arm"})
			if (err == nil) != (len(chosen) > 0) || len(content.entries) > maxEntries {
				t.Errorf("%v, %v", chosen, err)
			}
			for _, choice := range chosen {
				if imageref.ValidateDigest(choice.Digest) != nil || len(choice.Platform) > 64 {
					t.Errorf("%v", choice)
				}
			}
			return
		}
		spec := content.Spec(digest.FromBytes(body), "")
		var sum int64
		seen := map[string]bool{}
		for _, layer := range spec.Layers {
			if imageref.ValidateDigest(digest.Digest(layer.Digest)) != nil || layer.Size < 0 || layer.Size > maxLayerSize || seen[layer.Digest] {
				t.Errorf("layer %+v", layer)
			}
			seen[layer.Digest] = true
			sum += layer.Size
		}
		if spec.Size != sum || sum < 0 || len(spec.Layers) > v1alpha1.MaxLayers || len(spec.MediaType) > 255 {
			t.Errorf("%d layers, size %d, sum %d, media type %q", len(spec.Layers), spec.Size, sum, spec.MediaType)
		}
	})
}

// Of an index with several manifests for a platform, CRI-O's and containerd's choices are
// those of the libraries that they pull with.
func TestChooseAsRuntimes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	differ := 0
	for range 3000 {
		var entries []object
		for range 1 + random.IntN(8) {
			entry := entryOf(digest.FromString(fmt.Sprint(random.Uint64())), pick(
				"", "linux/amd64", "linux/amd64", "linux/amd64/v2", "linux/amd64/v3", "linux/386", "linux/arm64", "linux/arm64/v8", "linux/arm64/v9",
				"linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/arm", "windows/amd64", "unknown/unknown",
			))
			if random.IntN(2) == 0 {
				entry["annotations"] = object{pick("io.github.containers.compression.zstd", "other"): pick("true", "true", "false")}
			}
			entries = append(entries, entry)
		}
		node := ocispec.Platform{OS: "linux", Architecture: pick("amd64", "arm64", "arm", "s390x")}
		node.Variant = map[string]string{"arm64": "v8", "arm": "v7"}[node.Architecture]
		name := node.OS + "/" + node.Architecture
		body := encode(t, indexOf(entries...))

		list, err := podman.ListFromBlob(body, indexType)
		if err != nil {
			t.Fatal(err)
		}
		crio, err := list.ChooseInstance(&types.SystemContext{OSChoice: node.OS, ArchitectureChoice: node.Architecture, VariantChoice: node.Variant})
		if err != nil {
			crio = ""
		}
		containerd := containerdsChoice(t, body, node)
		if crio != containerd {
			differ++
		}
		content, err := Parse(body, "")
		if err != nil {
			t.Fatal(err)
		}
		for asked, want := range map[string]digest.Digest{name: crio, name + Containerd: containerd} {
			chosen, err := content.Choose([]string{asked})
			switch {
			case want == "" && err == nil, want != "" && err != nil:
				t.Fatalf("%s: %v, %v, want %q of %s", asked, chosen, err, want, body)
			case want != "" && (chosen[0].Digest != want || !strings.HasPrefix(chosen[0].Platform, name)):
				t.Fatalf("%s: %v, want %s of %s", asked, chosen, want, body)
			}
		}
	}
	if differ == 0 {
		t.Error("the runtimes never differ: nothing is shown")
	}
}

// containerdsChoice asks containerd's library pairwise: the manifest that no other goes
// before.
func containerdsChoice(t *testing.T, body []byte, node ocispec.Platform) digest.Digest {
	t.Helper()
	var index ocispec.Index
	if err := json.Unmarshal(body, &index); err != nil {
		t.Fatal(err)
	}
	matcher := platforms.Only(node)
	var best *ocispec.Descriptor
	for i := range index.Manifests {
		m := &index.Manifests[i]
		switch {
		case m.Platform != nil && !matcher.Match(*m.Platform):
		case best == nil, best.Platform == nil && m.Platform != nil,
			best.Platform != nil && m.Platform != nil && matcher.Less(*m.Platform, *best.Platform):
			best = m
		}
	}
	if best == nil {
		return ""
	}
	return best.Digest
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	// maxBody is how much of an answer package registry reads (bytes).
	maxBody = 4 << 20
	// maxText is more than any text of an error has.
	maxText = 512
)

var amd64 = []string{"linux/amd64"}

type object = registrytest.Object

var layerOf, manifestOf, entryOf, indexOf = registrytest.LayerOf, registrytest.ManifestOf, registrytest.EntryOf, registrytest.IndexOf
