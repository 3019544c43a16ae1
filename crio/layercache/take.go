package layercache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"go.podman.io/image/v5/types"
)

const (
	// leastBytes is what a pull has to save by neighbours so that it asks them.
	leastBytes = 1 << 20

	// together is how many layers are on their way to a pull.
	together = 3

	// headTime is for how long the registry may take to send the head of a layer.
	headTime = 10 * time.Second
)

// Store is where layers go.
type Store struct {
	// Has reports whether a copy finds the layer in the store.
	Has func(types.BlobInfo) bool
	// Stored returns the diffID of a layer in the store with that digest; empty if there is none.
	Stored func(digest.Digest) digest.Digest
	// At reports whether the store has a layer under an ID.
	At func(id string) bool
	// Put puts a layer under an ID on that of its parent, "" for none.
	Put func(id, parent string, layer types.BlobInfo, diffID digest.Digest, file *os.File) error
	// Decompress returns what is compressed in a stream.
	Decompress func(io.Reader) (io.ReadCloser, error)
}

// Taker takes layers from neighbours.
type Taker struct {
	pace  *pace
	cache *Cache
	agent agent
}

// NewTaker returns one that asks the agent at a socket.
func NewTaker(cache *Cache, socket string) *Taker {
	return &Taker{&pace{patience: patience}, cache, newAgent(socket)}
}

// taking is what goes on for one pull.
type taking struct {
	*Taker

	rate    int64 // that neighbours have to have
	source  types.ImageSource
	store   Store
	observe func(*types.ProgressProperties)
}

// got is a layer that came, as a temporary file.
type got struct {
	path   string
	diffID digest.Digest
	err    error
}

// Take puts those layers of an image into the store that neighbours have, from the bottom up, until one
// is missing, once it is known how fast registries are. The policy must allow the image of source. It has
// no error: what is not there, the copy downloads. observe gets what a copy would report of these layers.
func (t *Taker) Take(ctx context.Context, source types.ImageSource, layers []types.BlobInfo, store Store, observe func(*types.ProgressProperties)) {
	began := time.Now()

	rate := t.cache.rates.rate()
	if rate == 0 {
		return // The registry may be faster.
	}

	taking := taking{t, rate - rate/20, source, store, observe} // as fast on the same link

	parent, layers := taking.above(layers)
	if layers = taking.wanted(ctx, layers); len(layers) == 0 {
		return
	}

	bytes, err := taking.all(ctx, parent, layers)

	ended := "all came"
	if err != nil {
		ended = err.Error()
	}

	logrus.Infof("Neighbours sent %d bytes of %d layers in %s: %s", bytes, len(layers), time.Since(began).Round(time.Millisecond), ended)
}

// above returns the layers above those that the store has, and what they lie on.
func (t taking) above(layers []types.BlobInfo) (parent string, missing []types.BlobInfo) {
	for i, layer := range layers {
		diffID := t.store.Stored(layer.Digest)
		if diffID == "" {
			return parent, layers[i:]
		}

		id := layerID(parent, diffID)
		if !t.store.At(id) {
			return "", nil // the copy makes it from one that lies on something else, and all above
		}

		parent = id
	}

	return parent, nil
}

// wanted returns the layers to take: up to the last one that a neighbour seems to have, without a large one
// below it that none has. None if that is too little.
func (t taking) wanted(ctx context.Context, layers []types.BlobInfo) []types.BlobInfo {
	var sum int64

	for i, layer := range layers {
		if !canKeep(layer.Digest) || layer.Size < 0 || t.store.Has(layer) {
			layers = layers[:i]

			break
		}

		sum += layer.Size
	}

	if sum < leastBytes || !t.cache.room(sum) {
		return nil
	}

	held, err := t.agent.held(ctx, layers)
	if err != nil {
		logrus.Debugf("Neighbours are not asked: %v", err)

		return nil
	}

	last := 0
	sum = 0

	for i, layer := range layers {
		if layer.Size <= smallBytes {
			continue
		}

		if !held[layer.Digest] {
			break
		}

		last, sum = i+1, sum+layer.Size
	}

	if sum < leastBytes {
		return nil
	}

	return layers[:last]
}

// all takes the layers, some at a time, and puts one after the other on parent.
func (t taking) all(ctx context.Context, parent string, layers []types.BlobInfo) (sum int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	t.pace.begin(t.rate, time.Now())
	defer t.pace.end()

	go t.pace.watch(ctx, cancel)

	places := make(chan struct{}, together)
	coming := make([]chan got, len(layers))

	for i := range coming {
		coming[i] = make(chan got, 1)
	}

	go func() {
		for i, layer := range layers {
			places <- struct{}{}

			go func() { coming[i] <- t.get(ctx, layer) }()
		}
	}()

	for i, layer := range layers {
		layerGot := <-coming[i]
		<-places

		if err == nil {
			err = layerGot.err
		}

		if err == nil {
			if parent, err = t.put(parent, layer, layerGot); err == nil {
				sum += layer.Size
			}
		}

		if err != nil {
			cancel(nil) // the others end soon, and leave nothing
		}

		t.cache.remove(layerGot.path)
	}

	return sum, err
}

