package containerd

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/layer-locality/layer-locality/agent/manifest"
)

const (
	maxBlobs = 1 << 19 // bounds what is looked at
	// A reading lists all blobs if the last one that did began listEvery ago, if more than maxNew
	// images are not settled, or if it has asked for maxAsked single ones.
	listEvery = 40 * time.Second
	maxNew    = 64
	maxAsked  = 256
	// snapshotLabel begins a label of the configuration of an image that has been unpacked;
	// the name of the snapshotter follows. containerd sets it when unpacking is done. Its value
	// is the chain ID of all layers (github.com/opencontainers/image-spec, config.md).
	snapshotLabel = "containerd.io/gc.ref.snapshot."
	// sourceLabel begins the labels of a blob that was pulled, which name the registry
	// (containerd's pkg/labels). What was imported from an archive has none.
	sourceLabel = "containerd.io/distribution.source."
)

// blob is what is known about a blob in the content store.
type blob struct {
	size int64
	// unpacked are the snapshotters into which the image was unpacked whose configuration it
	// is, each with the chain ID of the image.
	unpacked map[string]string
	// pulled reports whether it came from a registry.
	pulled bool
}

// blobs are those of the content store.
type blobs struct {
	// known are those that were asked for, nil if they are not there, and the configurations of images that
	// were unpacked.
	known map[string]*blob
	// all are all that there are; nil unless they were listed. Otherwise ask finds one, nil if it is not
	// there, and list finds all.
	all  sizes
	ask  func(digest string) (*blob, error)
	list func() (map[string]*blob, sizes, error)
	// asked counts the questions, err is the first error.
	asked int
	err   error
}

// sizes are those of blobs, at most one byte more than a manifest may have, by a hash of their digest: there
// may be hundreds of thousands, and little of them matters. The seed is secret, so nobody can make two
// digests with one hash.
type sizes map[uint64]uint32

var seed = maphash.MakeSeed()

func (s sizes) add(digest string, size int64) {
	if size < 0 || size > manifest.MaxBytes {
		size = manifest.MaxBytes + 1
	}
	s[maphash.String(seed, digest)] = uint32(size)
}

// get returns a blob, nil if it is not there or if it could not be found out.
func (b *blobs) get(digest string) *blob {
	found, ok := b.known[digest]
	switch {
	case ok || b.err != nil:
		return found
	case b.all == nil && b.asked < maxAsked:
		b.asked++
		found, b.err = b.ask(digest)
		b.known[digest] = found
		return found
	case b.all == nil:
		if b.known, b.all, b.err = b.list(); b.err != nil {
			return nil
		}
		return b.get(digest)
	}
	if size, ok := b.all[maphash.String(seed, digest)]; ok {
		return &blob{size: int64(size)}
	}
	return nil
}

// look lists all blobs if that is due. Otherwise those are asked for that are needed of the images
// that are not settled.
func (r *Reader) look(ctx context.Context, unsettled int) (*blobs, error) {
	list := func() (map[string]*blob, sizes, error) {
		r.listed = time.Time{} // due again, unless this reading settles what it finds
		return r.list(ctx)
	}
	if due := r.relist.Swap(false); due || time.Since(r.listed) > listEvery || unsettled > maxNew {
		unpacked, all, err := list()
		return &blobs{known: unpacked, all: all}, err
	}
	return &blobs{known: map[string]*blob{}, list: list, ask: func(digest string) (*blob, error) {
		answer, err := r.content.Info(ctx, &contentapi.InfoRequest{Digest: digest})
		switch {
		case status.Code(err) == codes.NotFound:
			return nil, nil
		case err != nil:
			return nil, err
		}
		return newBlob(answer.GetInfo()), nil
	}}, nil
}

func newBlob(info *contentapi.Info) *blob {
	b := &blob{size: info.GetSize()}
	for label, chain := range info.GetLabels() {
		if snapshotter, ok := strings.CutPrefix(label, snapshotLabel); ok {
			if b.unpacked == nil {
				b.unpacked = map[string]string{}
			}
			b.unpacked[snapshotter] = chain
		}
		b.pulled = b.pulled || strings.HasPrefix(label, sourceLabel)
	}
	return b
}

// list returns the configurations of images that were unpacked, and the sizes of all blobs.
func (r *Reader) list(ctx context.Context) (unpacked map[string]*blob, all sizes, err error) {
	stream, err := r.content.List(ctx, &contentapi.ListContentRequest{})
	if err != nil {
		return nil, nil, err
	}
	unpacked, all = map[string]*blob{}, sizes{}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return unpacked, all, nil
		}
		if err != nil {
			return nil, nil, err
		}
		for _, info := range answer.GetInfo() {
			if all.add(info.GetDigest(), info.GetSize()); len(all) > maxBlobs {
				return nil, nil, fmt.Errorf("more than %d blobs: remove images that nobody needs (crictl rmi --prune)", maxBlobs)
			}
			if b := newBlob(info); b.unpacked != nil {
				unpacked[info.GetDigest()] = b
			}
		}
	}
}

// settled is what was found of an image with records of that time.
type settled struct {
	*found
	changed time.Time
}
