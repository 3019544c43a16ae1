package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/platforms"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

var must = testkit.Must

func digest(name string) string { return fmt.Sprintf("sha256:%064x", name) }

// daemon is a containerd that does what a test sets. The real one is asked in
// lab/test/containerd.
type daemon struct {
	t      *testing.T
	socket string
	server *grpc.Server

	mu        sync.Mutex
	images    []*imagesapi.Image
	blobs     map[string]string
	labels    map[string]map[string]string
	downloads []*contentapi.Status
	reads     int
	// lists and asked count how often all blobs were listed, and one was asked for.
	lists, asked int
	version      string
	// broken are blobs that cannot be read.
	broken  map[string]bool
	filters []string
	events  chan *types.Envelope
	hangs   bool
	// mute: it does not answer for single blobs.
	mute bool
}

func start(t *testing.T) *daemon {
	d := &daemon{t: t, socket: filepath.Join(t.TempDir(), "containerd.sock"), blobs: map[string]string{}, labels: map[string]map[string]string{}, version: "v2.3.1", broken: map[string]bool{}, events: make(chan *types.Envelope)}
	d.serve()
	t.Cleanup(func() { d.server.Stop() })
	return d
}

// serve begins to serve, also after it was stopped.
func (d *daemon) serve() {
	d.server = grpc.NewServer()
	imagesapi.RegisterImagesServer(d.server, imageService{daemon: d})
	contentapi.RegisterContentServer(d.server, contentService{daemon: d})
	eventsapi.RegisterEventsServer(d.server, eventService{daemon: d})
	versionapi.RegisterVersionServer(d.server, versionService{daemon: d})
	listener, err := net.Listen("unix", d.socket)
	must(d.t, err)
	go func() { _ = d.server.Serve(listener) }()
}

func (d *daemon) lock(ctx context.Context) {
	if header, _ := metadata.FromIncomingContext(ctx); !slices.Equal(header.Get("containerd-namespace"), []string{"k8s.io"}) {
		d.t.Errorf("namespace %q", header.Get("containerd-namespace"))
	}
	d.mu.Lock()
}

// The services of the daemon.
type (
	imageService struct {
		imagesapi.UnimplementedImagesServer
		*daemon
	}
	contentService struct {
		contentapi.UnimplementedContentServer
		*daemon
	}
	eventService struct {
		eventsapi.UnimplementedEventsServer
		*daemon
	}
	versionService struct {
		versionapi.UnimplementedVersionServer
		*daemon
	}
)

func (d versionService) Version(ctx context.Context, _ *emptypb.Empty) (*versionapi.VersionResponse, error) {
	d.lock(ctx)
	defer d.mu.Unlock()
	return &versionapi.VersionResponse{Version: d.version}, nil
}

func (d imageService) List(ctx context.Context, _ *imagesapi.ListImagesRequest) (*imagesapi.ListImagesResponse, error) {
	d.lock(ctx)
	hangs := d.hangs
	defer d.mu.Unlock()
	if hangs {
		return nil, status.Error(codes.DeadlineExceeded, "hangs")
	}
	return &imagesapi.ListImagesResponse{Images: d.images}, nil
}

