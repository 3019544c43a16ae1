package layershare

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	"go.podman.io/image/v5/types"
)

const (
	// A pull waits if it saves this many compressed bytes at least, and this part of
	// all that it lacks: waiting has a price, as its other layers wait as well. If there
	// are none, fewer bytes are enough.
	minBytes, minPart, minAll = 16 << 20, 4, 1 << 20

	// maxWait bounds the whole of waiting if it cannot be estimated how long an own download
	// would take; rate.go bounds that of others. It ends a little later if the store is locked
	// then: with vfs, whoever unpacks a layer holds the lock that a look needs; overlay unpacks without it.
	maxWait = 10 * time.Minute

	// patience is how long a pull waits while nothing that it waits for moves; if others
	// that wait for the same are before it, twice as long, and stagger for each of these but
	// the first, so that they try one after the other. It is also how long it waits for each
	// answer of its own registry: what it pulls, whether the policy allows that, and whether
	// it may have a layer.
	patience = 10 * time.Second
	stagger  = 2 * time.Second

	// answerTime is how long it waits for what only sharing needs of others: what they pull.
	answerTime = 4 * time.Second

	// unpackRate is how many compressed bytes a second a store unpacks, at the
	// least. The copy reports nothing meanwhile, so patience is longer by the time
	// for the layers whose download has begun.
	unpackRate = 10 << 20

	// silentRate is the same for layers that are downloaded without reports: how many
	// bytes a second a thin link brings.
	silentRate = 1 << 20

	// maxFailures is how many earlier pulls may fail while they download what a pull
	// waits for. After that it tries itself, beside one other that is before it, and with
	// each failure more beside twice as many.
	maxFailures = 2

	// maxQuestions is how many layers a pull asks for at once.
	maxQuestions = 6

	// lookInterval is how often a pull that waits looks at the store.
	lookInterval = 200 * time.Millisecond
)

// waiter is a pull that waits for earlier ones.
type waiter struct {
	pull   *Pull
	began  time.Time        // to wait, or to ask whether to
	layers []types.BlobInfo // of its image
	lacked []int            // the layers, by their number, that were missing when it began
	// stored are the layers that have been seen in the store, where it has looked once for
	// all of them.
	stored map[digest.Digest]bool
	looked bool

	// older are the pulls at the last look that have layers in common with this one,
	// the oldest first, and how many from the bottom up.
	older []sharing
	// moved is when something moved last in what it waits for.
	moved    time.Time
	failures int

	own ownRate
	// trouble is since when the pull is behind; zero if it is not.
	trouble time.Time
}

type sharing struct {
	pull   *Pull
	layers int
}

// wait returns when no earlier pull downloads what this one needs, or when its own download
// would be faster. It has no error: what is not there, the copy downloads, and meets the
// same end as without waiting. While it waits, the pull asks the registry for each layer:
// that its manifest names a layer proves nothing, and a layer of somebody else must not
// come from the store because he pulls it right now.
func (p *Pull) wait(ctx context.Context, opened types.ImageSource) {
	older := p.pulls.older(p)
	if len(older) == 0 {
		return
	}

	began := time.Now()

	asks, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()

	next, w := copies, &waiter{}

	defer func() {
		switch {
		case ctx.Err() != nil:
			next = waits // it downloads nothing any more, so it is nobody's failure either
		case next == copies:
			w.moved = time.Now()
		}

		p.turn(next, w.moved)
	}()

	// Before it is compared with others: how long a refusal takes does not depend on what they pull.
	if learn(asks, patience, p); !p.allowed(asks, opened) {
		return
	}

	learn(asks, answerTime, older...)

	w = newWaiter(p, older, began)
	if w.lacked = w.look(time.Now()); !w.worthwhile(w.lacked) {
		return
	}

	p.turn(waits, w.moved)

	bytes := w.bytes(w.lacked)
	logrus.Infof("Pull of %s waits for %d bytes of layers that other pulls download", p.name(), bytes)

	var reason string

	reason, next = w.run(ctx, opened)
	logrus.Infof("Pull of %s waited %s for %d bytes of layers that other pulls download: %s", p.name(), time.Since(began).Round(time.Millisecond), bytes, reason)
}

