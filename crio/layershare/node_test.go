package layershare

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
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
	looks    int   // for a layer
	full     bool  // its disk
	link     int64 // what all connections together get, in bytes a second, if it is not 0
	flows    int64 // connections in use
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
	rejected bool                                            // by the policy for signatures
	asks     time.Duration                                   // how long that takes
	mute     bool                                            // of layers that are asked for, nothing comes
	reads    int64                                           // what it measures, in bytes a second; rate if it is 0
	now      *Pull                                           // that goes on
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

	if s.mute {
		return io.NopCloser(muted{ctx}), blob.Size, nil
	}

	return &stream{ctx: ctx, node: s.node, left: blob.Size, rate: cmp.Or(s.reads, rate)}, blob.Size, nil
}

// stream is the content of a layer, as fast as a download is.
type stream struct {
	ctx  context.Context
	node *node
	left int64
	rate int64
	// reading is set during a read: real streams are not safe then.
	reading atomic.Bool
}

func (s *stream) Read(p []byte) (int, error) {
	s.reading.Store(true)
	defer s.reading.Store(false)

	if s.left == 0 {
		return 0, io.EOF
	}

	s.node.flow(1)
	defer s.node.flow(-1)

	n := min(s.left, int64(len(p)), int64(20*time.Millisecond/s.node.time(1, s.rate)))
	if err := sleep(s.ctx, s.node.time(n, s.rate)); err != nil {
		return 0, err
	}

	s.left -= n

	return int(n), nil
}

func (s *stream) Close() error {
	if s.reading.Load() {
		panic("a stream is closed while it is read")
	}

	return nil
}

// muted is content that never comes.
type muted struct{ ctx context.Context }

func (m muted) Read([]byte) (int, error) {
	<-m.ctx.Done()

	return 0, m.ctx.Err()
}

// flow counts one connection more, or less, in use.
func (n *node) flow(change int64) {
	n.lock.Lock()
	defer n.lock.Unlock()

	n.flows += change
}

// time is how long so many bytes take, at this rate, or less on a full link.
func (n *node) time(bytes, rate int64) time.Duration {
	n.lock.Lock()
	defer n.lock.Unlock()

	if n.link > 0 {
		rate = min(rate, n.link/n.flows)
	}

	return time.Duration(bytes) * time.Second / time.Duration(rate)
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

	allowed := func(ctx context.Context, opened types.ImageSource, member *digest.Digest) bool {
		return sleep(ctx, i.asks) == nil && opened == i.opened() && (member != nil) == i.index && !i.rejected
	}

	return Store{Has: has, Silent: func(types.BlobInfo) bool { return i.silent }, Allowed: allowed}
}

// pull does what a copy into the store does, one layer after the other.
func (i *image) pull(ctx context.Context) error {
	pull := i.node.pulls.Begin(i, i.store())
	defer pull.End()

	i.now = pull

	source, err := pull.Source().NewImageSource(ctx, amd64)
	if err != nil {
		return err
	}

	if _, own := source.(imageSource); !own {
		return fmt.Errorf("the source is wrapped in a %T", source)
	}

	for _, layer := range i.layers {
		if ctx.Err() != nil {
			return ctx.Err()
		}

		if i.node.has(types.BlobInfo{Digest: layer.Digest}) || layer.Digest == i.again {
			i.report(types.ProgressEventSkipped, layer, 0)

			continue
		}

		i.report(types.ProgressEventNewArtifact, layer, 0)
		i.node.lock.Lock()
		i.node.loaded[layer.Digest]++
		i.node.lock.Unlock()

		if i.download != nil {
			err = i.download(ctx, layer)
		} else {
			err = i.load(ctx, layer, layer.Size, rate)
		}

		if err != nil {
			return err
		}

		// A copy reports that it is done with a layer when that is unpacked.
		time.Sleep(i.unpack)
		i.node.lock.Lock()
		full := i.node.full
		i.node.stored[layer.Digest] = !full
		i.node.lock.Unlock()
		i.report(types.ProgressEventDone, layer, layer.Size)

		if full {
			return errors.New("no space left on device")
		}
	}

	return nil
}

// report is one of the copy.
func (i *image) report(event types.ProgressEvent, layer specsv1.Descriptor, arrived int64) {
	if !i.silent {
		i.now.Observe(&types.ProgressProperties{Event: event, Artifact: types.BlobInfo{Digest: layer.Digest}, Offset: uint64(arrived)})
	}
}

// load downloads so many bytes of the layer at this rate, and reports that as a copy does.
func (i *image) load(ctx context.Context, layer specsv1.Descriptor, bytes, rate int64) error {
	return i.loadFrom(ctx, layer, 0, bytes, rate)
}

func (i *image) loadFrom(ctx context.Context, layer specsv1.Descriptor, from, to, rate int64) error {
	i.node.flow(1)
	defer i.node.flow(-1)

	for from < to {
		bytes := min(to-from, max(int64(ReportInterval/i.node.time(1, rate)), 1))
		if err := sleep(ctx, i.node.time(bytes, rate)); err != nil {
			return err
		}

		from += bytes
		i.report(types.ProgressEventRead, layer, from)
	}

	return ctx.Err()
}

// load takes as long as so many bytes at this rate, and reports once a second.
func load(ctx context.Context, bytes, rate int64, report func()) error {
	for ; bytes > 0; bytes -= rate {
		if err := sleep(ctx, time.Duration(min(bytes, rate))*time.Second/time.Duration(rate)); err != nil {
			return err
		}

		report()
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