func (d eventService) Subscribe(r *eventsapi.SubscribeRequest, stream eventsapi.Events_SubscribeServer) error {
	d.lock(stream.Context())
	d.filters = r.GetFilters()
	d.mu.Unlock()
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case event := <-d.events:
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

func (c contentService) List(_ *contentapi.ListContentRequest, stream contentapi.Content_ListServer) error {
	c.lock(stream.Context())
	defer c.mu.Unlock()
	c.lists++
	for digest, text := range c.blobs {
		if err := stream.Send(&contentapi.ListContentResponse{Info: []*contentapi.Info{{Digest: digest, Size: int64(len(text)), Labels: c.labels[digest]}}}); err != nil {
			return err
		}
	}
	return nil
}

func (c contentService) Info(ctx context.Context, r *contentapi.InfoRequest) (*contentapi.InfoResponse, error) {
	c.lock(ctx)
	defer c.mu.Unlock()
	c.asked++
	if c.mute {
		return nil, status.Error(codes.Unavailable, "the database is busy")
	}
	text, here := c.blobs[r.GetDigest()]
	if !here {
		return nil, status.Error(codes.NotFound, r.GetDigest())
	}
	return &contentapi.InfoResponse{Info: &contentapi.Info{Digest: r.GetDigest(), Size: int64(len(text)), Labels: c.labels[r.GetDigest()]}}, nil
}

func (c contentService) Read(r *contentapi.ReadContentRequest, stream contentapi.Content_ReadServer) error {
	c.lock(stream.Context())
	defer c.mu.Unlock()
	c.reads++
	if c.broken[r.GetDigest()] {
		return status.Error(codes.Unavailable, "the disk is busy")
	}
	text, here := c.blobs[r.GetDigest()]
	if !here {
		return status.Error(codes.NotFound, r.GetDigest())
	}
	for part := range slices.Chunk([]byte(text), 100) {
		if err := stream.Send(&contentapi.ReadContentResponse{Data: part}); err != nil {
			return err
		}
	}
	return nil
}

func (c contentService) ListStatuses(ctx context.Context, _ *contentapi.ListStatusesRequest) (*contentapi.ListStatusesResponse, error) {
	c.lock(ctx)
	defer c.mu.Unlock()
	return &contentapi.ListStatusesResponse{Statuses: c.downloads}, nil
}

// record adds an image record.
func (d *daemon) record(target string, names ...string) {
	for _, name := range names {
		d.images = append(d.images, &imagesapi.Image{Name: name, Target: &types.Descriptor{Digest: target}})
	}
}

// manifest adds a manifest of layers, whose blobs are not added, with its configuration, and
// returns its digest.
func (d *daemon) manifest(name string, layers ...string) string {
	text := fmt.Sprintf(`{"schemaVersion":2,"config":{"digest":%q,"size":2},"layers":[`, digest("config of "+name))
	for i, l := range layers {
		text += fmt.Sprintf(`%s{"digest":%q,"size":%d}`, strings.Repeat(",", min(i, 1)), digest(l), len(l))
	}
	d.blobs[digest(name)], d.blobs[digest("config of "+name)] = text+"]}", `{"os":"linux","architecture":"amd64"}`
	return digest(name)
}

// config replaces the configuration of "ours".
func (d *daemon) config(text string) { d.blobs[digest("config of ours")] = text }

// index adds an index of an attestation and of entries: each is a digest after its platform, as "linux/arm64 ", or
// after none.
func (d *daemon) index(name string, entries ...string) string {
	text := fmt.Sprintf(`{"manifests":[{"digest":%q,"platform":{"os":"unknown","architecture":"unknown"}}`, digest("attestation"))
	for _, entry := range entries {
		platform, digest, _ := strings.Cut(entry, " ")
		if digest == "" {
			text += fmt.Sprintf(`,{"digest":%q}`, platform)
			continue
		}
		p := strings.Split(platform+"/", "/")
		text += fmt.Sprintf(`,{"digest":%q,"platform":{"os":%q,"architecture":%q,"variant":%q}}`, digest, p[0], p[1], p[2])
	}
	d.blobs[digest(name)] = text + "]}"
	return digest(name)
}

// unpacked marks the manifest of a name as unpacked.
func (d *daemon) unpacked(name, snapshotter string) { d.unpackedAs(name, snapshotter, name) }

// unpackedAs marks the manifest of a name as unpacked to the same files as others of a chain.
func (d *daemon) unpackedAs(name, snapshotter, chain string) {
	d.labels[digest("config of "+name)] = map[string]string{snapshotLabel + snapshotter: digest("chain of " + chain), "containerd.io/distribution.source.docker.io": "x"}
}

// fetched adds the blobs of layers.
func (d *daemon) fetched(layers ...string) {
	for _, l := range layers {
		d.blobs[digest(l)] = l
	}
}

func (d *daemon) reader() *Reader {
	r, err := NewReader(d.socket, "k8s.io")
	must(d.t, err)
	d.t.Cleanup(func() { _ = r.Close() })
	r.platform = platforms.Only(platforms.MustParse("linux/amd64")) // that of the images here
	return r
}

func (d *daemon) read(r *Reader) *read.Result {
	d.t.Helper()
	result, err := r.Read(d.t.Context())
	must(d.t, err)
	return result
}

// list reads and lists all blobs, as is done from time to time.
func (d *daemon) list(r *Reader) *read.Result {
	d.t.Helper()
	r.relist.Store(true)
	return d.read(r)
}

// expect compares images, each by its sorted names and the names of its layers in order.
func expect(t *testing.T, what string, got []contents.Image, want ...string) {
	t.Helper()
	var texts []string
	for _, image := range got {
		text := strings.Join(slices.Sorted(slices.Values(image.Names)), " ") + " ="
		for _, l := range image.Layers {
			text += " " + l.String()
		}
		texts = append(texts, text)
	}
	for i := range want {
		names, layers, _ := strings.Cut(want[i], " =")
		var text string
		for _, l := range strings.Fields(layers) {
			text += fmt.Sprintf(" %s %d", digest(l), len(l))
		}
		want[i] = strings.Join(slices.Compact(slices.Sorted(slices.Values(strings.Fields(names)))), " ") + " =" + text
	}
	slices.Sort(texts)
	slices.Sort(want)
	if !slices.Equal(texts, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(texts, "\n"), strings.Join(want, "\n"))
	}
}

