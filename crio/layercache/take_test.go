package layercache

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
)

// testLayer is a layer, compressed.
type testLayer struct {
	types.BlobInfo

	content []byte
	diffID  digest.Digest
}

var random = rand.NewChaCha8([32]byte{})

func newLayer(size int) testLayer {
	plain := make([]byte, size)
	random.Read(plain)

	var compressed bytes.Buffer

	writer, _ := gzip.NewWriterLevel(&compressed, gzip.NoCompression)
	writer.Write(plain)
	writer.Close()

	return testLayer{
		types.BlobInfo{Digest: digest.FromBytes(compressed.Bytes()), Size: int64(compressed.Len())},
		compressed.Bytes(), digest.FromBytes(plain),
	}
}

// image is an image, its registry, the store and the agent of a node.
type image struct {
	types.ImageSource // not used

	layers []testLayer
	cache  *Cache
	taker  *Taker

	lock    sync.Mutex
	read    map[digest.Digest]int64 // bytes that the registry sent
	refused digest.Digest           // by the registry
	held    []digest.Digest         // by neighbours
	asked   []digest.Digest         // of the agent
	rate    string                  // that it is asked for
	// send, if it is not nil, is what the agent does instead.
	send func(http.ResponseWriter, testLayer)

	stored map[string]testLayer // by ID
	putErr error
	events map[digest.Digest][]types.ProgressEvent
}

var aDownload = download{time.Unix(0, 0), time.Unix(1, 0), 30 * mib}

// newImage returns an image of which neighbours hold all large layers.
func newImage(t *testing.T, sizes ...int) *image {
	t.Helper()

	i := &image{
		cache: folderOf(t, 1<<30), read: map[digest.Digest]int64{}, stored: map[string]testLayer{},
		events: map[digest.Digest][]types.ProgressEvent{},
	}
	for _, size := range sizes {
		i.layers = append(i.layers, newLayer(size))
		i.held = append(i.held, i.layers[len(i.layers)-1].Digest)
	}

	folder, err := os.MkdirTemp("", "") // a short name
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(folder) })

	socket := Socket(folder)
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}

	server := &http.Server{Handler: i.handler(t), ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { server.Close() })

	go server.Serve(listener)

	i.cache.rates.add(aDownload)
	i.taker = NewTaker(i.cache, socket)
	i.taker.pace.patience = time.Hour // a machine may be slow

	return i
}

func (i *image) of(id digest.Digest) testLayer {
	return i.layers[slices.IndexFunc(i.layers, func(l testLayer) bool { return l.Digest == id })]
}

// handler is that of the agent.
func (i *image) handler(t *testing.T) http.Handler {
	t.Helper()

	mux := http.NewServeMux()
	mux.HandleFunc("POST /held", func(w http.ResponseWriter, r *http.Request) {
		question, _ := io.ReadAll(r.Body)
		for id := range strings.Lines(string(question)) {
			if slices.Contains(i.held, digest.Digest(strings.TrimSpace(id))) {
				fmt.Fprint(w, id)
			}
		}
	})
	mux.HandleFunc("POST /layers/{digest}", func(w http.ResponseWriter, r *http.Request) {
		layer := i.of(digest.Digest(r.PathValue("digest")))

		i.lock.Lock()
		i.asked = append(i.asked, layer.Digest)
		i.rate = r.FormValue("rate")
		i.lock.Unlock()

		head, err := io.ReadAll(r.Body)
		if err != nil {
			return // cancelled
		}

		if !bytes.Equal(head, layer.content[:HeadBytes]) || r.FormValue("size") != fmt.Sprint(layer.Size) {
			t.Errorf("asked with a head of %d bytes and size=%s", len(head), r.FormValue("size"))
		}

		if i.send != nil {
			i.send(w, layer)

			return
		}

		w.Write(layer.content)
	})

	return mux
}

