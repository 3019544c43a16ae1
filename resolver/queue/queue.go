// Package queue has a queue of keys for each registry, so that none delays another. In
// each, namespaces take turns.
//
// Queues.mu is locked before Queue.mu.
package queue

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
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

// Queues has a queue for each registry.
type Queues struct {
	workers int
	// denied reports whether a key may not be asked for anyway. Its registry gets no queue:
	// users who create pods can make up any number of names.
	denied func(key string) bool
	work   Work

	started chan struct{}

	mu     sync.Mutex
	ctx    context.Context // nil until Run
	wait   sync.WaitGroup
	byName map[string]*Queue
	// paused has the registries that must not be asked at the start, and until
	// when.
	paused map[string]time.Time
}

// Work works on a key of a queue, and returns how many requests that took. It never runs
// twice at once for a key.
type Work func(ctx context.Context, queue *Queue, key string) (requests int)

// Queue is the queue of one registry. It has no goroutine while nothing is due.
type Queue struct {
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

// New returns queues, with so many workers for each registry. The registry of a key that is
// denied has no queue of its own.
func New(workers int, denied func(key string) bool, work Work) *Queues {
	return &Queues{workers: workers, denied: denied, work: work, byName: map[string]*Queue{}, started: make(chan struct{})}
}

// Started returns a channel that is closed when keys can be added.
func (q *Queues) Started() <-chan struct{} { return q.started }

// Run works until the context is done. Keys that were added before Run are
// dropped. paused has the registries that must not be asked yet, and until
// when.
func (q *Queues) Run(ctx context.Context, paused map[string]time.Time) {
	q.mu.Lock()
	q.ctx, q.paused = ctx, paused
	q.mu.Unlock()
	close(q.started)
	<-ctx.Done()
	q.mu.Lock()
	for _, queue := range q.byName { // none is added any more, since the context is done
		queue.mu.Lock()
		queue.stopTimerLocked()
		queue.mu.Unlock()
	}
	q.mu.Unlock()
	q.wait.Wait()
}

// Add schedules work on a key of a registry after some time. If the key is added several
// times, the earliest time counts. It waits for the turn of one of the namespaces.
func (q *Queues) Add(registry, key string, namespaces []string, after time.Duration, level Level) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil || q.ctx.Err() != nil {
		return // every image is looked at when the controller starts to lead
	}
	found := q.openLocked(registry, key, namespaces)
	now := time.Now()
	found.mu.Lock()
	defer found.mu.Unlock()
	added := &item{key: key, level: level, due: now.Add(max(0, after))}
	for i, namespace := range namespaces {
		if i == 0 || found.fair.waiting(namespace) < found.fair.waiting(added.namespace) {
			added.namespace = namespace
		}
	}
	found.fair.add(now, added)
	q.wakeLocked(found)
}

// openLocked returns the queue of a key, and opens it if need be.
func (q *Queues) openLocked(registry, key string, namespaces []string) *Queue {
	name, opener := registry, ""
	if len(namespaces) > 0 {
		opener = namespaces[0]
	}
	if len(q.byName) >= maxQueues {
		q.closeIdleLocked()
	}
	if _, ok := q.byName[name]; !ok && (len(q.byName) >= maxQueues || q.denied(key) || q.openedLocked(opener) >= maxOpened) {
		name, opener = sharedQueue, ""
	}
	found := q.byName[name]
	if found == nil {
		found = &Queue{name: name, opener: opener, resume: q.paused[name]}
		q.byName[name] = found
	}
	return found
}

