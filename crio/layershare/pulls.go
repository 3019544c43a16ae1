// Package layershare has a node download a layer once when several images that lie
// on it are pulled at the same time: a pull waits, before it copies anything, until
// the layers that an earlier pull is downloading are in the store, where the copy
// finds them. It never waits for a later pull, so no two wait for each other.
package layershare

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/types"
)

// ReportInterval is how often a copy has to report how far a download is.
const ReportInterval = 200 * time.Millisecond

// Pulls are the pulls of images into one store that go on in this process. The zero
// value has none.
type Pulls struct {
	lock sync.Mutex
	// going have opened their source, the oldest first.
	going []*Pull
}

// Store is what a pull copies to.
type Store struct {
	// Has reports whether the store has a layer of that digest.
	Has func(types.BlobInfo) bool
	// Silent reports whether a copy may download the layer without a report, as it does if
	// it fetches only the parts that the store lacks.
	Silent func(types.BlobInfo) bool
	// Allowed reports whether the copy will accept the image of an opened source, or that
	// member of its index. A pull that it refuses waits for nothing.
	Allowed func(ctx context.Context, opened types.ImageSource, member *digest.Digest) bool
	// Take brings layers of an allowed image into the store, the first of layers, from elsewhere than
	// the registry, and reports as a copy does. It may be nil.
	Take func(ctx context.Context, opened types.ImageSource, layers []types.BlobInfo, report func(*types.ProgressProperties))
}

// Pull is one of them.
type Pull struct {
	pulls  *Pulls
	source types.ImageReference
	store  Store
	// registry is where the source is: only pulls from one and the same share.
	registry string
	// image is what is pulled. It is set when the source has been opened.
	image *pulledImage
	// cancelled reports whether nobody wants it any more.
	cancelled func() bool

	lock  sync.Mutex
	state state
	// reports are what the copy reported of each blob.
	reports map[digest.Digest]report
}

// phase is what a pull does.
type phase int

const (
	// copies: it downloads what is not in the store.
	copies phase = iota
	// waits for earlier pulls.
	waits
	// resigned: it copies, because waiting came to nothing.
	resigned
)

// report is what the copy reported of a blob.
type report struct {
	// begun: it downloads the blob, or has.
	begun bool
	// moved is when something of it arrived last.
	moved time.Time
	// reused: it found the blob in the store.
	reused bool
	// done: all of it has arrived.
	done bool
	// bytes have arrived of it.
	bytes int64
	// arrivals are what has arrived in the last longWindow, the oldest first.
	arrivals []arrival
}

// arrival is what has arrived since the report before.
type arrival struct {
	at    time.Time
	bytes int64
}

// Begin announces a pull of source into store. The caller copies from Source instead,
// passes the reports of the copy to Observe, and calls End when the copy has ended.
func (p *Pulls) Begin(source types.ImageReference, store Store) *Pull {
	pull := &Pull{pulls: p, source: source, store: store, reports: map[digest.Digest]report{}}
	if named := source.DockerReference(); named != nil {
		pull.registry = reference.Domain(named)
	}

	return pull
}

// End ends the pull. Those that wait for it go on.
func (p *Pull) End() {
	if p.image != nil {
		p.image.cancel()
	}

	p.pulls.lock.Lock()
	defer p.pulls.lock.Unlock()

	p.pulls.going = slices.DeleteFunc(p.pulls.going, func(other *Pull) bool { return other == p })
}

// Observe takes a progress report of the copy.
func (p *Pull) Observe(progress *types.ProgressProperties) {
	p.lock.Lock()
	defer p.lock.Unlock()

	r := p.reports[progress.Artifact.Digest]

	switch progress.Event {
	case types.ProgressEventNewArtifact:
		r.begun, r.bytes, r.arrivals = true, 0, nil
	case types.ProgressEventRead, types.ProgressEventDone:
		r.done = progress.Event == types.ProgressEventDone
		r.arrive(time.Now(), int64(min(progress.Offset, maxLayerBytes)))
	case types.ProgressEventSkipped:
		r.reused = true
	}

	p.reports[progress.Artifact.Digest] = r
}

// Downloaded reports whether the copy downloaded a blob of that digest, or has begun to.
func (p *Pull) Downloaded(blob digest.Digest) bool { return p.reported(blob).begun }

// reported returns what the copy reported of a layer.
func (p *Pull) reported(layer digest.Digest) report {
	p.lock.Lock()
	defer p.lock.Unlock()

	return p.reports[layer]
}

// state is what a pull does, since when, and when it began to copy or, while it waits, when it
// saw something move in what it waits for.
type state struct {
	phase        phase
	since, moved time.Time
	// unknown: it could not measure its own rate.
	unknown bool
}

func (p *Pull) now() state {
	p.lock.Lock()
	defer p.lock.Unlock()

	return p.state
}

// noteUnknown notes whether the pull cannot measure its own rate.
func (p *Pull) noteUnknown(unknown bool) {
	p.lock.Lock()
	defer p.lock.Unlock()

	p.state.unknown = unknown
}

func (p *Pull) turn(to phase, moved time.Time) {
	p.lock.Lock()
	defer p.lock.Unlock()

	p.state.phase, p.state.since, p.state.moved = to, time.Now(), moved
}

// saw notes when something moved last in what the pull waits for, if it does: those that
// wait for this pull wait for that as well.
func (p *Pull) saw(moved time.Time) {
	p.lock.Lock()
	defer p.lock.Unlock()

	if p.state.phase == waits {
		p.state.moved = moved
	}
}

// enter makes the pull the youngest of those that go on.
func (p *Pulls) enter(pull *Pull) {
	p.lock.Lock()
	defer p.lock.Unlock()

	p.going = append(p.going, pull)
}

// older returns the pulls that go on, come from the registry of pull, and opened their
// source earlier, the oldest first.
func (p *Pulls) older(pull *Pull) []*Pull {
	p.lock.Lock()
	defer p.lock.Unlock()

	var older []*Pull

	for _, other := range p.going {
		if other == pull {
			break
		}

		if pull.registry != "" && other.registry == pull.registry {
			older = append(older, other)
		}
	}

	return older
}

// name is for the log.
func (p *Pull) name() string {
	if named := p.source.DockerReference(); named != nil {
		return named.String()
	}

	return p.source.StringWithinTransport()
}