// GetBlob is the registry's.
func (i *image) GetBlob(_ context.Context, info types.BlobInfo, _ types.BlobInfoCache) (io.ReadCloser, int64, error) {
	if info.Digest == i.refused {
		return nil, 0, errors.New("denied")
	}

	layer := i.of(info.Digest)

	return io.NopCloser(io.TeeReader(bytes.NewReader(layer.content), writerFunc(func(p []byte) (int, error) {
		i.lock.Lock()
		defer i.lock.Unlock()

		i.read[info.Digest] += int64(len(p))

		return len(p), nil
	}))), layer.Size, nil
}

func (i *image) store() Store {
	find := func(blob digest.Digest) (testLayer, bool) {
		for _, layer := range i.stored {
			if layer.Digest == blob {
				return layer, true
			}
		}

		return testLayer{}, false
	}

	return Store{
		Has: func(info types.BlobInfo) bool {
			_, ok := find(info.Digest)

			return ok
		},
		Stored: func(blob digest.Digest) digest.Digest {
			layer, _ := find(blob)

			return layer.diffID
		},
		At: func(id string) bool {
			_, ok := i.stored[id]

			return ok
		},
		Put: func(id, parent string, info types.BlobInfo, diffID digest.Digest, file *os.File) error {
			if i.putErr != nil {
				return i.putErr
			}

			if _, ok := i.stored[parent]; parent != "" && !ok {
				return fmt.Errorf("no parent %s", parent)
			}

			if _, err := file.Seek(0, io.SeekStart); err != nil {
				return err
			}

			content, err := io.ReadAll(file)
			i.stored[id] = testLayer{info, content, diffID}

			return err
		},
		Decompress: func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	}
}

// take takes the layers, and returns how many of the image, from the bottom up, are in the store where a
// copy looks for them.
func (i *image) take(t *testing.T) (taken int) {
	t.Helper()

	infos := make([]types.BlobInfo, len(i.layers))
	for n := range i.layers {
		infos[n] = i.layers[n].BlobInfo
	}

	i.taker.Take(t.Context(), i, infos, i.store(), func(p *types.ProgressProperties) {
		i.lock.Lock()
		defer i.lock.Unlock()

		i.events[p.Artifact.Digest] = append(i.events[p.Artifact.Digest], p.Event)
	})

	id := ""
	for _, layer := range i.layers {
		id = digest.FromString(id + "+" + layer.diffID.Encoded()).Encoded()
		if taken == 0 {
			id = layer.diffID.Encoded()
		}

		stored, ok := i.stored[id]
		if !ok {
			break
		}

		if !bytes.Equal(stored.content, layer.content) || stored.diffID != layer.diffID {
			t.Errorf("layer %d has another content", taken)
		}

		taken++
	}

	if len(i.stored) > taken {
		t.Errorf("%d layers are stored, %d where a copy finds them", len(i.stored), taken)
	}

	i.cache.checkAll()

	for _, name := range names(t, i.cache) {
		if _, err := digest.Parse("sha256:" + name); err != nil {
			t.Errorf("%s is left", name)
		}
	}

	return taken
}

const mib = 1 << 20

func TestTake(t *testing.T) {
	i := newImage(t, 3*mib, 100, 3*mib/2, 2*HeadBytes, 2*mib, HeadBytes/2)

	if taken := i.take(t); taken != 5 {
		t.Fatalf("%d layers taken", taken) // the last is small, and the copy's
	}

	for n, layer := range i.layers[:5] {
		if read := i.read[layer.Digest]; read > HeadBytes && layer.Size > mib {
			t.Errorf("layer %d: the registry sent %d bytes", n, read)
		}

		if events := i.events[layer.Digest]; events[0] != types.ProgressEventNewArtifact || events[len(events)-1] != types.ProgressEventDone {
			t.Errorf("layer %d: %v", n, events)
		}

		if kept, err := os.ReadFile(i.cache.path(layer.Digest)); err != nil || !bytes.Equal(kept, layer.content) {
			t.Errorf("layer %d is not kept for others: %v", n, err)
		}
	}

	if rate, err := strconv.Atoi(i.rate); err != nil || rate < 28*mib || rate >= 30*mib {
		t.Errorf("in at least %s bytes a second, want 30 MiB, or a bit less", i.rate)
	}

	slices.Sort(i.asked)

	if want := []digest.Digest{i.layers[0].Digest, i.layers[2].Digest, i.layers[4].Digest}; !slices.Equal(i.asked, sorted(want)) {
		t.Errorf("the agent was asked for %q, want %q", i.asked, want)
	}
}