// put puts a layer into the store, and keeps it for neighbours.
func (t taking) put(parent string, layer types.BlobInfo, g got) (id string, err error) {
	file, err := os.Open(g.path)
	if err != nil {
		return "", fmt.Errorf("layer %s: %w", layer.Digest, err)
	}
	defer file.Close()

	id = layerID(parent, g.diffID)
	if err := t.store.Put(id, parent, layer, g.diffID, file); err != nil {
		return "", fmt.Errorf("layer %s: %w", layer.Digest, err)
	}

	t.cache.keep(file, layer.Digest)

	return id, nil
}

// get gets a layer. Its file is the caller's.
func (t taking) get(ctx context.Context, layer types.BlobInfo) (g got) {
	if g.err = context.Cause(ctx); g.err != nil {
		return g
	}

	t.report(types.ProgressEventNewArtifact, layer, 0)

	file, err := os.CreateTemp(t.cache.folder, temporary)
	if err != nil {
		g.err = fmt.Errorf("file for a layer: %w", err)

		return g
	}
	defer file.Close()

	g.path = file.Name()

	if err := t.download(ctx, layer, file); err != nil {
		if errors.Is(context.Cause(ctx), errBehind) {
			err = errBehind
		}

		g.err = fmt.Errorf("layer %s: %w", layer.Digest, err)

		return g
	}

	if g.diffID, err = t.diffID(ctx, file); err != nil {
		g.err = fmt.Errorf("layer %s: %w", layer.Digest, err)

		return g
	}

	t.report(types.ProgressEventDone, layer, layer.Size)

	return g
}

// download fills a file with a layer: from its registry if it is small, or else from a neighbour, who
// wants its head.
func (t taking) download(ctx context.Context, layer types.BlobInfo, file *os.File) error {
	head, err := t.head(ctx, layer)
	if err != nil {
		return fmt.Errorf("the registry: %w", err)
	}

	sum, offset := sha256.New(), int64(0)
	to := io.MultiWriter(file, sum, writerFunc(func(p []byte) (int, error) {
		offset += int64(len(p))
		t.report(types.ProgressEventRead, layer, offset)

		return len(p), nil
	}))

	if int64(len(head)) == layer.Size {
		_, err = to.Write(head)
	} else {
		t.pace.coming.Add(1)
		err = t.agent.fetch(ctx, layer, head, t.rate, io.MultiWriter(to, t.pace))
		t.pace.coming.Add(-1)
	}

	if err != nil {
		return err //nolint:wrapcheck // It says enough.
	}

	if hex.EncodeToString(sum.Sum(nil)) != layer.Digest.Encoded() {
		return errors.New("something else came")
	}

	return nil
}

// head reads the head of a layer, or a small one, at the registry, which serves nobody else's.
func (t taking) head(ctx context.Context, layer types.BlobInfo) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()

	stream, _, err := t.source.GetBlob(ctx, layer, none.NoCache)
	if err != nil {
		return nil, err //nolint:wrapcheck // The caller says what it is about.
	}
	defer stream.Close()

	want := int64(HeadBytes)
	if layer.Size <= smallBytes {
		want = layer.Size
	}

	var head bytes.Buffer
	if _, err := io.CopyN(&head, stream, want); err != nil {
		return nil, fmt.Errorf("after %d bytes: %w", head.Len(), err)
	}

	return head.Bytes(), nil
}

// diffID is computed from the bytes: the config of an image may say anything.
func (t taking) diffID(ctx context.Context, file *os.File) (digest.Digest, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("reading again: %w", err)
	}

	stream, err := t.store.Decompress(file)
	if err != nil {
		return "", fmt.Errorf("decompressing: %w", err)
	}
	defer stream.Close()

	id, err := digest.Canonical.FromReader(readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err //nolint:wrapcheck // The caller's.
		}

		return stream.Read(p) //nolint:wrapcheck // io.EOF is one.
	}))
	if err != nil {
		return "", fmt.Errorf("decompressing: %w", err)
	}

	return id, nil
}

func (t taking) report(event types.ProgressEvent, layer types.BlobInfo, offset int64) {
	t.observe(&types.ProgressProperties{Event: event, Artifact: layer, Offset: uint64(offset)}) //nolint:gosec // not negative
}

// layerID is the ID under which a copy stores a layer, and looks for it: go.podman.io/image/v5/storage
// has the same formula. With another one, the copy would make its layer from ours.
func layerID(parent string, diffID digest.Digest) string {
	if parent == "" {
		return diffID.Encoded()
	}

	return digest.Canonical.FromString(parent + "+" + diffID.Encoded()).Encoded()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
