// Package images builds container images with layers of chosen sizes and
// pushes them to a plain HTTP registry.
//
// Layers are real tar archives. Their content is random, so that the compressed
// size is about the size asked for. It depends only on name and size, so that
// equal layers have equal digests in every image and every run:
//
//	base := images.Layer{Name: "base", Size: 60 << 20}
//	one, err := images.Build(images.Image{Layers: []images.Layer{base, {Name: "one", Size: 60 << 20}}})
//	two, err := images.Build(images.Image{Layers: []images.Layer{base, {Name: "two", Size: 60 << 20}}})
//	pushed, err := images.Push(ctx, registry+"/one:v1", one)
package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// Compression of a layer.
type Compression string

// The compressions of image formats. Docker schema 2 has no zstd.
const (
	Gzip         Compression = "gzip"
	Zstd         Compression = "zstd"
	Uncompressed Compression = "none"
)

// Format of a manifest.
type Format string

// The formats in use.
const (
	OCI    Format = "oci"
	Docker Format = "docker" // schema 2
)

// Layer describes one layer.
type Layer struct {
	// Name distinguishes layers of the same size. Equal name and size give equal
	// content, and with equal compression an equal digest.
	Name string
	// Size is the number of incompressible bytes in the layer; the compressed
	// layer is a little larger. 0 means none.
	Size int64
	// Files are additional files by their absolute path, executable for all.
	Files map[string][]byte
}

// Image describes one image. Equal descriptions give equal digests.
// Descriptions that differ only in Format or Compression have different
// manifests but, within one format, the same config and thus the same image ID.
type Image struct {
	Format      Format      // default OCI
	Compression Compression // default Gzip; for all layers
	Layers      []Layer     // base first
	Entrypoint  []string    // default: /pause, from a layer put below all others
	// Annotations of the manifest.
	Annotations map[string]string
	// Platform of the config; default linux and this machine's architecture.
	Platform v1.Platform
}

// Pushed is what the registry holds after a push.
type Pushed struct {
	// Reference is the name that was pushed, Digest that of the manifest or index.
	Reference string
	Digest    v1.Hash
	MediaType types.MediaType
	// ByDigest is the reference by repository and digest.
	ByDigest string
	// Config is the digest of the config, which CRI-O uses as image ID.
	Config v1.Hash
	// Layers as in the manifest, base first: digests and compressed sizes in
	// bytes. For an index, they are those of the manifest for this machine.
	Layers []v1.Descriptor
}

// Build makes an image.
func Build(spec Image) (v1.Image, error) {
	format := cmp.Or(spec.Format, OCI)
	compression := cmp.Or(spec.Compression, Gzip)
	media, ok := mediaTypes[format][compression]
	if !ok {
		return nil, fmt.Errorf("format %q has no compression %q", format, compression)
	}
	layers := spec.Layers
	entrypoint := spec.Entrypoint
	if len(entrypoint) == 0 {
		pause, err := pauseLayer()
		if err != nil {
			return nil, err
		}
		layers = append([]Layer{pause}, layers...)
		entrypoint = []string{pausePath}
	}

	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	if format == Docker {
		img = mutate.MediaType(empty.Image, types.DockerManifestSchema2)
		img = mutate.ConfigMediaType(img, types.DockerConfigJSON)
	}
	for _, l := range layers {
		made, err := build(l, compression, media)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Name, err)
		}
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:   made,
			History: v1.History{CreatedBy: "layer " + l.Name},
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS = cmp.Or(spec.Platform.OS, "linux")
	config.Architecture = cmp.Or(spec.Platform.Architecture, runtime.GOARCH)
	config.Config.Entrypoint = entrypoint
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	if len(spec.Annotations) > 0 {
		img = mutate.Annotations(img, spec.Annotations).(v1.Image)
	}
	return img, nil
}

// Model makes an OCI artifact of files, such as the weights of a model, each a blob of its Size random bytes. Pods mount
// it as an image volume.
func Model(files ...Layer) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, "application/vnd.cncf.model.config.v1+json")
	for _, file := range files {
		content, err := io.ReadAll(file.random())
		if err != nil {
			return nil, err
		}
		addendum := mutate.Addendum{
			Layer: static.NewLayer(content, "application/vnd.cncf.model.weight.v1.raw"), MediaType: "application/vnd.cncf.model.weight.v1.raw",
			Annotations: map[string]string{"org.opencontainers.image.title": file.Name},
		}
		if img, err = mutate.Append(img, addendum); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// random is Size bytes, which depend on the name and it alone.
func (l Layer) random() io.Reader { return io.LimitReader(rand.NewChaCha8(l.seed()), l.Size) }

func (l Layer) seed() [32]byte { return sha256.Sum256(fmt.Appendf(nil, "%s-%d", l.Name, l.Size)) }

// Index makes an OCI index of images, each under the platform of its config.
func Index(members ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, member := range members {
		config, err := member.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        member,
			Descriptor: v1.Descriptor{Platform: config.Platform()},
		})
	}
	return index, nil
}

