package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	// pulled tells whether it came from a registry.
	pulled bool
}

// blobs are those of the content store.
type blobs struct {
	known map[string]*blob // nil: not there
	// all is set if known has all that there are. Otherwise ask finds one, nil if it is not there,
	// and list finds all.
	all  bool
	ask  func(digest string) (*blob, error)
	list func() (map[string]*blob, error)
	// asked counts the questions, err is the first error.
	asked int
	err   error
}

// get returns a blob, nil if it is not there or if it could not be found out.
func (b *blobs) get(digest string) *blob {
	found, ok := b.known[digest]
	switch {
	case ok || b.all || b.err != nil:
		return found
	case b.asked == maxAsked:
		b.known, b.err = b.list()
		b.all = true
		return b.known[digest]
	}
	b.asked++
	found, b.err = b.ask(digest)
	b.known[digest] = found
	return found
}

// look lists all blobs if that is due. Otherwise those are asked for that are needed of the images
// that are not settled.
func (r *Reader) look(ctx context.Context, unsettled int) (*blobs, error) {
	list := func() (map[string]*blob, error) {
		r.listed = time.Time{} // due again, unless this reading settles what it finds
		return r.list(ctx)
	}
	if due := r.relist.Swap(false); due || time.Since(r.listed) > listEvery || unsettled > maxNew {
		all, err := list()
		return &blobs{known: all, all: true}, err
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

// list returns all blobs in the content store.
func (r *Reader) list(ctx context.Context) (map[string]*blob, error) {
	stream, err := r.content.List(ctx, &contentapi.ListContentRequest{})
	if err != nil {
		return nil, err
	}
	all := map[string]*blob{}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		for _, info := range answer.GetInfo() {
			if all[info.GetDigest()] = newBlob(info); len(all) > maxBlobs {
				return nil, fmt.Errorf("more than %d blobs", maxBlobs)
			}
		}
	}
}

// settled is what was found of an image with records of that time.
type settled struct {
	*found
	changed time.Time
}