func TestRead(t *testing.T) {
	d := start(t)
	r := d.reader()
	expect(t, "nothing", d.read(r).Contents.Images)

	// An image for two platforms, of which one was fetched and unpacked; its three records.
	ours := d.manifest("ours", "base", "top")
	all := d.index("all", "linux/arm64 "+digest("never fetched"), "linux/amd64 "+ours)
	d.record(all, "docker.io/library/a:1", "docker.io/library/a@"+all, digest("config of ours"))
	d.unpacked("ours", "overlayfs")
	d.fetched("base", "top")
	// One without an index.
	single := d.manifest("single", "base", "own", "base")
	d.record(single, "quay.io/b:1", "quay.io/b:latest")
	d.unpacked("single", "overlayfs")
	d.fetched("own")
	result := d.read(r)
	want := []string{
		"docker.io/library/a:1 " + all + " " + ours + " = base top",
		"quay.io/b:1 quay.io/b:latest " + single + " " + single + " = base own base",
	}
	expect(t, "images", result.Contents.Images, slices.Clone(want)...)
	c := result.Contents
	if c.Runtime != "containerd 2.3.1" || c.InChains || c.JoinsDownloads == nil || !*c.JoinsDownloads || len(result.Skipped) > 0 {
		t.Errorf("%+v", result)
	}
	reads := d.reads
	expect(t, "again", d.read(r).Contents.Images, slices.Clone(want)...)
	if d.reads != reads {
		t.Errorf("%d blobs were read again", d.reads-reads)
	}

	// One image was unpacked above another one with another compression.
	delete(d.blobs, digest("base"))
	result = d.read(r)
	if expect(t, "not fetched", result.Contents.Images, slices.Clone(want)...); result.Contents.InChains {
		t.Error("one of two images lacks its last layer, and yet all count in chains")
	}
	// Layers are dropped after unpacking, but for those of the last pull.
	delete(d.blobs, digest("top"))
	result = d.read(r)
	if expect(t, "layers dropped", result.Contents.Images, slices.Clone(want)...); !result.Contents.InChains {
		t.Error("layers were dropped, and yet they count by their digests")
	}
	d.fetched("base")
	if result = d.read(r); !result.Contents.InChains {
		t.Error("the blobs of a pull are there for a while, and yet layers count by their digests")
	}
	d.fetched("top")
	if result = d.read(r); result.Contents.InChains {
		t.Error("all blobs are there, and yet layers count in chains")
	}
	d.images = d.images[:3]
	if expect(t, "removed", d.list(r).Contents.Images, want[0]); r.known.Len() != 2 {
		t.Errorf("%d manifests are remembered", r.known.Len())
	}
}

