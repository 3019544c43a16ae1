package controller

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/layer-locality/layer-locality/resolver/registry"
)

const (
	// maxQueues bounds the queues, and with the workers of each the goroutines. The
	// registries after that share one.
	maxQueues = 128
	// maxOpened bounds the queues for registries that one namespace named first, so that
	// none takes them all.
	maxOpened = 32
	// sharedQueue is the name of the queue that registries share. No registry has it: a
	// name without a dot or a port is none of a host in references.
	sharedQueue = "others"
)

// Priorities of work: an image that is not known goes before one that only has
// to be confirmed. What no workload names goes last.
const (
	spare      = -2
	confirming = -1
	resolving  = 0
)

// queues has a queue of images for each registry, so that none delays another.
type queues struct {
	workers int
	// denied reports whether an image may not be asked for anyway. Its registry
	// gets no queue: users who create pods can make up any number of names.
	denied func(image) bool
	// namespaces returns some of the namespaces that use an image; nil if they do not
	// matter.
	namespaces func(key string) []string
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

// queue is the queue of one registry. It has no goroutine while nothing is due.
type queue struct {
	name string
	// opener is the namespace that named the registry first.
	opener string

	mu   sync.Mutex
	fair fairQueue
	// busy is the number of workers that run. timer starts them for what is due later.
	busy  int
	timer *time.Timer
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
	for _, queue := range q.byName { // none is added any more, since the context is done
		queue.mu.Lock()
		queue.stopTimer()
		queue.mu.Unlock()
	}
	q.mu.Unlock()
	q.wait.Wait()
}

// add schedules work on an image after some time. If the image is added several
// times, the earliest time counts.
func (q *queues) add(image image, after time.Duration, priority int) {
	var namespaces []string
	if q.namespaces != nil {
		namespaces = q.namespaces(image.key)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil || q.ctx.Err() != nil {
		return // every image is looked at when the controller starts to lead
	}
	found := q.of(image, namespaces)
	now := time.Now()
	found.mu.Lock()
	defer found.mu.Unlock()
	added := &item{key: image.key, level: levelOf(priority), due: now.Add(max(0, after))}
	for i, namespace := range namespaces {
		if i == 0 || found.fair.waiting(namespace) < found.fair.waiting(added.namespace) {
			added.namespace = namespace
		}
	}
	found.fair.add(now, added)
	q.wake(found)
}

// of returns the queue of an image, and opens it if need be. The caller holds the mutex.
func (q *queues) of(image image, namespaces []string) *queue {
	name, opener := image.registry(), ""
	if len(namespaces) > 0 {
		opener = namespaces[0]
	}
	if len(q.byName) >= maxQueues {
		q.closeIdle()
	}
	if _, ok := q.byName[name]; !ok && (len(q.byName) >= maxQueues || q.denied(image) || q.opened(opener) >= maxOpened) {
		name, opener = sharedQueue, ""
	}
	found := q.byName[name]
	if found == nil {
		found = &queue{name: name, opener: opener, resume: q.paused[name]}
		q.byName[name] = found
	}
	return found
}

// opened returns how many queues a namespace has opened.
func (q *queues) opened(namespace string) int {
	if namespace == "" {
		return 0
	}
	n := 0
	for _, queue := range q.byName {
		if queue.opener == namespace {
			n++
		}
	}
	return n
}

// remove drops images that nothing uses any longer.
func (q *queues) remove(keys ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range keys {
		for _, name := range []string{imageOf(key).registry(), sharedQueue} {
			if queue := q.byName[name]; queue != nil {
				queue.mu.Lock()
				queue.fair.remove(key)
				q.close(queue)
				queue.mu.Unlock()
			}
		}
	}
}

// length returns how many images wait or are worked on.
func (q *queues) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	sum := 0
	for _, queue := range q.byName {
		queue.mu.Lock()
		sum += len(queue.fair.items)
		queue.mu.Unlock()
	}
	return sum
}

// wake starts a worker if something is due, and the timer for what is due later. The
// caller holds the queue's mutex.
func (q *queues) wake(queue *queue) {
	now := time.Now()
	next, ok := queue.fair.next(now)
	if !ok || q.ctx.Err() != nil {
		return
	}
	if next.Before(queue.resume) {
		next = queue.resume
	}
	if next.After(now) {
		queue.sleep(next.Sub(now), func() {
			queue.mu.Lock()
			defer queue.mu.Unlock()
			q.wake(queue)
		})
		return
	}
	if queue.busy < q.workers {
		queue.busy++
		q.wait.Go(func() { q.worker(queue) })
	}
}

// sleep calls wake after a while, once.
func (q *queue) sleep(duration time.Duration, wake func()) {
	q.stopTimer()
	q.timer = time.AfterFunc(duration, wake)
}

// worker works on what is due, one image after the other.
func (q *queues) worker(queue *queue) {
	for {
		now := time.Now()
		queue.mu.Lock()
		var next *item
		if q.ctx.Err() == nil && !now.Before(queue.resume) {
			next = queue.fair.take(now)
		}
		if next == nil {
			queue.busy--
			q.wake(queue) // for later
			idle := queue.idle()
			queue.mu.Unlock()
			if idle {
				q.tidy(queue)
			}
			return
		}
		q.wake(queue) // another worker, if there is more
		queue.mu.Unlock()

		ctx, requests := registry.CountRequests(q.ctx)
		q.work(ctx, queue, next.key)

		queue.mu.Lock()
		queue.fair.done(time.Now(), next, int(requests.Load()))
		queue.mu.Unlock()
	}
}

// stopTimer has no more worker started for what is due later. The caller holds the mutex.
func (q *queue) stopTimer() {
	if q.timer != nil {
		q.timer.Stop()
	}
}

// idle reports whether nothing is left to remember. The caller holds the mutex.
func (q *queue) idle() bool {
	return q.busy == 0 && len(q.fair.items) == 0 && !time.Now().Before(q.resume)
}

// tidy removes a queue that is idle.
func (q *queues) tidy(queue *queue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue.mu.Lock()
	defer queue.mu.Unlock()
	q.close(queue)
}

// closeIdle removes queues that were paused when their last image was done. The caller
// holds the mutex.
func (q *queues) closeIdle() {
	for _, queue := range q.byName {
		queue.mu.Lock()
		q.close(queue)
		queue.mu.Unlock()
	}
}

// close removes a queue that is idle. The caller holds both mutexes.
func (q *queues) close(queue *queue) {
	if queue.idle() && q.byName[queue.name] == queue {
		delete(q.byName, queue.name)
		queue.stopTimer() // it would keep the queue until an image is due that has gone
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
	if least <= most>>failures { // so that nothing overflows
		d = least << failures
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // for jitter, not for security
}
