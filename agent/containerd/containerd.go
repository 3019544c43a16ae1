// Package containerd reads what a node with containerd (1.7 or later) holds, through its API.
package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/manifest"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/ocimanifest"
)

const (
	// maxMessage bounds an answer: maxImages, each with three records. It is in memory twice.
	maxMessage = 24 << 20
	// maxImages bounds what is looked at.
	maxImages = 16_384
	// lastReconnect is the longest pause between two attempts to connect: containerd may be away
	// for long, and gRPC would wait for two minutes then.
	lastReconnect = 5 * time.Second
	// lateEvents is when to read again after subscribing: the API does not show when the
	// subscription begins.
	lateEvents = time.Second
)

// lazy are snapshotters that fetch what is read of a layer: blobs never come, which does not
// mean that they were dropped.
var lazy = []string{"stargz", "nydus", "soci", "overlaybd", "gcfs"}

// Reader asks a containerd.
type Reader struct {
	connection *grpc.ClientConn
	namespace  string
	images     imagesapi.ImagesClient
	content    contentapi.ContentClient
	events     eventsapi.EventsClient
	versions   versionapi.VersionClient
	// platform is what containerd runs on this node.
	platform platforms.MatchComparer

	known *manifest.Known
	// settled are the images that were unpacked when all blobs were last listed, by their target.
	// Until the next listing they are taken to stay so while their records do not change.
	settled map[string]settled
	// listed is when the last reading began that listed all blobs; relist has the next one do so.
	listed time.Time
	relist atomic.Bool
	// inChains is what was last found of how layers are used.
	inChains bool
	// offsets are those of the downloads at the last reading, by their name.
	offsets map[string]int64
}

// NewReader returns a reader of the containerd that serves at the path of a socket, which need
// not be there yet, for one of its namespaces.
func NewReader(socket, namespace string) (*Reader, error) {
	connection, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnects(), MinConnectTimeout: lastReconnect}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	return &Reader{
		connection: connection, namespace: namespace,
		images: imagesapi.NewImagesClient(connection), content: contentapi.NewContentClient(connection),
		events: eventsapi.NewEventsClient(connection), versions: versionapi.NewVersionClient(connection),
		platform: platforms.Default(),
	}, nil
}

func reconnects() backoff.Config {
	config := backoff.DefaultConfig
	config.MaxDelay = lastReconnect
	return config
}

// Close ends the connection.
func (r *Reader) Close() error { return r.connection.Close() }

// Name implements read.Runtime.
func (*Reader) Name() string { return "containerd" }

func (r *Reader) in(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", r.namespace)
}

