package layershare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	specsv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/types"
)

const (
	mb = 1_000_000
	// rate is what a download in these tests gets, in bytes a second.
	rate = 10 * mb
)

// node is a store, and the pulls into it. Everything in these tests is real but the
// store, the registry and time.
type node struct {
	pulls Pulls

	lock   sync.Mutex
	stored map[digest.Digest]bool
	// loaded counts the downloads of each layer, requests those of everything else
	// that only sharing asks for.
	loaded   map[digest.Digest]int
	requests int
	looks    int  // for a layer
	full     bool // its disk
	// unpacks, if not 0, is how long each of other pulls, one after the other, locks the
	// store.
	unpacks time.Duration
}

func newNode() *node {
	return &node{stored: map[digest.Digest]bool{}, loaded: map[digest.Digest]int{}}
}

func (n *node) has(layer types.BlobInfo) bool {
	n.lock.Lock()
	defer n.lock.Unlock()

	n.looks++

	return n.stored[layer.Digest]
}

func (n *node) times(layer specsv1.Descriptor) int {
	n.lock.Lock()
	defer n.lock.Unlock()

	return n.loaded[layer.Digest]
}

// image is what a registry serves under a name, and what is special about a pull of it.
type image struct {
	types.ImageReference // not used
	types.ImageSource    // not used

	node     *node
	name     string
	layers   []specsv1.Descriptor
	config   string // media type
	index    bool
	refused  digest.Digest                                   // a layer that the registry does not serve
	slow     time.Duration                                   // until the registry answers to requests that are made to share
	download func(context.Context, specsv1.Descriptor) error // instead of the usual one
	unpack   time.Duration                                   // of each layer
	silent   bool                                            // is downloaded in parts, without reports
	again    digest.Digest                                   // a layer that is in the store in another form
}

func (n *node) image(name string, layers ...specsv1.Descriptor) *image {
	return &image{node: n, name: name, layers: layers, config: specsv1.MediaTypeImageConfig}
}

func layer(name string, bytes int64) specsv1.Descriptor {
	return specsv1.Descriptor{MediaType: specsv1.MediaTypeImageLayerGzip, Digest: digest.FromString(name), Size: bytes}
}

func (i *image) StringWithinTransport() string { return "//" + i.name }

func (i *image) DockerReference() reference.Named {
	named, err := reference.ParseNormalizedNamed(i.name)
	if err != nil {
		panic(err)
	}

	return named
}

func (i *image) NewImageSource(context.Context, *types.SystemContext) (types.ImageSource, error) {
	return i.opened(), nil
}

// opened is the image as a source: both have a method Reference.
func (i *image) opened() types.ImageSource { return imageSource{i} }

type imageSource struct{ *image }

func (s imageSource) Close() error                    { return nil }
func (s imageSource) Reference() types.ImageReference { return s.image }
func (s imageSource) HasThreadSafeGetBlob() bool      { return true }
func (s imageSource) GetSignatures(context.Context, *digest.Digest) ([][]byte, error) {
	return nil, nil
}

func (s imageSource) LayerInfosForCopy(context.Context, *digest.Digest) ([]types.BlobInfo, error) {
	return nil, nil
}

func (s imageSource) GetManifest(ctx context.Context, member *digest.Digest) ([]byte, string, error) {
	single := specsv1.Manifest{
		MediaType: specsv1.MediaTypeImageManifest,
		Config:    specsv1.Descriptor{MediaType: s.config, Digest: digest.FromString("config"), Size: 1},
		Layers:    s.layers,
	}
	single.SchemaVersion = 2
	text := marshal(single)

	if !s.index {
		return text, specsv1.MediaTypeImageManifest, nil
	}

	if member != nil {
		s.node.lock.Lock()
		s.node.requests++
		s.node.lock.Unlock()

		if err := sleep(ctx, s.slow); err != nil {
			return nil, "", err
		}

		return text, specsv1.MediaTypeImageManifest, nil
	}

	index := specsv1.Index{MediaType: specsv1.MediaTypeImageIndex, Manifests: []specsv1.Descriptor{{
		MediaType: specsv1.MediaTypeImageManifest, Digest: digest.FromBytes(text), Size: int64(len(text)),
		Platform: &specsv1.Platform{OS: "linux", Architecture: "amd64"},
	}}}
	index.SchemaVersion = 2

	return marshal(index), specsv1.MediaTypeImageIndex, nil
}