func sorted(of []digest.Digest) []digest.Digest {
	slices.Sort(of)

	return of
}

func TestTakeAboveWhatIsThere(t *testing.T) {
	i := newImage(t, 2*mib, 2*mib, 2*mib)
	i.stored[i.layers[0].diffID.Encoded()] = i.layers[0]

	if taken := i.take(t); taken != 3 || slices.Contains(i.asked, i.layers[0].Digest) {
		t.Errorf("%d layers, asked for %q", taken, i.asked)
	}
}

// The copy makes its layer from one that lies on something else.
func TestTakeNothingAboveALayerOfAnotherChain(t *testing.T) {
	i := newImage(t, 2*mib, 2*mib)
	i.stored["another"] = i.layers[0]
	store := i.store()
	i.taker.Take(t.Context(), i, []types.BlobInfo{i.layers[0].BlobInfo, i.layers[1].BlobInfo}, store, func(*types.ProgressProperties) {})

	if len(i.stored) != 1 || len(i.asked) > 0 {
		t.Errorf("%d stored, asked for %q", len(i.stored), i.asked)
	}
}

// The copy makes that, too, and all above it.
func TestTakeNothingThatIsElsewhereInTheStore(t *testing.T) {
	i := newImage(t, 2*mib, 2*mib)
	i.stored["another"] = i.layers[1]
	i.taker.Take(t.Context(), i, []types.BlobInfo{i.layers[0].BlobInfo, i.layers[1].BlobInfo}, i.store(), func(*types.ProgressProperties) {})

	if len(i.stored) != 2 || slices.Contains(i.asked, i.layers[1].Digest) {
		t.Errorf("%d stored, asked for %q", len(i.stored), i.asked)
	}
}

