package images_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// serve starts a registry and returns its host:port.
func serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func build(t *testing.T, spec images.Image) v1.Image {
	t.Helper()
	image, err := images.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func push(t *testing.T, reference string, what remote.Taggable) *images.Pushed {
	t.Helper()
	pushed, err := images.Push(context.Background(), reference, what)
	if err != nil {
		t.Fatal(err)
	}
	return pushed
}

const size = 300 << 10

var entrypoint = []string{"/bin/true"}

// Every format is pushed and pulled again: digests, sizes and contents agree.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		format         images.Format
		compression    images.Compression
		manifest, blob types.MediaType
	}{
		"oci gzip":     {images.OCI, images.Gzip, types.OCIManifestSchema1, types.OCILayer},
		"oci zstd":     {images.OCI, images.Zstd, types.OCIManifestSchema1, types.OCILayerZStd},
		"oci tar":      {images.OCI, images.Uncompressed, types.OCIManifestSchema1, types.OCIUncompressedLayer},
		"docker gzip":  {images.Docker, images.Gzip, types.DockerManifestSchema2, types.DockerLayer},
		"docker tar":   {images.Docker, images.Uncompressed, types.DockerManifestSchema2, types.DockerUncompressedLayer},
		"the defaults": {"", "", types.OCIManifestSchema1, types.OCILayer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := build(t, images.Image{
				Format: test.format, Compression: test.compression, Entrypoint: entrypoint,
				Layers: []images.Layer{
					{Name: "base", Size: size, Files: map[string][]byte{"/bin/true": []byte("#!")}},
					{Name: "top", Size: size},
				},
			})
			reference := serve(t) + "/app:v1"
			pushed := push(t, reference, image)
			if pushed.MediaType != test.manifest {
				t.Errorf("manifest %s, want %s", pushed.MediaType, test.manifest)
			}
			if len(pushed.Layers) != 2 {
				t.Fatalf("%d layers, want 2", len(pushed.Layers))
			}
			for _, l := range pushed.Layers {
				if l.MediaType != test.blob {
					t.Errorf("layer %s, want %s", l.MediaType, test.blob)
				}
				// The content is incompressible, so this is about the size asked for.
				if l.Size < size || l.Size > size+size/50+4<<10 {
					t.Errorf("a layer of %d bytes has %d compressed", size, l.Size)
				}
			}
			if !strings.HasSuffix(pushed.ByDigest, "/app@"+pushed.Digest.String()) {
				t.Errorf("by digest: %s", pushed.ByDigest)
			}

			ref, err := namedInsecure(reference)
			if err != nil {
				t.Fatal(err)
			}
			pulled, err := remote.Image(ref)
			if err != nil {
				t.Fatal(err)
			}
			verify(t, pulled)
			files := contents(t, pulled)
			if files["bin/true"] != 2 {
				t.Errorf("files %v", files)
			}
		})
	}
}

func namedInsecure(reference string) (name.Reference, error) {
	return name.ParseReference(reference, name.Insecure)
}

// verify computes digests, sizes and diff IDs from what the registry sends.
func verify(t *testing.T, pulled v1.Image) {
	t.Helper()
	config, err := pulled.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := pulled.Layers()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := pulled.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	hash := func(open func() (io.ReadCloser, error)) (v1.Hash, int64) {
		reader, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		digest, n, err := v1.SHA256(reader)
		if err != nil {
			t.Fatal(err)
		}
		return digest, n
	}
	for i, l := range layers {
		if digest, n := hash(l.Compressed); digest != manifest.Layers[i].Digest || n != manifest.Layers[i].Size {
			t.Errorf("layer %d is %s with %d bytes, the manifest has %v", i, digest, n, manifest.Layers[i])
		}
		if diff, _ := hash(l.Uncompressed); diff != config.RootFS.DiffIDs[i] {
			t.Errorf("layer %d has diff ID %s, the config has %s", i, diff, config.RootFS.DiffIDs[i])
		}
	}
}