// All blobs are listed from time to time. Between that, single ones are asked for, and only of
// images that are new.
func TestListsSeldom(t *testing.T) {
	d := start(t)
	r := d.reader()
	image := func(name string) (line string) {
		d.record(d.manifest(name, "base", "top-of-"+name), "quay.io/"+name+":1")
		d.unpacked(name, "overlayfs")
		return "quay.io/" + name + ":1 " + digest(name) + " " + digest(name) + " = base top-of-" + name
	}
	// check checks what is read, how often all blobs are listed, and single ones asked for.
	check := func(what string, lists, asked int, want ...string) {
		t.Helper()
		d.lists, d.asked = 0, 0
		expect(t, what, d.read(r).Contents.Images, slices.Clone(want)...)
		if d.lists != lists || d.asked != asked {
			t.Errorf("%s: all blobs were listed %d times, want %d, and single ones asked for %d times, want %d", what, d.lists, lists, d.asked, asked)
		}
	}
	one, two := image("one"), image("two")
	check("at first", 1, 0, one, two)
	check("nothing is new", 0, 0, one, two)

	three := image("three")
	check("its manifest, its configuration, its last layer", 0, 3, one, two, three)
	check("it is not settled before all blobs are listed", 0, 3, one, two, three)
	r.listed = r.listed.Add(-listEvery)
	check("after a while", 1, 0, one, two, three)
	check("nothing is new again", 0, 0, one, two, three)
	d.images = d.images[1:]
	check("removed", 0, 0, two, three)

	// Removed and pulled again, for another platform.
	d.images[0].CreatedAt = timestamppb.Now()
	delete(d.labels, digest("config of two"))
	check("not unpacked", 0, 3, three)
	d.unpacked("two", "overlayfs")
	check("unpacked", 0, 3, two, three)

	// A record that has moved away and back is another one.
	d.images[0].UpdatedAt = timestamppb.New(time.Now().Add(time.Second))
	r.listed = r.listed.Add(-listEvery)
	check("after another while", 1, 0, two, three)
	d.images[0].UpdatedAt = timestamppb.New(time.Now().Add(time.Minute))
	check("moved", 0, 3, two, three)

	// Many questions end with a list of all, and the next reading begins with one.
	var layers []string
	for i := range maxAsked {
		layers = append(layers, fmt.Sprint("layer-", i))
	}
	d.fetched(layers...)
	d.record(d.manifest("large", layers...), "quay.io/large:1")
	large := "quay.io/large:1 " + digest("large") + " " + digest("large") + " = " + strings.Join(layers, " ")
	check("an image of many layers", 1, maxAsked, two, three, large)
	check("an image of many layers again", 1, 0, two, three, large)
	d.images = d.images[:len(d.images)-1]

	for i := range maxNew + 1 {
		image(fmt.Sprintf("many-%d", i))
	}
	for i, lists := range []int{1, 0} {
		d.lists, d.asked = 0, 0
		if result := d.read(r); len(result.Contents.Images) != 3+maxNew || d.lists != lists || d.asked != 0 {
			t.Errorf("many that are new, reading %d: %d images, all blobs were listed %d times, single ones asked for %d times", i+1, len(result.Contents.Images), d.lists, d.asked)
		}
	}

	// What cannot be asked fails; it does not count as missing.
	image("last")
	d.mute = true
	if _, err := r.Read(t.Context()); status.Code(errors.Unwrap(err)) != codes.Unavailable {
		t.Errorf("containerd does not answer for blobs: %v", err)
	}
	d.mute = false
	if result := d.read(r); len(result.Contents.Images) != 4+maxNew {
		t.Errorf("containerd answers again: %d images", len(result.Contents.Images))
	}
}