// Whatever goes wrong, nothing that is wrong gets into the store, and the layers below stay.
func TestFaults(t *testing.T) {
	abort := func() { panic(http.ErrAbortHandler) }
	only := func(n int, do func(http.ResponseWriter, testLayer)) func(*image) {
		return func(i *image) {
			i.send = func(w http.ResponseWriter, layer testLayer) {
				if layer.Digest != i.layers[n].Digest {
					w.Write(layer.content)

					return
				}

				do(w, layer)
			}
		}
	}

	for what, tc := range map[string]struct {
		set  func(*image)
		want int
		// quiet: neither registry nor neighbours are asked for a layer.
		quiet bool
	}{
		"wrong bytes": {set: only(1, func(w http.ResponseWriter, l testLayer) {
			wrong := bytes.Clone(l.content)
			wrong[len(wrong)-1]++
			w.Write(wrong)
		}), want: 1},
		"another layer": {set: func(i *image) {
			i.send = func(w http.ResponseWriter, _ testLayer) { w.Write(i.layers[0].content) }
		}, want: 1},
		"truncated": {set: only(1, func(w http.ResponseWriter, l testLayer) { w.Write(l.content[:l.Size-1]) }), want: 1},
		"peer killed": {set: only(1, func(w http.ResponseWriter, l testLayer) {
			w.Header().Set("Content-Length", fmt.Sprint(l.Size))
			w.Write(l.content[:l.Size/2])
			abort()
		}), want: 1},
		"more":            {set: only(1, func(w http.ResponseWriter, l testLayer) { w.Write(append(bytes.Clone(l.content), 0)) }), want: 1},
		"nobody sends it": {set: only(1, func(w http.ResponseWriter, _ testLayer) { w.WriteHeader(http.StatusNotFound) }), want: 1},
		"stalled": {set: func(i *image) {
			i.taker.pace.patience = 10 * time.Millisecond
			only(0, func(w http.ResponseWriter, l testLayer) {
				w.Write(l.content[:l.Size/2])
				w.(http.Flusher).Flush()
				<-t.Context().Done()
			})(i)
		}},
		"1 kB/s": {set: func(i *image) {
			i.taker.pace.patience = 10 * time.Millisecond
			only(0, func(w http.ResponseWriter, l testLayer) {
				for err := error(nil); err == nil; time.Sleep(10 * time.Millisecond) {
					_, err = w.Write(l.content[:10])
					w.(http.Flusher).Flush()
				}
			})(i)
		}},
		"the registry refuses": {set: func(i *image) { i.refused = i.layers[1].Digest }, want: 1},
		"another size":         {set: func(i *image) { i.layers[1].Size++ }, want: 1},
		"the store is full":    {set: func(i *image) { i.putErr = errors.New("no space left on device") }},
		"not compressed as it says": {set: func(i *image) {
			content := bytes.Repeat([]byte("plain"), mib)
			i.layers[1] = testLayer{types.BlobInfo{Digest: digest.FromBytes(content), Size: int64(len(content))}, content, digest.FromBytes(content)}
			i.held[1] = i.layers[1].Digest
		}, want: 1},
		"nobody holds the middle one":       {set: func(i *image) { i.held[1] = "" }, want: 1},
		"nobody holds any":                  {set: func(i *image) { i.held = nil }, quiet: true},
		"no agent":                          {set: func(i *image) { i.taker = NewTaker(i.cache, "/nowhere") }, quiet: true},
		"no layer came from a registry yet": {set: func(i *image) { i.cache.rates.last = nil }, quiet: true},
		"the disk is full":                  {set: func(i *image) { i.cache.allowed = func(int64) (int64, error) { return mib, nil } }, quiet: true},
		"the folder is deleted": {set: func(i *image) {
			os.RemoveAll(i.cache.folder)
			i.taker.cache = &Cache{folder: "/nowhere", allowed: i.cache.allowed}
			i.taker.cache.rates.add(aDownload)
			os.Mkdir(i.cache.folder, 0o700)
		}},
		"a layer without a size": {set: func(i *image) { i.layers[0].Size = -1 }, quiet: true},
		"a digest of sha512":     {set: func(i *image) { i.layers[0].Digest = digest.SHA512.FromBytes(i.layers[0].content) }, quiet: true},
	} {
		t.Run(what, func(t *testing.T) {
			i := newImage(t, 2*mib, 2*mib, 2*mib)
			tc.set(i)

			if taken := i.take(t); taken != tc.want {
				t.Errorf("%d layers taken, want %d", taken, tc.want)
			}

			i.lock.Lock() // a handler may still run
			asked := len(i.asked) + len(i.read)
			i.lock.Unlock()

			if tc.quiet && asked > 0 {
				t.Errorf("%d questions", asked)
			}
		})
	}
}

// Who is cancelled takes nothing more.
func TestCancelled(t *testing.T) {
	i := newImage(t, 2*mib, 2*mib)
	ctx, cancel := context.WithCancel(t.Context())
	i.send = func(w http.ResponseWriter, l testLayer) {
		w.Write(l.content[:l.Size/2])
		w.(http.Flusher).Flush()
		cancel()
	}
	i.taker.Take(ctx, i, []types.BlobInfo{i.layers[0].BlobInfo, i.layers[1].BlobInfo}, i.store(), func(*types.ProgressProperties) {})

	if len(i.stored) > 0 || len(names(t, i.cache)) > 0 {
		t.Errorf("%d stored, %q left", len(i.stored), names(t, i.cache))
	}
}