// Read implements read.Runtime.
func (r *Reader) Read(ctx context.Context) (*read.Result, error) {
	ctx = r.in(ctx)
	began := time.Now()
	// Each time: it may have been replaced by another one.
	answer, err := r.versions.Version(ctx, &emptypb.Empty{})
	if err != nil {
		return nil, fmt.Errorf("version: %w", err)
	}
	version := strings.TrimPrefix(answer.GetVersion(), "v")
	result := &read.Result{Contents: contents.Contents{Runtime: r.Name() + " " + version[:min(len(version), 40)], JoinsDownloads: ptr.To(true)}}
	list, err := r.images.List(ctx, &imagesapi.ListImagesRequest{})
	if status.Code(err) == codes.ResourceExhausted {
		err = fmt.Errorf("%w: remove images that nobody needs (crictl rmi --prune)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	targets, records := group(list.GetImages())
	if len(targets) > maxImages {
		result.Skip(handover.TooManyImages, len(targets)-maxImages)
		targets = targets[:maxImages]
	}
	nowSettled := map[string]settled{}
	for _, target := range targets {
		if s, ok := r.settled[target]; ok && s.changed.Equal(records[target].changed) {
			nowSettled[target] = s
		}
	}
	// After the images: what these need is not removed before them.
	blobs, err := r.look(ctx, len(targets)-len(nowSettled))
	if err != nil {
		return nil, fmt.Errorf("content: %w", err)
	}
	// What is known is renewed as a whole with the list of all blobs.
	whole, known := blobs.all != nil, r.known
	pulled, imported := map[string]bool{}, map[string]bool{}
	if whole {
		known = r.known.Next()
		clear(nowSettled)
	}
	for _, target := range targets {
		var err error
		found := nowSettled[target].found
		if found == nil {
			found, err = r.find(ctx, target, blobs, known)
		}
		if blobs.err != nil {
			return nil, fmt.Errorf("content: %w", blobs.err)
		}
		if err != nil && ctx.Err() != nil {
			return nil, err
		}
		// What can be used some other time is read again soon.
		result.Incomplete = result.Incomplete || err != nil && !errors.Is(err, errUnusable) && !errors.Is(err, errNotHere)
		switch {
		case errors.Is(err, errNotHere):
			result.Skip(handover.NotUnpacked, 1)
			continue
		case found == nil:
			result.Skip(handover.NoManifest, 1)
			result.Contents.Add(contents.Image{Names: records[target].names})
			continue
		}
		if whole && found.unpacked {
			nowSettled[target] = settled{found, records[target].changed}
		}
		if found.manifest.Unknown != nil {
			result.Skip(handover.NoLayers, 1)
		}
		if found.chain != "" && len(found.manifest.Layers) > 0 {
			kept := imported
			if found.pulled {
				kept = pulled
			}
			kept[found.chain] = kept[found.chain] || found.kept
		}
		result.Contents.Add(contents.Image{Names: append(records[target].names, found.digest), Layers: found.manifest.Layers})
	}
	r.known, r.settled = known, nowSettled
	known.Done()
	if whole {
		r.listed = began
	}
	if len(pulled) == 0 {
		pulled = imported
	}
	result.Contents.InChains = r.chains(pulled)
	result.Pulls = r.pulls(ctx)
	return result, nil
}

// chains reports whether layers are used in chains, by what was kept: for each chain ID of images
// that were fetched and unpacked, whether the blob of the last layer of one of them is still
// there. Where blobs are dropped, they go a little after the pull. Where they are kept, that blob
// is there: containerd fetches what it has not unpacked already. Missing it is an image whose
// layers are the first ones of another image, pulled before with another compression. Once most
// were dropped, it is believed as long as any is. Images that were imported, as by "kind load" or
// "ctr import", keep their blobs in any case: they are asked only where none was pulled.
func (r *Reader) chains(kept map[string]bool) bool {
	dropped := 0
	for _, here := range kept {
		if !here {
			dropped++
		}
	}
	r.inChains = dropped > len(kept)-dropped || r.inChains && dropped > 0
	return r.inChains
}

// records are those of an image.
type records struct {
	// names are its tags and its digest.
	names []string
	// changed is when the last of them was made or changed.
	changed time.Time
}

// group returns the targets of images, sorted, and the records of each. containerd has a record
// for each name, one for the digest in a repository, and one for the configuration, which is no
// name.
func group(all []*imagesapi.Image) (targets []string, of map[string]*records) {
	of = map[string]*records{}
	for _, record := range all {
		target := record.GetTarget().GetDigest()
		if !v1alpha1.IsDigest(target) || v1alpha1.IsDigest(record.GetName()) {
			continue
		}
		r := of[target]
		if r == nil {
			r = &records{names: []string{target}}
			targets, of[target] = append(targets, target), r
		}
		for _, at := range []*timestamppb.Timestamp{record.GetCreatedAt(), record.GetUpdatedAt()} {
			if at := at.AsTime(); at.After(r.changed) {
				r.changed = at
			}
		}
		if !strings.Contains(record.GetName(), "@") {
			r.names = append(r.names, record.GetName())
		}
	}
	slices.Sort(targets)
	return targets, of
}

// found is the manifest of an image that is in use on this node.
type found struct {
	digest   string
	manifest *manifest.Manifest
	unpacked bool
	// chain is the chain ID of an image whose whole layers were fetched and unpacked.
	chain string
	// kept reports whether the blob of its last layer is there, pulled whether the image came from
	// a registry.
	kept, pulled bool
}

// errNotHere: nothing of an image can be used, its manifest is missing, or it was not unpacked, and layers are missing.
var errNotHere = errors.New("not unpacked")

// maxNested bounds how deep indexes in indexes are followed.
const maxNested = 3

// find returns the manifest of a target that containerd uses, if it is unpacked, or if its layers are all there. The
// target may be an index: then it is what images.Manifest takes (github.com/containerd/containerd/v2/core/images), with
// which containerd lists images to the kubelet. Another one is not in use, even if it is there.
func (r *Reader) find(ctx context.Context, target string, blobs *blobs, known *manifest.Known) (*found, error) {
	entry := manifest.Entry{Digest: target}
	m, err := r.manifest(ctx, target, blobs, known)
	for nested := 0; err == nil && m.Config == ""; nested++ {
		switch {
		case m.Unknown != nil || nested > maxNested:
			return nil, errUnusable
		case len(m.Manifests) == 0:
			return nil, errNotHere // it is for no such node
		}
		entry = m.Manifests[0]
		if m, err = r.manifest(ctx, entry.Digest, blobs, known); errors.Is(err, errUnusable) {
			err = errNotHere
		}
	}
	if err == nil && entry.Platform == nil && entry.Digest != target {
		err = r.checkPlatform(ctx, m.Config, blobs, known)
	}
	if err != nil {
		return nil, err
	}
	config := blobs.get(m.Config)
	switch {
	case config == nil:
		return nil, errNotHere
	case len(config.unpacked) > 0:
		kept := len(m.Layers) > 0 && blobs.get(m.Layers[len(m.Layers)-1].Digest) != nil
		return &found{entry.Digest, m, true, chain(config.unpacked), kept, config.pulled}, nil
	case len(m.Layers) == 0 || slices.ContainsFunc(m.Layers, func(l v1alpha1.ImageLayer) bool { return blobs.get(l.Digest) == nil }):
		return nil, errNotHere
	}
	return &found{digest: entry.Digest, manifest: m}, nil
}

// choose returns the entry of an index that containerd takes, if any.
func (r *Reader) choose(entries []manifest.Entry) []manifest.Entry {
	of := make([]*ocispec.Platform, len(entries))
	for i := range entries {
		of[i] = entries[i].Platform
	}
	taken := ocimanifest.ContainerdTakes(of, r.platform)
	if taken < 0 {
		return nil
	}
	return entries[taken : taken+1]
}

// checkPlatform returns no error if a configuration is of this node's platform: it counts where an index states none.
func (r *Reader) checkPlatform(ctx context.Context, config string, blobs *blobs, known *manifest.Known) error {
	// Known is, under a key that is no digest, one that is, and as unusable one that is not.
	key := "platform of " + config
	m, ok := known.Get(key)
	if b := blobs.get(config); b == nil {
		return errNotHere
	} else if !ok {
		text, err := r.read(ctx, config, b.size)
		if err != nil && status.Code(err) != codes.OutOfRange {
			return err
		}
		var stated struct{ OS, Architecture, Variant string }
		if err == nil && json.Unmarshal(text, &stated) == nil &&
			r.platform.Match(ocispec.Platform{OS: stated.OS, Architecture: stated.Architecture, Variant: stated.Variant}) {
			m = &manifest.Manifest{}
		}
		known.Put(key, m)
	}
	if m == nil {
		return errNotHere
	}
	return nil
}

// chain returns the chain ID of an image by the snapshotters into which it was unpacked; none if
// one of them is lazy.
func chain(unpacked map[string]string) string {
	chain := ""
	for snapshotter, id := range unpacked {
		if slices.Contains(lazy, snapshotter) {
			return ""
		}
		chain = id
	}
	return chain
}

var errUnusable = errors.New("not a manifest that can be used")

// manifest returns a manifest or an index of the content store.
func (r *Reader) manifest(ctx context.Context, digest string, blobs *blobs, known *manifest.Known) (*manifest.Manifest, error) {
	b := blobs.get(digest)
	if b == nil {
		return nil, errNotHere // containerd does not list such an image to the kubelet, which pulls it again
	}
	m, ok := known.Get(digest)
	if !ok {
		text, err := r.read(ctx, digest, b.size)
		if err != nil && status.Code(err) != codes.OutOfRange {
			return nil, err
		}
		if err == nil {
			if m, _ = manifest.Parse(text); m != nil {
				m.Manifests = r.choose(m.Manifests)
			}
		}
		m = known.Put(digest, m)
	}
	if m == nil {
		return nil, errUnusable
	}
	return m, nil
}

// read reads a blob that can be a manifest.
func (r *Reader) read(ctx context.Context, digest string, size int64) ([]byte, error) {
	if size < 0 || size > manifest.MaxBytes {
		return nil, status.Errorf(codes.OutOfRange, "blob %s of %d bytes", digest, size)
	}
	stream, err := r.content.Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
	if err != nil {
		return nil, err
	}
	text := make([]byte, 0, size)
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return nil, err
		}
		if text = append(text, answer.GetData()...); len(text) > manifest.MaxBytes {
			return nil, status.Errorf(codes.OutOfRange, "blob %s of more than %d bytes", digest, manifest.MaxBytes)
		}
	}
}