// Of images with the same files, one is fetched, which shows whether its blobs are kept.
func TestTwins(t *testing.T) {
	d := start(t)
	r := d.reader()
	for _, name := range []string{"gzip", "zstd", "plain"} {
		d.record(d.manifest(name, name+" base", name+" top"), "quay.io/"+name+":1")
		d.unpackedAs(name, "overlayfs", "files")
	}
	d.record(d.manifest("empty"), "quay.io/empty:1") // has no layer that could be kept
	d.unpacked("empty", "overlayfs")
	d.fetched("zstd base", "zstd top")
	if d.read(r).Contents.InChains {
		t.Error("the last layer of one of three twins is there, and yet all count in chains")
	}
	delete(d.blobs, digest("zstd top"))
	if !d.list(r).Contents.InChains {
		t.Error("the last layer of no image is there, and yet they count by their digests")
	}
}

// Images that were imported keep their blobs, and do not outvote those that were pulled.
func TestImported(t *testing.T) {
	d := start(t)
	r := d.reader()
	for _, name := range []string{"one", "two", "three"} {
		d.record(d.manifest(name, name+" base"), "registry.k8s.io/"+name+":1")
		d.labels[digest("config of "+name)] = map[string]string{snapshotLabel + "overlayfs": digest("chain of " + name)}
		d.fetched(name + " base")
	}
	if d.read(r).Contents.InChains {
		t.Error("all blobs are there, and yet layers count in chains")
	}
	d.record(d.manifest("app", "app base"), "quay.io/app:1")
	d.unpacked("app", "overlayfs")
	if !d.read(r).Contents.InChains {
		t.Error("the only image that was pulled lacks its layer, and yet layers count by their digests")
	}
	d.images = d.images[:3]
	if d.read(r).Contents.InChains {
		t.Error("what is left was imported and has all blobs, and yet layers count in chains")
	}
}

// Only what is there counts.
func TestNotUnpacked(t *testing.T) {
	d := start(t)
	r := d.reader()
	target := d.index("index", "linux/amd64 "+d.manifest("amd", "base", "top"), "linux/arm64 "+d.manifest("arm", "armbase"))
	d.record(target, "quay.io/a:1")
	d.fetched("base")
	result := d.read(r)
	if expect(t, "on its way", result.Contents.Images); result.Skipped["not-unpacked"] != 1 {
		t.Errorf("%v", result.Skipped)
	}
	d.fetched("top")
	want := "quay.io/a:1 " + target + " " + digest("amd") + " = base top"
	expect(t, "fetched", d.read(r).Contents.Images, want)
	d.unpacked("arm", "overlayfs")
	expect(t, "one of another platform is unpacked", d.read(r).Contents.Images, want)
}

// A lazy snapshotter never fetches whole layers: that is no sign that any were dropped.
func TestLazySnapshotters(t *testing.T) {
	for snapshotter, chains := range map[string]bool{"overlayfs": true, "native": true, "stargz": false, "nydus": false, "soci": false} {
		d := start(t)
		d.record(d.manifest("lazy", "base"), "quay.io/a:1")
		d.unpacked("lazy", snapshotter)
		result := d.read(d.reader())
		expect(t, snapshotter, result.Contents.Images, "quay.io/a:1 "+digest("lazy")+" "+digest("lazy")+" = base")
		if result.Contents.InChains != chains {
			t.Errorf("%s: in chains is %t", snapshotter, result.Contents.InChains)
		}
	}
}

