package layershare

import (
	"context"
	"sync"

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

// open waits for earlier pulls, with the source opened.
func (p *Pull) open(ctx context.Context, opened types.ImageSource, system *types.SystemContext) {
	p.image = sync.OnceValue(func() []types.BlobInfo {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()

		return layersOf(ctx, opened, system)
	})
	p.turn(copies)
	p.pulls.enter(p)
	p.wait(ctx, func(layer types.BlobInfo) bool { return serves(ctx, opened, layer) })
}

// serves tells whether the registry serves the layer to who pulls from source. It
// looks at the beginning of the answer only.
func serves(ctx context.Context, source types.ImageSource, layer types.BlobInfo) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()

	stream, size, err := source.GetBlob(ctx, layer, none.NoCache)
	if err != nil {
		return false
	}

	stream.Close()

	return size < 0 || size == layer.Size
}
