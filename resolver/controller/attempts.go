package controller

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// attempt is how the last attempt at an image ended; zero if none has failed.
type attempt struct {
	store.Failure
	// notified is the reason of the last failure before retries were allowed: those who use
	// the image were notified of it.
	notified string
	// allowed counts calls of allowRetry. The code that notes a failure compares
	// it with its value when the attempt began.
	allowed int
}

// lastNotified is the reason of which those who use the image were notified.
func (a *attempt) lastNotified() string { return cmp.Or(a.Reason, a.notified) }

// How long a refusal and a temporary failure count. The time grows with
// each failure in a row.
const (
	minRefusal, maxRefusal = time.Minute, 10 * time.Minute
	minError, maxError     = 10 * time.Second, 5 * time.Minute
)

// attempts remembers how the attempts at images ended. What has to survive a
// restart is in the objects too.
type attempts struct {
	clock clock.PassiveClock
	// stored returns how the last attempt at a reference ended, according to the
	// objects. It is called with the mutex held.
	stored func(reference string) store.Failure

	mu    sync.Mutex
	byKey map[string]*attempt
	// pending has the namespaces that brought other pull secrets since the last failure was
	// notified, by key; of each at most lookup.MaxNamespaces.
	pending map[string][]string
}

func newAttempts(clock clock.PassiveClock, stored func(reference string) store.Failure) *attempts {
	return &attempts{clock: clock, stored: stored, byKey: map[string]*attempt{}, pending: map[string][]string{}}
}

// addPendingNotice notes that a namespace brings other pull secrets for an image that failed: it has
// to be notified if it fails again.
func (a *attempts) addPendingNotice(key, namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pending := a.pending[key]; len(pending) < lookup.MaxNamespaces && !slices.Contains(pending, namespace) {
		a.pending[key] = append(pending, namespace)
	}
}

// takePendingNotices returns the namespaces that were added since the last call.
func (a *attempts) takePendingNotices(key string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	pending := a.pending[key]
	delete(a.pending, key)
	return pending
}

// reset forgets how attempts ended: what the objects say counts.
func (a *attempts) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.byKey)
}

// of returns how the last attempt at an image ended, in this process or in the one
// before it.
func (a *attempts) of(image usage.Image) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := a.byKey[image.Key]; last != nil {
		return *last
	}
	return a.earlier(image)
}

// earlier returns how the last attempt at an image ended according to the objects.
func (a *attempts) earlier(image usage.Image) (last attempt) {
	for _, reference := range image.References {
		if last.Failure = a.stored(reference); last.Reason != "" {
			break
		}
	}
	return last
}

// atLocked is of for a caller that changes the attempt.
func (a *attempts) atLocked(image usage.Image) *attempt {
	last := a.byKey[image.Key]
	if last == nil {
		earlier := a.earlier(image)
		last = &earlier
		a.byKey[image.Key] = last
	}
	return last
}

// allowRetry notes that circumstances have changed for images that are refused for
// one of the reasons. If this one is, it may be asked for at once. An attempt that is under
// way may have begun before the change, so its refusal does not count either.
func (a *attempts) allowRetry(image usage.Image, reasons ...string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.atLocked(image)
	last.allowed++
	if !slices.Contains(reasons, last.Reason) {
		return false
	}
	last.Retry, last.notified, last.Reason, last.Message = time.Time{}, last.Reason, "", ""
	return true
}

// failed notes why an attempt failed, decides when the next may follow, and
// returns both. before is what of returned when the attempt began; wait is how
// long the registries ask to wait.
func (a *attempts) failed(image usage.Image, before attempt, reason, message string, wait time.Duration) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.atLocked(image)
	switch {
	case lookup.Temporary(reason):
		wait = max(wait, queue.Backoff(last.Failures, minError, maxError))
	case last.allowed != before.allowed:
		wait = 0 // there is another secret now, or another platform
	default:
		wait = queue.Backoff(last.Failures, minRefusal, maxRefusal)
	}
	last.Failures++
	last.Retry, last.notified, last.Reason, last.Message = a.clock.Now().Add(wait), "", reason, message
	return *last
}

// forget drops what is remembered of images.
func (a *attempts) forget(keys ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range keys {
		delete(a.byKey, key)
		delete(a.pending, key)
	}
}

// succeeded drops the failures of an image. Namespaces that are to be notified stay.
func (a *attempts) succeeded(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byKey, key)
}