// What cannot be used is named without layers, and read no second time. What is not there is not named.
func TestUnusable(t *testing.T) {
	d := start(t)
	r := d.reader()
	d.blobs[digest("nonsense")] = "{"
	d.blobs[digest("large")] = strings.Repeat(" ", 5<<20)
	d.blobs[digest("one")] = `{"schemaVersion":1,"fsLayers":[]}`
	d.record(digest("nonsense"), "quay.io/nonsense:1")
	d.record(digest("large"), "quay.io/large:1")
	d.record(digest("one"), "quay.io/one:1")
	d.record(digest("missing"), "quay.io/missing:1")
	d.record("latest", "quay.io/hostile:1")
	d.images = append(d.images, &imagesapi.Image{Name: "quay.io/no-target:1"})
	encrypted := d.manifest("encrypted", "base")
	d.blobs[encrypted] = strings.Replace(d.blobs[encrypted], `"size":4`, `"size":4,"mediaType":"x+encrypted"`, 1)
	d.record(encrypted, "quay.io/encrypted:1")
	d.unpacked("encrypted", "overlayfs")
	want := []string{
		"quay.io/nonsense:1 " + digest("nonsense") + " =", "quay.io/large:1 " + digest("large") + " =", "quay.io/one:1 " + digest("one") + " =",
		"quay.io/encrypted:1 " + encrypted + " " + encrypted + " =",
	}
	result := d.read(r)
	if expect(t, "unusable", result.Contents.Images, slices.Clone(want)...); result.Skipped["manifest"] != 3 || result.Skipped["not-unpacked"] != 1 || result.Skipped["layers"] != 1 {
		t.Errorf("%v", result.Skipped)
	}
	if result.Incomplete {
		t.Error("what can never be used would be read again soon")
	}
	reads := d.reads
	if expect(t, "again", d.read(r).Contents.Images, want...); d.reads != reads {
		t.Errorf("%d blobs were read again", d.reads-reads)
	}
}

// A blob that cannot be read for once costs no minute without the image's layers.
func TestBrokenBlobs(t *testing.T) {
	for _, broken := range []string{"all", "ours"} {
		d := start(t)
		r := d.reader()
		target := d.index("all", d.manifest("ours", "base"))
		d.record(target, "quay.io/a:1")
		d.unpacked("ours", "overlayfs")
		d.broken[digest(broken)] = true
		result := d.read(r)
		expect(t, broken, result.Contents.Images, "quay.io/a:1 "+target+" =")
		if !result.Incomplete || result.Skipped["manifest"] != 1 {
			t.Errorf("%s: %+v", broken, result)
		}
		clear(d.broken)
		result = d.read(r)
		expect(t, broken+" can be read", result.Contents.Images, "quay.io/a:1 "+target+" "+digest("ours")+" = base")
		// What was read once is not needed again.
		d.broken[digest(broken)] = true
		if again := d.read(r); result.Incomplete || again.Incomplete || len(again.Contents.Images) != 1 || len(again.Contents.Images[0].Layers) != 1 {
			t.Errorf("%s: %+v", broken, again)
		}
	}
}

