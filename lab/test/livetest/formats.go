package livetest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// Format is an image in a form of its own.
type Format struct {
	Name string
	What remote.Taggable
	// ByDigest is whether it is pulled by its digest, and so has no tag.
	ByDigest bool
}

// Push pushes it to a registry. Its Reference is what it is pulled by.
func (f Format) Push(t testing.TB, registry string) *images.Pushed {
	t.Helper()
	pushed, err := images.Push(t.Context(), registry+"/"+f.Name+":v1", f.What)
	must(t, err)
	if f.ByDigest {
		pushed.Reference = pushed.ByDigest
	}
	return pushed
}

// The layers of several formats.
var formatBase, formatTop = images.Layer{Name: "base", Size: 2_000_000}, images.Layer{Name: "top", Size: 20_000}

// Formats returns images in the order in which they are to be pulled; one of them has so many
// layers.
func Formats(t testing.TB, most int) []Format {
	t.Helper()
	build := func(image images.Image) v1.Image {
		t.Helper()
		built, err := images.Build(image)
		must(t, err)
		return built
	}
	index := func(members ...v1.Image) v1.ImageIndex {
		t.Helper()
		made, err := images.Index(members...)
		must(t, err)
		return made
	}
	layers := func(name string, sizes ...int64) (all []images.Layer) {
		for i, size := range sizes {
			all = append(all, images.Layer{Name: fmt.Sprint(name, i), Size: size})
		}
		return all
	}
	var all []Format
	// In this order containerd does not fetch most layers: the files of "zstd" and "plain" are there
	// already, with another compression.
	for _, next := range []Format{
		{Name: "gzip", What: build(images.Image{Layers: []images.Layer{formatBase, formatTop}})},
		{Name: "docker", What: build(images.Image{Layers: []images.Layer{formatTop, formatBase, formatTop}, Format: images.Docker})},
		{Name: "zstd", What: build(images.Image{Layers: []images.Layer{formatBase}, Compression: images.Zstd})},
		{Name: "plain", What: build(images.Image{Layers: []images.Layer{formatTop}, Compression: images.Uncompressed})},
	} {
		all = append(all, next, Format{Name: next.Name + "-index", What: index(next.What.(v1.Image))})
	}
	// An index begins with an image for other machines, which is not fetched.
	other := v1.Platform{OS: "linux", Architecture: "arm64"}
	if runtime.GOARCH == other.Architecture {
		other.Architecture = "amd64"
	}
	platforms := func(name string, f images.Format) v1.ImageIndex {
		t.Helper()
		return index(build(images.Image{Format: f, Platform: other, Layers: layers(name+"-other", 70_000)}),
			build(images.Image{Format: f, Layers: layers(name, 40_000, 1<<20)}))
	}
	// As builders add it, for no platform.
	attestation := mutate.IndexAddendum{
		Add:        build(images.Image{Entrypoint: []string{"/none"}, Layers: layers("attestation", 500)}),
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}, Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}},
	}
	return append(all,
		Format{Name: "list", What: mutate.IndexMediaType(platforms("list", images.Docker), types.DockerManifestList)},
		Format{Name: "attested", What: mutate.AppendManifests(platforms("attested", images.OCI), attestation)},
		Format{Name: "index-by-digest", What: platforms("index-by-digest", images.OCI), ByDigest: true},
		Format{Name: "by-digest", What: build(images.Image{Layers: layers("by-digest", 123_456, 1<<20)}), ByDigest: true},
		Format{Name: "shared", What: build(images.Image{Layers: append([]images.Layer{formatBase}, layers("shared", 200_000, 3000)...)})},
		Format{Name: "small", What: build(images.Image{Layers: layers("small", 900, 0)})},
		Format{Name: "many-layers", What: build(images.Image{Layers: layers("many", append(slices.Repeat([]int64{300}, most-1), 1<<20)...)})},
		// An author's claims do not count.
		Format{Name: "annotated", What: build(images.Image{Layers: layers("annotated", 50_000, 1<<20), Annotations: map[string]string{AnnotationPrefix + "sha256:" + strings.Repeat("1", 64): "1073741824"}})},
	)
}

// Recompressed returns the first one of Formats with the same configuration, and with layers of
// another form.
func Recompressed(t testing.TB) Format {
	t.Helper()
	image, err := images.Build(images.Image{Layers: []images.Layer{formatBase, formatTop}, Compression: images.Zstd})
	must(t, err)
	return Format{Name: "gzip", What: image}
}
