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

// maxQueues bounds the queues, and with the workers of each the goroutines. The
// registries after that share one.
const maxQueues = 128

// Priorities of work: an image that is not known goes before one that only has
// to be confirmed.
const (
	confirming = -1
	resolving  = 0
)

// queues has a queue of images for each registry, so that none delays another.
type queues struct {
	workers int
	// denied reports whether an image may not be asked for anyway. Its registry
	// gets no queue: users who create pods can make up any number of names.
	denied func(image) bool
	// work is called by the workers; it never runs twice at once for a key.
	work func(ctx context.Context, queue *queue, key string)

	started chan struct{}

	mu     sync.Mutex
	ctx    context.Context // nil until run
	wait   sync.WaitGroup
	byName map[string]*queue
	// paused has the registries that must not be asked at the start, and until
	// when.
	paused map[string]time.Time
}

// queue is the queue of one registry.
type queue struct {
	items priorityqueue.PriorityQueue[string]

	mu sync.Mutex
	// failures of the registry in a row.
	failures int
	// resume is when the registry may be asked again.
	resume time.Time
}

func newQueues(workers int, denied func(image) bool, work func(context.Context, *queue, string)) *queues {
	return &queues{workers: workers, denied: denied, work: work, byName: map[string]*queue{}, started: make(chan struct{})}
}

// run works until the context is done. Images that were added before run are
// dropped. paused has the registries that must not be asked yet, and until
// when.
func (q *queues) run(ctx context.Context, paused map[string]time.Time) {
	q.mu.Lock()
	q.ctx, q.paused = ctx, paused
	q.mu.Unlock()
	close(q.started)
	<-ctx.Done()
	q.mu.Lock()
	all := slices.Collect(maps.Values(q.byName)) // no queue is added any more, since the context is done
	q.mu.Unlock()
	for _, queue := range all {
		// Every worker gets one more item, and ends. ShutDown would wake the workers
		// too, but its queue may then wait forever for a worker to take an item
		// (controller-runtime issue 3538, fixed in 0.25).
		for i := range q.workers {
			queue.items.AddWithOpts(priorityqueue.AddOpts{}, fmt.Sprint("end ", i))
		}
	}
	q.wait.Wait()
	for _, queue := range all {
		queue.items.ShutDown()
	}
}

// add schedules work on an image after some time. If the image is added several
// times, the earliest time counts.
func (q *queues) add(image image, after time.Duration, priority int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil || q.ctx.Err() != nil {
		return // every image is looked at when the controller starts to lead
	}
	name := image.registry()
	if _, ok := q.byName[name]; !ok && (len(q.byName) >= maxQueues || q.denied(image)) {
		name = "others"
	}
	found := q.byName[name]
	if found == nil {
		found = &queue{items: priorityqueue.New[string](name), resume: q.paused[name]}
		q.byName[name] = found
		for range q.workers {
			q.wait.Go(func() { q.worker(q.ctx, found) })
		}
	}
	found.items.AddWithOpts(priorityqueue.AddOpts{After: max(0, after), Priority: ptr.To(priority)}, image.key)
}

func (q *queues) worker(ctx context.Context, queue *queue) {
	for ctx.Err() == nil {
		key, _ := queue.items.Get()
		queue.waitUntilResumed(ctx)
		if ctx.Err() == nil {
			q.work(ctx, queue, key)
		}
		queue.items.Done(key)
	}
}

func (q *queue) waitUntilResumed(ctx context.Context) {
	for {
		q.mu.Lock()
		left := time.Until(q.resume)
		q.mu.Unlock()
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

// After how many failures in a row the registry itself counts as faulty,
// instead of one broken image, and for how long it is then not asked.
const (
	toleratedFailures = 3
	minPause          = time.Second
	maxPause          = 5 * time.Minute
)

// succeeded notes that the registry answers.
func (q *queue) succeeded() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failures = 0
}

// failed pauses the queue for as long as the registry asks for, and for longer
// the more often it failed in a row. It returns the pause.
func (q *queue) failed(retryAfter time.Duration) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	pause := retryAfter
	if now := time.Now(); now.Before(q.resume) {
		pause = max(pause, q.resume.Sub(now)) // this request had already started: one outage is one failure
	} else if q.failures++; q.failures >= toleratedFailures {
		pause = max(pause, backoff(q.failures-toleratedFailures, minPause, maxPause))
	}
	q.hold(pause)
	return pause
}

// pause stops all work of the queue for a while.
func (q *queue) pause(pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold(pause)
}

// hold extends a pause, and never shortens it. The caller holds the mutex.
func (q *queue) hold(pause time.Duration) {
	if until := time.Now().Add(pause); pause > 0 && until.After(q.resume) {
		q.resume = until
	}
}

// backoff returns least, doubled for every failure before this one, but at most
// most. The result varies randomly by up to a fifth in both directions.
func backoff(failures int, least, most time.Duration) time.Duration {
	d := most
	if failures < 30 {
		d = min(most, least<<failures)
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // for jitter, not for security
}