// Of the entries of indexes, and of indexes in them, that one counts which containerd takes: as images.Manifest of its
// core/images does it for platforms.Default.
func TestIndexes(t *testing.T) {
	const ours, other = "linux/amd64 ", "linux/arm64 "
	for name, test := range map[string]struct {
		index func(d *daemon, manifest string) string
		want  bool
	}{
		"an index in an index": {func(d *daemon, m string) string {
			return d.index("outer", other+digest("never fetched"), ours+d.index("inner", other+digest("never fetched"), ours+m))
		}, true},
		"an index in an index, without platforms": {func(d *daemon, m string) string {
			return d.index("outer", d.index("inner", m, digest("never fetched")))
		}, true},
		"the first of two": {func(d *daemon, m string) string {
			return d.index("outer", ours+d.index("inner", ours+m), ours+digest("never fetched"))
		}, true},
		"not the second": {func(d *daemon, m string) string { return d.index("outer", ours+d.index("inner", other+m), ours+m) }, false},
		"a nested index that was not fetched": {func(d *daemon, m string) string {
			return d.index("outer", ours+digest("never fetched"), ours+m)
		}, false},
		"a nested index that is none": {func(d *daemon, m string) string { return d.index("outer", ours+digest("nonsense"), ours+m) }, false},
		"no platform of its own":      {func(d *daemon, m string) string { return d.index("outer", other+m) }, false},
		"a platform before none":      {func(d *daemon, m string) string { return d.index("outer", digest("never fetched"), ours+m) }, true},
		"the better platform": {func(d *daemon, m string) string {
			return d.index("outer", "linux/386 "+digest("never fetched"), ours+m)
		}, true},
		"one that runs here, too": {func(d *daemon, m string) string {
			return d.index("outer", other+digest("never fetched"), "linux/386 "+m)
		}, true},
		"a configuration elsewhere": {func(d *daemon, m string) string {
			d.config(`{"os":"linux","architecture":"s390x"}`)
			return d.index("outer", m)
		}, false},
		"a configuration of no platform": {func(d *daemon, m string) string { d.config(`{}`); return d.index("outer", m) }, false},
		"a configuration that is stated to run here": {func(d *daemon, m string) string {
			d.config(`{"os":"linux","architecture":"s390x"}`)
			return d.index("outer", ours+m)
		}, true},
		"no index": {func(d *daemon, m string) string { d.config(`{"os":"linux","architecture":"s390x"}`); return m }, true},
		"no configuration": {func(d *daemon, m string) string {
			delete(d.blobs, digest("config of ours"))
			return d.index("outer", m)
		}, false},
	} {
		d := start(t)
		r := d.reader()
		d.blobs[digest("nonsense")] = "{"
		manifest := d.manifest("ours", "base", "top")
		d.unpacked("ours", "overlayfs")
		target := test.index(d, manifest)
		d.record(target, "quay.io/a:1")
		var want []string
		if test.want {
			want = []string{"quay.io/a:1 " + target + " " + manifest + " = base top"}
		}
		result := d.read(r)
		expect(t, name, result.Contents.Images, slices.Clone(want)...)
		if result.Incomplete || result.Skipped["not-unpacked"] != 1-len(want) {
			t.Errorf("%s: %+v", name, result)
		}
		reads := d.reads
		if expect(t, name+", again", d.list(r).Contents.Images, want...); d.reads != reads {
			t.Errorf("%s: %d blobs were read again", name, d.reads-reads)
		}
	}
}

// Indexes in indexes are followed a few times only, also those that name one another, which no digests of contents do.
// containerd lists an image beyond that: so it is named.
func TestDeepIndexes(t *testing.T) {
	for nested := range maxNested + 2 {
		d := start(t)
		target := d.manifest("ours", "base")
		d.unpacked("ours", "overlayfs")
		for i := range nested + 1 {
			target = d.index(fmt.Sprint("index ", i), target)
		}
		d.record(target, "quay.io/a:1")
		want, reads := "quay.io/a:1 "+target+" "+digest("ours")+" = base", nested+3 // with the manifest and its configuration
		if nested > maxNested {
			want, reads = "quay.io/a:1 "+target+" =", maxNested+2
		}
		result := d.read(d.reader())
		if expect(t, fmt.Sprint(nested), result.Contents.Images, want); d.reads != reads || result.Skipped["manifest"] != max(0, nested-maxNested) {
			t.Errorf("%d: %d blobs were read, want %d; skipped %v", nested, d.reads, reads, result.Skipped)
		}
	}
	d := start(t)
	d.record(d.index("ring", digest("ring")), "quay.io/a:1")
	expect(t, "a ring", d.read(d.reader()).Contents.Images, "quay.io/a:1 "+digest("ring")+" =")
}

// What an image states as its configuration, which may be the manifest of another one, changes nothing of that.
func TestForeignConfiguration(t *testing.T) {
	d := start(t)
	victim := d.manifest("victim", "base")
	d.unpacked("victim", "overlayfs")
	d.record(victim, "quay.io/victim:1")
	hostile := d.manifest("hostile", "base")
	d.blobs[hostile] = strings.Replace(d.blobs[hostile], digest("config of hostile"), victim, 1)
	d.record(d.index("index", hostile), "quay.io/hostile:1")
	r := d.reader()
	for range 2 {
		expect(t, "both", d.list(r).Contents.Images, "quay.io/victim:1 "+victim+" = base")
	}
}

