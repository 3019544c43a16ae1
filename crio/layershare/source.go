package layershare

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"go.podman.io/image/v5/types"
)

// Source is what to copy from. When it is opened, the pull waits. The copy gets the
// source as it is: wrapped, it would lose what only sources of its own module can
// (requests for parts of layers, signatures of sigstore).
func (p *Pull) Source() types.ImageReference { return source{p.source, p} }

type source struct {
	types.ImageReference

	pull *Pull
}

func (s source) NewImageSource(ctx context.Context, system *types.SystemContext) (types.ImageSource, error) {
	opened, err := s.ImageReference.NewImageSource(ctx, system)
	if err != nil {
		return nil, err //nolint:wrapcheck // The copy has to see what it would see without us.
	}

	s.pull.open(ctx, opened, system)

	return opened, nil
}

// open waits for earlier pulls, with the source opened, and then takes what comes from elsewhere. A
// copy opens it once.
func (p *Pull) open(ctx context.Context, opened types.ImageSource, system *types.SystemContext) {
	if p.image != nil {
		return
	}

	p.image, p.cancelled = newImage(ctx, opened, system), func() bool { return ctx.Err() != nil }
	p.turn(copies, time.Now())
	p.pulls.enter(p)
	p.wait(ctx, opened)
	p.take(ctx, opened)
}

// take takes layers from elsewhere, from the bottom up to the first that the copy would not take from
// the store, or that the store fetches itself.
func (p *Pull) take(ctx context.Context, opened types.ImageSource) {
	if p.store.Take == nil {
		return
	}

	if learn(ctx, patience, p); !p.allowed(ctx, opened) {
		return
	}

	layers := p.image.known()
	layers = layers[:commonBase(layers, layers)]

	if i := slices.IndexFunc(layers, p.store.Silent); i >= 0 {
		layers = layers[:i]
	}

	if len(layers) > 0 {
		p.store.Take(ctx, opened, layers, p.Observe)
	}
}

// pulledImage is what a pull pulls. The registry is asked for it once, when the first pull needs
// it. That pull does not wait for ever, and may be cancelled, but the others can use the answer.
type pulledImage struct {
	ask      func()
	cancel   context.CancelFunc // nobody needs the answer any more
	asked    time.Time          // set by ask
	answered chan struct{}      // closed when layers and member are set
	layers   []types.BlobInfo
	member   *digest.Digest // that the copy chooses, if the image is an index
}

func newImage(ctx context.Context, opened types.ImageSource, system *types.SystemContext) *pulledImage {
	ctx, cancel := context.WithCancel(ctx)
	i := &pulledImage{cancel: cancel, answered: make(chan struct{})}
	i.ask = sync.OnceFunc(func() {
		i.asked = time.Now()

		go func() {
			defer close(i.answered)

			i.layers, i.member = layersOf(ctx, opened, system)
		}()
	})

	return i
}

// known returns the layers of the image, from the bottom up; none if it is not known yet.
func (i *pulledImage) known() []types.BlobInfo {
	select {
	case <-i.answered:
		return i.layers
	default:
		return nil
	}
}

// learn returns when the images of the pulls are known, but for those that take longer than limit.
func learn(ctx context.Context, limit time.Duration, pulls ...*Pull) {
	for _, pull := range pulls {
		pull.image.ask()
	}

	for _, pull := range pulls {
		select {
		case <-pull.image.answered:
		// An earlier pull may have asked long ago.
		case <-time.After(time.Until(pull.image.asked.Add(limit))):
		case <-ctx.Done():
			return
		}
	}
}

// allowed reports whether the copy will accept the image; false without an answer in time.
func (p *Pull) allowed(ctx context.Context, opened types.ImageSource) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	select {
	case <-p.image.answered:
		return p.store.Allowed(ctx, opened, p.image.member)
	default:
		return false
	}
}

// serves reports whether the registry serves the layer to who pulls from source. It
// looks at the beginning of the answer only.
func serves(ctx context.Context, source types.ImageSource, layer types.BlobInfo) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	stream, size, err := source.GetBlob(ctx, layer, none.NoCache)
	if err != nil {
		return false
	}

	stream.Close()

	return size < 0 || size == layer.Size
}