// newWaiter compares the images of the pulls, as far as they are known. What they have
// in common does not change, and no pull becomes an older one later.
func newWaiter(pull *Pull, older []*Pull, began time.Time) *waiter {
	w := &waiter{pull: pull, began: began, layers: pull.image.known(), stored: map[digest.Digest]bool{}}

	for _, other := range older {
		if common := commonBase(w.layers, other.image.known()); common > 0 {
			w.older = append(w.older, sharing{other, common})
		}
	}

	return w
}

// run waits, and returns why it ended, and what the pull does next.
func (w *waiter) run(ctx context.Context, opened types.ImageSource) (reason string, next phase) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()

	refused := w.prove(ctx, opened)

	for {
		now := time.Now()

		missing := w.look(now)
		if len(missing) == 0 {
			return "nobody downloads them any more", copies
		}

		if reason := w.hopeless(now, missing); reason != "" {
			return reason, resigned
		}

		switch try := w.myTurn(now, missing); {
		case try && w.own.recent(now):
			return fmt.Sprintf("other pulls are slower than this one, which gets %d bytes a second", w.own.bytes), resigned
		case try:
			w.own.measure(ctx, now, opened, w.largest(missing))
		}

		select {
		case <-ctx.Done():
			return "the pull was cancelled", waits
		case i := <-refused:
			w.cut(i)

			if missing := w.look(time.Now()); !w.worthwhile(missing) {
				return "the registry does not serve them to this pull", copies
			}
		case bytes := <-w.own.measured:
			w.own.note(time.Now(), bytes)
			w.pull.noteUnknown(bytes == 0)
		case <-ticker.C:
		}
	}
}

// hopeless returns why there is no point in waiting for what is missing; empty if there is.
func (w *waiter) hopeless(now time.Time, missing []int) string {
	switch {
	case w.failures >= maxFailures && w.before(missing) < 2<<min(w.failures-maxFailures, 10):
		return "other pulls failed"
	case now.Sub(w.moved) >= w.patience(missing):
		return "other pulls do not get on"
	case w.own.bytes <= 0 && now.Sub(w.began) >= maxWait+time.Duration(w.before(missing))*stagger:
		return "other pulls are slow"
	}

	return ""
}

// look returns which of the pull's layers, by their number, earlier pulls have to
// download, and notes what has happened since the last look.
func (w *waiter) look(now time.Time) (missing []int) {
	going, before := w.pull.pulls.older(w.pull), w.older
	w.older = nil
	// A pull that has ended is not among them, but what it downloaded is stored.
	for _, other := range before {
		if slices.Contains(going, other.pull) {
			w.older = append(w.older, other)
		}
	}

	missing = w.missing(now)

	for _, gone := range before {
		failed := !slices.Contains(going, gone.pull) && !gone.pull.cancelled()
		if failed && slices.ContainsFunc(missing, func(i int) bool { return gone.began(w.layers, i) || w.silent(gone, i) }) {
			w.failures++
			w.moved = latest(w.moved, now)
		}
	}

	// The lowest one is the next that can be stored. Those above it may arrive although it failed
	// or hangs, as a copy downloads several at a time.
	for _, other := range w.older {
		if len(missing) > 0 && missing[0] < other.layers {
			w.moved = latest(w.moved, other.pull.now().moved, other.pull.reported(w.layers[missing[0]].Digest).moved)
		}
	}

	w.pull.saw(w.moved)

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
		// The store takes them from the bottom up: no other one can have come.
		look := !w.looked || len(missing) == 0

		switch {
		case w.stored[layer.Digest]:
		case look && (w.has(layer) || w.reused(layer.Digest)):
			w.stored[layer.Digest], w.moved = true, latest(w.moved, now)
		default:
			missing = append(missing, i)
		}
	}

	w.looked = true

	return missing
}