// Push pushes an image or, with its members, an index to reference
// ("host:port/repository:tag") over plain HTTP, and returns what the registry
// then has.
func Push(ctx context.Context, reference string, what remote.Taggable) (*Pushed, error) {
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		return nil, err
	}
	switch what := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, what, options(ctx)...)
	case v1.Image:
		err = remote.Write(ref, what, options(ctx)...)
	default:
		// A bare manifest, whose blobs are already there or are not needed.
		err = remote.Put(ref, what, options(ctx)...)
	}
	if err != nil {
		return nil, fmt.Errorf("push %s: %w", reference, err)
	}
	return Fetch(ctx, reference)
}

// Fetch reads the manifest of reference from its registry. For an index, Layers
// are those of the manifest for this machine, which must exist.
func Fetch(ctx context.Context, reference string) (*Pushed, error) {
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		return nil, err
	}
	found, err := remote.Get(ref, options(ctx)...)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", reference, err)
	}
	image, err := found.Image()
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", reference, err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", reference, err)
	}
	return &Pushed{
		Reference: reference,
		Digest:    found.Digest,
		ByDigest:  ref.Context().Digest(found.Digest.String()).String(),
		MediaType: found.MediaType,
		Config:    manifest.Config.Digest,
		Layers:    manifest.Layers,
	}, nil
}

// options returns the options for talking to a registry on this machine.
func options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(direct),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithRetryBackoff(remote.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 4}),
	}
}

// direct talks to the registry without the proxies of the environment.
var direct = func() http.RoundTripper {
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	// The default of five seconds is too short on a machine that starts two
	// clusters.
	transport.DialContext = (&net.Dialer{Timeout: time.Minute}).DialContext
	return transport
}()

var mediaTypes = map[Format]map[Compression]types.MediaType{
	OCI: {
		Gzip:         types.OCILayer,
		Zstd:         types.OCILayerZStd,
		Uncompressed: types.OCIUncompressedLayer,
	},
	Docker: {
		Gzip:         types.DockerLayer,
		Uncompressed: types.DockerUncompressedLayer,
	},
}

// layer is a finished layer, held in memory.
type layer struct {
	compressed     []byte
	digest, diffID v1.Hash
	media          types.MediaType
	uncompress     func(io.Reader) (io.ReadCloser, error)
}

var _ v1.Layer = (*layer)(nil)

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layer) Size() (int64, error)                { return int64(len(l.compressed)), nil }
func (l *layer) MediaType() (types.MediaType, error) { return l.media, nil }
func (l *layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.compressed)), nil
}
func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return l.uncompress(bytes.NewReader(l.compressed))
}

// build writes the tar archive of a layer straight into its compressed form.
func build(spec Layer, compression Compression, media types.MediaType) (*layer, error) {
	var compressed bytes.Buffer
	compressed.Grow(int(spec.Size + spec.Size/64 + 1<<16))
	made := &layer{media: media}
	var writer io.WriteCloser
	switch compression {
	case Gzip:
		// The fastest level: random content gets no smaller at any other.
		writer, _ = gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
		made.uncompress = func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }
	case Zstd:
		// One thread, so that equal content gives equal bytes.
		encoder, err := zstd.NewWriter(&compressed, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		writer = encoder
		made.uncompress = func(r io.Reader) (io.ReadCloser, error) {
			decoder, err := zstd.NewReader(r)
			if err != nil {
				return nil, err
			}
			return decoder.IOReadCloser(), nil
		}
	case Uncompressed:
		writer = nopCloser{&compressed}
		made.uncompress = func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(r), nil }
	}
	diff := sha256.New()
	if err := archive(io.MultiWriter(writer, diff), spec); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	made.compressed = compressed.Bytes()
	var err error
	if made.digest, _, err = v1.SHA256(bytes.NewReader(made.compressed)); err != nil {
		return nil, err
	}
	made.diffID = v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", diff.Sum(nil))}
	return made, nil
}

// archive writes the tar archive. All times are zero, so that equal content
// gives equal bytes.
func archive(w io.Writer, spec Layer) error {
	if spec.Size < 0 {
		return fmt.Errorf("negative size %d", spec.Size)
	}
	archive := tar.NewWriter(w)
	for _, path := range slices.Sorted(maps.Keys(spec.Files)) {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s is not an absolute path", path)
		}
		header := &tar.Header{Name: filepath.Clean(path)[1:], Mode: 0o755, Size: int64(len(spec.Files[path]))}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(spec.Files[path]); err != nil {
			return err
		}
	}
	if spec.Size > 0 {
		seed := spec.seed()
		header := &tar.Header{Name: fmt.Sprintf("layers/%x", seed[:8]), Mode: 0o644, Size: spec.Size}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(archive, spec.random()); err != nil {
			return err
		}
	}
	return archive.Close()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

//go:embed pause/main.go
var pauseSource []byte

const pausePath = "/pause"

// Pause returns the program that test images run: a static binary that waits for a
// signal to stop, whatever its arguments are. The Go toolchain compiles it and caches it.
var Pause = sync.OnceValues(func() (_ []byte, err error) {
	dir, err := os.MkdirTemp("", "layer-locality-pause-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "pause")
	if err := os.WriteFile(source, pauseSource, 0o600); err != nil {
		return nil, err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", binary, source)
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the pause binary (is the Go toolchain on PATH?): %w: %s", err, bytes.TrimSpace(out))
	}
	return os.ReadFile(binary)
})

// pauseLayer returns a layer with that program.
func pauseLayer() (Layer, error) {
	program, err := Pause()
	return Layer{Name: "pause", Files: map[string][]byte{pausePath: program}}, err
}