func (s imageSource) GetBlob(ctx context.Context, blob types.BlobInfo, _ types.BlobInfoCache) (io.ReadCloser, int64, error) {
	if err := sleep(ctx, s.slow); err != nil {
		return nil, 0, err
	}

	s.node.lock.Lock()
	defer s.node.lock.Unlock()

	s.node.requests++

	if blob.Digest == s.refused {
		return nil, 0, errors.New("404")
	}

	return io.NopCloser(strings.NewReader("the beginning")), blob.Size, nil
}

func sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}

func marshal(value any) []byte {
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(value); err != nil {
		panic(err)
	}

	return text.Bytes()
}

// amd64 is what to choose from an index.
var amd64 = &types.SystemContext{OSChoice: "linux", ArchitectureChoice: "amd64"}

func (i *image) store() Store {
	has := func(layer types.BlobInfo) bool {
		if unpacks := i.node.unpacks; unpacks > 0 {
			time.Sleep(unpacks - time.Duration(time.Now().UnixNano())%unpacks)
		}

		return i.node.has(layer)
	}

	return Store{Has: has, Silent: func(types.BlobInfo) bool { return i.silent }}
}

// pull does what a copy into the store does, one layer after the other.
func (i *image) pull(ctx context.Context) error {
	pull := i.node.pulls.Begin(i, i.store())
	defer pull.End()

	source, err := pull.Source().NewImageSource(ctx, amd64)
	if err != nil {
		return err
	}

	if _, own := source.(imageSource); !own {
		return fmt.Errorf("the source is wrapped in a %T", source)
	}

	report := func(event types.ProgressEvent, layer specsv1.Descriptor) {
		if !i.silent {
			pull.Observe(&types.ProgressProperties{Event: event, Artifact: types.BlobInfo{Digest: layer.Digest}})
		}
	}

	for _, layer := range i.layers {
		if ctx.Err() != nil {
			return ctx.Err()
		}

		if i.node.has(types.BlobInfo{Digest: layer.Digest}) || layer.Digest == i.again {
			report(types.ProgressEventSkipped, layer)

			continue
		}

		report(types.ProgressEventNewArtifact, layer)
		i.node.lock.Lock()
		i.node.loaded[layer.Digest]++
		i.node.lock.Unlock()

		if i.download != nil {
			err = i.download(ctx, layer)
		} else {
			err = load(ctx, layer.Size, rate, func() { report(types.ProgressEventRead, layer) })
		}

		if err != nil {
			return err
		}

		// A copy says that it is done with a layer when that is unpacked.
		time.Sleep(i.unpack)
		i.node.lock.Lock()
		full := i.node.full
		i.node.stored[layer.Digest] = !full
		i.node.lock.Unlock()
		report(types.ProgressEventDone, layer)

		if full {
			return errors.New("no space left on device")
		}
	}

	return nil
}

// load takes as long as so many bytes at this rate, and reports once a second.
func load(ctx context.Context, bytes, rate int64, report func()) error {
	for ; bytes > 0; bytes -= rate {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(min(bytes, rate)) * time.Second / time.Duration(rate)):
			report()
		}
	}

	return ctx.Err()
}

// never is a download of which nothing ever comes.
func never(ctx context.Context, _ specsv1.Descriptor) error {
	<-ctx.Done()

	return ctx.Err()
}

// pulled is how a pull ended, and after what time.
type pulled struct {
	err  error
	took time.Duration
}

// pullAll pulls images, each a millisecond after the one before, and returns how that
// ended.
func pullAll(t *testing.T, images ...*image) []pulled {
	t.Helper()

	results := make([]pulled, len(images))

	var all sync.WaitGroup

	for i, image := range images {
		all.Go(func() {
			began := time.Now()
			results[i].err = image.pull(t.Context())
			results[i].took = time.Since(began)
		})
		time.Sleep(time.Millisecond)
	}

	all.Wait()

	return results
}

func readOf(layer specsv1.Descriptor) *types.ProgressProperties {
	return &types.ProgressProperties{Event: types.ProgressEventRead, Artifact: types.BlobInfo{Digest: layer.Digest}}
}

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}