// has reports whether the store has a layer. With vfs, whoever unpacks one locks the store, and what
// this pull waits for may be next: time in which it could not look does not count as standstill.
func (w *waiter) has(layer types.BlobInfo) bool {
	began := time.Now()
	has := w.pull.store.Has(layer)

	if took := time.Since(began); took > lookInterval {
		w.moved, w.began = w.moved.Add(took), w.began.Add(took)
	}

	return has
}

// reused reports whether an earlier pull found the layer in the store, in another form.
func (w *waiter) reused(layer digest.Digest) bool {
	return slices.ContainsFunc(w.older, func(other sharing) bool { return other.pull.reported(layer).reused })
}

// began reports whether the other pull began to download a layer that both have.
func (s sharing) began(layers []types.BlobInfo, i int) bool {
	return i < s.layers && s.pull.reported(layers[i].Digest).begun
}

// silent reports whether the other pull may be downloading a layer that both have without
// a report.
func (w *waiter) silent(other sharing, i int) bool {
	if i >= other.layers || !w.pull.store.Silent(w.layers[i]) {
		return false
	}

	return other.pull.now().phase != waits
}

// prove asks the registry for the layers that the pull lacks, from the bottom up, and returns
// where to learn the number of the lowest one that it does not serve to this pull. Nothing
// comes if it serves all.
func (w *waiter) prove(ctx context.Context, opened types.ImageSource) <-chan int {
	refused, layers, has := make(chan int, 1), w.layers, w.pull.store.Has

	go func() {
		for some := range slices.Chunk(w.lacked, maxQuestions) {
			served := make([]bool, len(some))

			var questions sync.WaitGroup

			for at, i := range some {
				// Some may have come meanwhile.
				questions.Go(func() { served[at] = has(layers[i]) || serves(ctx, opened, layers[i]) })
			}

			questions.Wait()

			if at := slices.Index(served, false); at >= 0 {
				refused <- some[at]

				return
			}
		}
	}()

	return refused
}

// cut forgets all layers from i on.
func (w *waiter) cut(i int) {
	w.layers = w.layers[:i]
	w.lacked = slices.DeleteFunc(slices.Clone(w.lacked), func(j int) bool { return j >= i })

	for j := range w.older {
		w.older[j].layers = min(w.older[j].layers, i)
	}
}

// worthwhile reports whether to begin to wait for what is missing.
func (w *waiter) worthwhile(missing []int) bool {
	bytes := w.bytes(missing)
	if bytes < minAll {
		return false
	}

	var lacks int64

	for _, layer := range w.pull.image.known() {
		if !w.stored[layer.Digest] && !w.has(layer) {
			lacks += size(layer)
		}
	}

	return bytes >= minBytes && bytes >= lacks/minPart || bytes == lacks
}

// before returns how many pulls before this one wait for the same, or have waited in vain.
func (w *waiter) before(missing []int) (count int) {
	for _, other := range w.older {
		if other.pull.now().phase != copies && missing[0] < other.layers {
			count++
		}
	}

	return count
}

// patience returns how long nothing may move: longer if another pull that waited for
// the same is before this one, and tries when its own patience is at an end.
func (w *waiter) patience(missing []int) time.Duration {
	limit := patience
	if before := w.before(missing); before > 0 {
		limit = 2*patience + time.Duration(before-1)*stagger
	}

	// What has arrived is unpacked without reports, one layer after the other.
	var unpacked, silent []int

	for _, i := range missing {
		switch {
		case slices.ContainsFunc(w.older, func(other sharing) bool { return other.began(w.layers, i) }):
			if i == missing[0] {
				unpacked = append(unpacked, i)
			}
		case slices.ContainsFunc(w.older, func(other sharing) bool { return w.silent(other, i) }):
			silent = append(silent, i)
		}
	}

	return limit + min(seconds(float64(w.bytes(unpacked)/unpackRate+w.bytes(silent)/silentRate)), maxWait)
}

// bytes returns how many compressed bytes the layers have.
func (w *waiter) bytes(layers []int) (sum int64) {
	for _, i := range layers {
		sum += size(w.layers[i])
	}

	return sum
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