// contents returns the sizes of all files of an image.
func contents(t *testing.T, image v1.Image) map[string]int64 {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]int64{}
	for _, l := range layers {
		reader, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewReader(reader)
		for {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			files[header.Name] = header.Size
		}
		if err := reader.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Layers with the same name and size are the same layer in every image.
func TestSharedLayers(t *testing.T) {
	t.Parallel()
	host := serve(t)
	base := images.Layer{Name: "base", Size: size}
	one := push(t, host+"/one:v1", build(t, images.Image{Entrypoint: entrypoint, Layers: []images.Layer{base, {Name: "one", Size: size}}}))
	two := push(t, host+"/two:v1", build(t, images.Image{Entrypoint: entrypoint, Layers: []images.Layer{base, {Name: "two", Size: size}}}))
	if one.Layers[0].Digest != two.Layers[0].Digest {
		t.Error("the base differs")
	}
	if one.Layers[1].Digest == two.Layers[1].Digest {
		t.Error("layers of different names are the same")
	}
	longer := push(t, host+"/three:v1", build(t, images.Image{Entrypoint: entrypoint, Layers: []images.Layer{{Name: "base", Size: size + 1}}}))
	if longer.Layers[0].Digest == one.Layers[0].Digest {
		t.Error("layers of different sizes are the same")
	}
}

// The same config under two compressions: one image ID, two sets of layers.
func TestOneConfigTwoCompressions(t *testing.T) {
	t.Parallel()
	host := serve(t)
	spec := images.Image{Entrypoint: entrypoint, Layers: []images.Layer{{Name: "base", Size: size}}}
	gzip := push(t, host+"/app:gzip", build(t, spec))
	spec.Compression = images.Zstd
	zstd := push(t, host+"/app:zstd", build(t, spec))
	if gzip.Config != zstd.Config {
		t.Errorf("configs %s and %s", gzip.Config, zstd.Config)
	}
	if gzip.Digest == zstd.Digest || gzip.Layers[0].Digest == zstd.Layers[0].Digest {
		t.Error("the compression makes no difference")
	}
}

func TestIndex(t *testing.T) {
	t.Parallel()
	native := build(t, images.Image{Entrypoint: entrypoint, Layers: []images.Layer{{Name: "native", Size: size}}})
	foreign := build(t, images.Image{
		Entrypoint: entrypoint, Layers: []images.Layer{{Name: "foreign", Size: size}},
		Platform: v1.Platform{OS: "linux", Architecture: "s390x"},
	})
	index, err := images.Index(foreign, native)
	if err != nil {
		t.Fatal(err)
	}
	pushed := push(t, serve(t)+"/app:v1", index)
	if pushed.MediaType != types.OCIImageIndex {
		t.Errorf("media type %s", pushed.MediaType)
	}
	want, err := native.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(pushed.Layers) != 1 || pushed.Layers[0].Digest != want.Layers[0].Digest {
		t.Errorf("layers %v are not those of this machine's image", pushed.Layers)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
}

func TestAnnotations(t *testing.T) {
	t.Parallel()
	want := map[string]string{"imageLayer.sha256:" + strings.Repeat("0", 64): "12345", "org.example": "x"}
	image := build(t, images.Image{Entrypoint: entrypoint, Layers: []images.Layer{{Name: "l", Size: 10}}, Annotations: want})
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range want {
		if manifest.Annotations[key] != value {
			t.Errorf("annotation %s is %q", key, manifest.Annotations[key])
		}
	}
}

// Without an entrypoint of its own, an image runs and waits.
func TestPause(t *testing.T) {
	t.Parallel()
	image := build(t, images.Image{Layers: []images.Layer{{Name: "l", Size: 10}}})
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/pause" {
		t.Errorf("entrypoint %v", config.Config.Entrypoint)
	}
	if got := contents(t, image)["pause"]; got < 100<<10 {
		t.Errorf("a static binary of %d bytes", got)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec images.Image
		want string
	}{
		"zstd in schema 2":    {images.Image{Format: images.Docker, Compression: images.Zstd}, "no compression"},
		"unknown format":      {images.Image{Format: "squashfs"}, "no compression"},
		"unknown compression": {images.Image{Compression: "xz"}, "no compression"},
		"negative size":       {images.Image{Entrypoint: entrypoint, Layers: []images.Layer{{Name: "n", Size: -1}}}, "negative size"},
		"relative path": {
			images.Image{Entrypoint: entrypoint, Layers: []images.Layer{{Name: "n", Files: map[string][]byte{"bin/sh": nil}}}},
			"not an absolute path",
		},
	} {
		if _, err := images.Build(test.spec); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
}

func TestPushErrors(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	image := build(t, images.Image{Entrypoint: entrypoint, Layers: []images.Layer{{Name: "l", Size: 10}}})
	if _, err := images.Push(ctx, "not a reference", image); err == nil {
		t.Error("pushed to an impossible name")
	}
	host := serve(t)
	if _, err := images.Fetch(ctx, host+"/nothing:v1"); err == nil || !strings.Contains(err.Error(), host+"/nothing:v1") {
		t.Errorf("error %v for an image that is not there", err)
	}
}