// A containerd that takes the place of another one reports its own version.
func TestVersion(t *testing.T) {
	d := start(t)
	r := d.reader()
	if got := d.read(r).Contents.Runtime; got != "containerd 2.3.1" {
		t.Error(got)
	}
	d.version = "v2.4.0"
	if got := d.read(r).Contents.Runtime; got != "containerd 2.4.0" {
		t.Error(got)
	}
	d.version = strings.Repeat("9", 1000)
	if got := d.read(r).Contents.Runtime; len(got) > 64 {
		t.Error(got)
	}
}

// A containerd that was away for long is found again soon.
func TestReconnects(t *testing.T) {
	if got := reconnects(); got.MaxDelay > 5*time.Second || got.BaseDelay > got.MaxDelay {
		t.Errorf("%+v", got)
	}
}

// A download that was killed does not count for ever.
func TestPulls(t *testing.T) {
	d := start(t)
	r := d.reader()
	layer, other := &contentapi.Status{Ref: "layer-" + digest("a"), Offset: 5}, &contentapi.Status{Ref: "config-" + digest("b"), Offset: 5}
	d.downloads = []*contentapi.Status{layer, other}
	if n := d.read(r).Pulls; n != 1 {
		t.Errorf("%d pulls, want one that is new", n)
	}
	if n := d.read(r).Pulls; n != 0 {
		t.Errorf("%d pulls, none moves", n)
	}
	layer.Offset = 6
	if n := d.read(r).Pulls; n != 1 {
		t.Errorf("%d pulls, one moves", n)
	}
}

func TestFailures(t *testing.T) {
	r, err := NewReader(filepath.Join(t.TempDir(), "missing.sock"), "k8s.io")
	must(t, err)
	defer r.Close()
	if _, err := r.Read(t.Context()); status.Code(errors.Unwrap(err)) != codes.Unavailable {
		t.Errorf("without containerd: %v", err)
	}
	d := start(t)
	d.hangs = true
	if _, err := d.reader().Read(t.Context()); err == nil || !strings.Contains(err.Error(), "hangs") {
		t.Errorf("%v", err)
	}
}

// Events lead to a reading, and so does every subscription: it has no events from before.
func TestWatch(t *testing.T) {
	d := start(t)
	r := d.reader()
	// Each change with whether all blobs would be listed.
	changes, ended := make(chan bool, 100), make(chan error, 1)
	watch := func() { ended <- r.Watch(t.Context(), func() { changes <- r.relist.Swap(false) }) }
	go watch()
	seen := func(what string) (all bool) {
		t.Helper()
		select {
		case all = <-changes:
		case <-time.After(time.Minute):
			t.Fatalf("%s: not seen", what)
		}
		return all
	}
	for _, what := range []string{"subscribed", "a moment later"} {
		if !seen(what) {
			t.Errorf("%s: not everything would be read", what)
		}
	}
	d.events <- &types.Envelope{Topic: "/images/create"}
	if seen("an event") {
		t.Error("after an event, all blobs would be listed")
	}
	if want := []string{`topic~="^/images/",namespace=="k8s.io"`}; !slices.Equal(d.filters, want) {
		t.Errorf("filters %q, want %q", d.filters, want)
	}
	d.server.Stop()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended without an error")
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not notice that containerd is gone")
	}
	// A containerd that comes later is waited for.
	go watch()
	d.serve()
	seen("subscribed again")
	expect(t, "and read", d.read(r).Contents.Images)
}

// An answer that is too large is refused; the error names the way out.
func TestLargeAnswer(t *testing.T) {
	d := start(t)
	target := d.manifest("a", "base")
	for i := range 25 {
		d.record(target, fmt.Sprint("quay.io/a:", i, strings.Repeat("x", 1<<20)))
	}
	r, err := NewReader(d.socket, "k8s.io")
	must(t, err)
	defer r.Close()
	if _, err := r.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "images: ") || !strings.Contains(err.Error(), "larger than max") || !strings.Contains(err.Error(), "crictl rmi --prune") {
		t.Error(err)
	}
}