// openedLocked returns how many queues a namespace has opened.
func (q *Queues) openedLocked(namespace string) int {
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

// Remove drops a key of a registry that nothing uses any longer.
func (q *Queues) Remove(registry, key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range []string{registry, sharedQueue} {
		if queue := q.byName[name]; queue != nil {
			queue.mu.Lock()
			queue.fair.remove(key)
			q.closeLocked(queue)
			queue.mu.Unlock()
		}
	}
}

// Len returns how many keys wait or are worked on.
func (q *Queues) Len() int {
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

// wakeLocked starts a worker if something is due, and the timer for what is due later.
// The caller holds Queue.mu.
func (q *Queues) wakeLocked(queue *Queue) {
	now := time.Now()
	next, ok := queue.fair.next(now)
	if !ok || q.ctx.Err() != nil {
		return
	}
	if next.Before(queue.resume) {
		next = queue.resume
	}
	if next.After(now) {
		queue.sleepLocked(next.Sub(now), func() {
			queue.mu.Lock()
			defer queue.mu.Unlock()
			q.wakeLocked(queue)
		})
		return
	}
	if queue.busy < q.workers {
		queue.busy++
		q.wait.Go(func() { q.worker(queue) })
	}
}

// sleepLocked calls wake after a while, once.
func (q *Queue) sleepLocked(duration time.Duration, wake func()) {
	q.stopTimerLocked()
	q.timer = time.AfterFunc(duration, wake)
}

// worker works on what is due, one key after the other.
func (q *Queues) worker(queue *Queue) {
	for {
		now := time.Now()
		queue.mu.Lock()
		var next *item
		if q.ctx.Err() == nil && !now.Before(queue.resume) {
			next = queue.fair.take(now)
		}
		if next == nil {
			queue.busy--
			q.wakeLocked(queue) // for later
			idle := queue.idleLocked()
			queue.mu.Unlock()
			if idle {
				q.tidy(queue)
			}
			return
		}
		q.wakeLocked(queue) // another worker, if there is more
		queue.mu.Unlock()

		requests := q.work(q.ctx, queue, next.key)

		queue.mu.Lock()
		queue.fair.done(time.Now(), next, requests)
		queue.mu.Unlock()
	}
}

// stopTimerLocked has no more worker started for what is due later.
func (q *Queue) stopTimerLocked() {
	if q.timer != nil {
		q.timer.Stop()
	}
}

// idleLocked reports whether nothing is left to remember.
func (q *Queue) idleLocked() bool {
	return q.busy == 0 && len(q.fair.items) == 0 && !time.Now().Before(q.resume)
}

// tidy removes a queue that is idle.
func (q *Queues) tidy(queue *Queue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue.mu.Lock()
	defer queue.mu.Unlock()
	q.closeLocked(queue)
}

// closeIdleLocked removes queues that were paused when their last key was done.
func (q *Queues) closeIdleLocked() {
	for _, queue := range q.byName {
		queue.mu.Lock()
		q.closeLocked(queue)
		queue.mu.Unlock()
	}
}

// closeLocked removes a queue that is idle. The caller holds Queue.mu, too.
func (q *Queues) closeLocked(queue *Queue) {
	if queue.idleLocked() && q.byName[queue.name] == queue {
		delete(q.byName, queue.name)
		queue.stopTimerLocked() // it would keep the queue until an image is due that has gone
	}
}

// After how many failures in a row the registry itself counts as faulty,
// instead of one broken key, and for how long it is then not asked: no longer than images that are named
// once it answers again may wait.
const (
	toleratedFailures = 3
	minPause          = time.Second
	maxPause          = time.Minute
)

// Shared reports whether the queue is that of several registries.
func (q *Queue) Shared() bool { return q.name == sharedQueue }

// State returns how many failures in a row the registry had, and until when it is left alone.
func (q *Queue) State() (failures int, resume time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failures, q.resume
}

// Succeeded notes that the registry answers.
func (q *Queue) Succeeded() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failures = 0
}

// Failed pauses the queue for as long as the registry asks for, and for longer
// the more often it failed in a row. It returns the pause.
func (q *Queue) Failed(retryAfter time.Duration) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	pause := retryAfter
	if now := time.Now(); now.Before(q.resume) {
		pause = max(pause, q.resume.Sub(now)) // this request had already started: one outage is one failure
	} else if q.failures++; q.failures >= toleratedFailures {
		pause = max(pause, Backoff(q.failures-toleratedFailures, minPause, maxPause))
	}
	q.extendLocked(pause)
	return pause
}

// Pause stops all work of the queue for a while.
func (q *Queue) Pause(pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.extendLocked(pause)
}

// extendLocked extends a pause, and never shortens it.
func (q *Queue) extendLocked(pause time.Duration) {
	if until := time.Now().Add(pause); pause > 0 && until.After(q.resume) {
		q.resume = until
	}
}

// Backoff returns least, doubled for every failure before this one, but at most
// most. The result varies randomly by up to a fifth in both directions.
func Backoff(failures int, least, most time.Duration) time.Duration {
	d := most
	if least <= most>>failures { // so that nothing overflows
		d = least << failures
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // for jitter, not for security
}
