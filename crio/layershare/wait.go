package layershare

import (
	"context"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	"go.podman.io/image/v5/types"
)

const (
	// A pull waits if it saves this many compressed bytes at least, and this part of
	// all that it lacks: waiting has a price, as its other layers wait as well.
	minBytes, minPart = 16 << 20, 4

	// maxWait bounds the whole of waiting.
	maxWait = 10 * time.Minute

	// patience is how long a pull waits while nothing that it waits for moves; if
	// others that wait for the same are before it, twice as long, so that the oldest
	// can try first.
	patience = 10 * time.Second

	// unpackRate is how many compressed bytes a second a store unpacks, at the
	// least. The copy reports nothing meanwhile, so patience is longer by the time
	// for the layers whose download has begun.
	unpackRate = 10 << 20

	// maxFailures is how many earlier pulls may fail while they download what a pull
	// waits for. After that it tries itself, whoever else is before it.
	maxFailures = 2

	// lookInterval is how often a pull that waits looks at the store.
	lookInterval = 200 * time.Millisecond

	// requestTimeout bounds each request to a registry that is made only to share. Links
	// that are full answer late.
	requestTimeout = 15 * time.Second
)

// waiter is a pull that waits for earlier ones.
type waiter struct {
	pull   *Pull
	layers []types.BlobInfo // of its image
	// stored are the layers that have been seen in the store.
	stored map[digest.Digest]bool

	// older are the pulls at the last look that have layers in common with this one,
	// the oldest first, and how many from the bottom up.
	older []sharing
	// moved is when something moved last in what it waits for.
	moved    time.Time
	failures int
}

type sharing struct {
	pull   *Pull
	layers int
}

// wait returns when no earlier pull downloads what this one needs, or when that does
// not get on. It has no error: what is not there, the copy downloads, and meets the
// same end as without waiting. Prove tells whether the registry serves a layer to who
// pulls this image: that its manifest names a layer proves nothing, and a layer of
// somebody else must not come from the store because he pulls it right now.
func (p *Pull) wait(ctx context.Context, prove func(types.BlobInfo) bool) {
	if len(p.pulls.older(p)) == 0 {
		return
	}

	w := waiter{pull: p, layers: p.image(), stored: map[digest.Digest]bool{}}
	if !w.worthwhile(w.look(time.Now())) {
		return
	}

	next := copies

	p.turn(waits)
	defer func() { p.turn(next) }()

	w.keep(prove)

	missing := w.look(time.Now())
	if !w.worthwhile(missing) {
		return
	}

	began, bytes := time.Now(), w.bytes(missing)
	logrus.Infof("Pull of %s waits for %d bytes of layers that other pulls download", p.name(), bytes)

	reason, done := w.run(ctx)
	if !done {
		next = resigned
	}

	logrus.Infof("Pull of %s waited %s for %d bytes of layers that other pulls download: %s", p.name(), time.Since(began).Round(time.Millisecond), bytes, reason)
}

// run waits, and returns why it ended, and whether nothing is left to wait for.
func (w *waiter) run(ctx context.Context) (reason string, done bool) {
	timeout := time.NewTimer(maxWait)
	defer timeout.Stop()

	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()

	for {
		now := time.Now()

		switch missing := w.look(now); {
		case len(missing) == 0:
			return "nobody downloads them any more", true
		case w.failures >= maxFailures:
			return "other pulls failed", false
		case now.Sub(w.moved) >= w.patience(missing):
			return "other pulls do not get on", false
		}

		select {
		case <-ctx.Done():
			return "the pull was cancelled", false
		case <-timeout.C:
			return "other pulls are slow", false
		case <-ticker.C:
		}
	}
}

// look returns which of the pull's layers, by their number, earlier pulls have to
// download, and notes what has happened since the last look.
func (w *waiter) look(now time.Time) (missing []int) {
	before := w.older
	w.older = nil
	// A pull that has ended is not among them, but what it downloaded is stored.
	for _, other := range w.pull.pulls.older(w.pull) {
		if common := commonBase(w.layers, other.image()); common > 0 {
			w.older = append(w.older, sharing{other, common})
		}
	}

	missing = w.missing(now)

	for _, gone := range before {
		still := slices.ContainsFunc(w.older, func(s sharing) bool { return s.pull == gone.pull })
		if !still && slices.ContainsFunc(missing, func(i int) bool { return gone.downloads(w.layers, i) }) {
			w.failures++
			w.moved = now
		}
	}

	for _, other := range w.older {
		for _, i := range missing {
			if i >= other.layers {
				break
			}

			w.moved = latest(w.moved, other.pull.reported(w.layers[i].Digest).moved)
			if now, since := other.pull.state(); now == copies {
				w.moved = latest(w.moved, since)
			}
		}
	}

	return missing
}

// missing returns the layers that are not stored of those that the pull has in common
// with an earlier one.
func (w *waiter) missing(now time.Time) (missing []int) {
	common := 0
	for _, other := range w.older {
		common = max(common, other.layers)
	}

	for i, layer := range w.layers[:common] {
		switch {
		case w.stored[layer.Digest]:
		case w.pull.stored(layer) || w.reused(layer.Digest):
			w.stored[layer.Digest], w.moved = true, now
		default:
			missing = append(missing, i)
		}
	}

	return missing
}

// reused tells whether an earlier pull found the layer in the store, in another form.
func (w *waiter) reused(layer digest.Digest) bool {
	return slices.ContainsFunc(w.older, func(other sharing) bool { return other.pull.reported(layer).reused })
}

// downloads tells whether the other pull began to download a layer that both have.
func (s sharing) downloads(layers []types.BlobInfo, i int) bool {
	return i < s.layers && s.pull.reported(layers[i].Digest).begun
}

// keep leaves of the image what is below the first missing layer that is not proved.
func (w *waiter) keep(prove func(types.BlobInfo) bool) {
	for _, i := range w.missing(time.Now()) {
		if !prove(w.layers[i]) {
			w.layers = w.layers[:i]

			return
		}
	}
}

// worthwhile tells whether to begin to wait for what is missing.
func (w *waiter) worthwhile(missing []int) bool {
	bytes := w.bytes(missing)
	if bytes < minBytes {
		return false
	}

	var lacks int64

	for _, layer := range w.pull.image() {
		if !w.stored[layer.Digest] && !w.pull.stored(layer) {
			lacks += max(layer.Size, 0)
		}
	}

	return bytes >= lacks/minPart
}

// patience returns how long nothing may move: longer if another pull that waited for
// the same is before this one, and tries when its own patience is at an end.
func (w *waiter) patience(missing []int) time.Duration {
	limit := patience

	for _, other := range w.older {
		if now, _ := other.pull.state(); now != copies && missing[0] < other.layers {
			limit = 2 * patience
		}
	}

	// What has arrived is unpacked without reports, and a layer that comes in parts has
	// none at all.
	var silent []int

	for _, i := range missing {
		begun := slices.ContainsFunc(w.older, func(other sharing) bool { return other.downloads(w.layers, i) })
		if begun || isChunked(w.layers[i]) {
			silent = append(silent, i)
		}
	}

	return limit + time.Duration(min(w.bytes(silent)/unpackRate, int64(maxWait/time.Second)))*time.Second
}

// bytes returns how many compressed bytes the layers have.
func (w *waiter) bytes(layers []int) (sum int64) {
	for _, i := range layers {
		sum += w.layers[i].Size
	}

	return sum
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
