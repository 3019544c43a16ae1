package controller

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// maxLanes bounds the queues, and with the workers of each the goroutines. The
// registries after that share one.
const maxLanes = 128

// Priorities of work: an image that is not known goes before one that only has
// to be confirmed.
const (
	confirming = -1
	resolving  = 0
)

// lanes has a queue of images for each registry.
type lanes struct {
	// denied tells whether an image cannot be asked for anyway: names that anybody
	// makes up take no queue from registries.
	denied func(image) bool
	// work is called by the workers; it never runs twice at once for a key.
	work    func(ctx context.Context, lane *lane, key string)
	workers int

	started chan struct{}

	mu     sync.Mutex
	ctx    context.Context // nil until run
	wait   sync.WaitGroup
	byName map[string]*lane
	// resume has registries that are left alone from the start, and until when.
	resume map[string]time.Time
}

// lane is the queue of one registry.
type lane struct {
	queue priorityqueue.PriorityQueue[string]

	mu       sync.Mutex
	failures int
	resume   time.Time
}

func newLanes(workers int, work func(context.Context, *lane, string)) *lanes {
	return &lanes{denied: func(image) bool { return false }, work: work, workers: workers, byName: map[string]*lane{}, started: make(chan struct{})}
}

// run works until the context is done. Before, nothing is kept that is added.
func (l *lanes) run(ctx context.Context) {
	l.mu.Lock()
	l.ctx = ctx
	l.mu.Unlock()
	close(l.started)
	<-ctx.Done()
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.byName)) // and no more, the context is done
	l.mu.Unlock()
	for _, lane := range all {
		// Every worker gets something once more, and ends. ShutDown would wake them
		// too, but its queue may then wait forever for one to take an item
		// (controller-runtime issue 3538, fixed in 0.25).
		for i := range l.workers {
			lane.queue.AddWithOpts(priorityqueue.AddOpts{}, fmt.Sprint("end ", i))
		}
	}
	l.wait.Wait()
	for _, lane := range all {
		lane.queue.ShutDown()
	}
}

// add has an image worked on after some time. Of several times for one image the
// first counts.
func (l *lanes) add(image image, after time.Duration, priority int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil || l.ctx.Err() != nil {
		return // every image is looked at when the controller starts to lead
	}
	name := image.registry()
	if _, ok := l.byName[name]; !ok && (len(l.byName) >= maxLanes || l.denied(image)) {
		name = "others"
	}
	found := l.byName[name]
	if found == nil {
		found = &lane{queue: priorityqueue.New[string](name), resume: l.resume[name]}
		l.byName[name] = found
		for range l.workers {
			l.wait.Go(func() { l.worker(l.ctx, found) })
		}
	}
	found.queue.AddWithOpts(priorityqueue.AddOpts{After: max(0, after), Priority: ptr.To(priority)}, image.key)
}

func (l *lanes) worker(ctx context.Context, lane *lane) {
	for ctx.Err() == nil {
		key, _ := lane.queue.Get()
		lane.waitUntilResumed(ctx)
		if ctx.Err() == nil {
			l.work(ctx, lane, key)
		}
		lane.queue.Done(key)
	}
}

func (l *lane) waitUntilResumed(ctx context.Context) {
	for {
		l.mu.Lock()
		left := time.Until(l.resume)
		l.mu.Unlock()
		if left <= 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(left):
		}
	}
}

// How many failures in a row make a registry one that does not work, rather than
// one with a broken image, and how long it is then left alone.
const (
	toleratedFailures = 3
	minPause          = time.Second
	maxPause          = 5 * time.Minute
)

// succeeded: the registry answers.
func (l *lane) succeeded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = 0
}

// failed leaves the registry alone for as long as it asks for, and for longer
// the more often it failed in a row. It returns for how long.
func (l *lane) failed(retryAfter time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause := retryAfter
	if now := time.Now(); now.Before(l.resume) {
		pause = max(pause, l.resume.Sub(now)) // it was under way: one outage is one failure
	} else if l.failures++; l.failures >= toleratedFailures {
		pause = max(pause, backoff(l.failures-toleratedFailures, minPause, maxPause))
	}
	l.hold(pause)
	return pause
}

// leaveAlone has nothing done for a while.
func (l *lane) leaveAlone(pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold(pause)
}

func (l *lane) hold(pause time.Duration) {
	if until := time.Now().Add(pause); pause > 0 && until.After(l.resume) {
		l.resume = until
	}
}

// backoff doubles from least with every failure before, to at most most, and
// spreads by a fifth to both sides.
func backoff(failures int, least, most time.Duration) time.Duration {
	d := most
	if failures < 30 {
		d = min(most, least<<failures)
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // spread, not a secret
}