// pulls counts the downloads of layers that go on. One that was killed stays in the list for a
// day, so only those count that are new or have moved since the last reading.
func (r *Reader) pulls(ctx context.Context) int {
	answer, err := r.content.ListStatuses(ctx, &contentapi.ListStatusesRequest{})
	if err != nil {
		return 0 // a number for the metrics, nothing depends on it
	}
	offsets, moving := map[string]int64{}, 0
	for _, download := range answer.GetStatuses() {
		if !strings.HasPrefix(download.GetRef(), "layer-") {
			continue
		}
		offsets[download.GetRef()] = download.GetOffset()
		if before, known := r.offsets[download.GetRef()]; !known || before != download.GetOffset() {
			moving++
		}
	}
	r.offsets = offsets
	return moving
}

// Watch implements read.Runtime. The stream of events ends with containerd and does not repeat
// what was missed: so everything is read whenever it begins.
func (r *Reader) Watch(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.events.Subscribe(r.in(ctx), &eventsapi.SubscribeRequest{
		Filters: []string{fmt.Sprintf(`topic~="^/images/",namespace==%q`, r.namespace)},
	}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	began := func() {
		r.relist.Store(true)
		changed()
	}
	began()
	late := time.AfterFunc(lateEvents, began)
	defer late.Stop()
	for {
		if _, err := stream.Recv(); err != nil {
			return fmt.Errorf("events: %w", err)
		}
		changed()
	}
}
