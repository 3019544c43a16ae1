package controller

import (
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// attempt is how the last attempt at an image ended; zero if none has failed.
type attempt struct {
	// failures in a row.
	failures int
	// retry is when the image may be asked for again.
	retry time.Time
	// reason and message of the last failure; empty if there was none, or if a retry
	// has been allowed since.
	reason, message string
	// allowed counts calls of allowRetry. The code that notes a failure compares
	// it with its value when the attempt began.
	allowed int
}

// How long a refusal and a temporary failure are believed. The time grows with
// each failure in a row.
const (
	minRefusal, maxRefusal = time.Minute, 10 * time.Minute
	minError, maxError     = 10 * time.Second, 5 * time.Minute
)

// temporary reports whether a failure is about the registry and not about the
// image.
func temporary(reason string) bool {
	return reason == v1alpha1.ReasonRateLimited || reason == v1alpha1.ReasonUnavailable
}

// attempts remembers how the attempts at images ended. What has to survive a
// restart is in the objects too.
type attempts struct {
	clock clock.PassiveClock
	// stored returns how the last attempt at a reference ended, according to the
	// objects. It is called with the mutex held.
	stored func(reference string) attempt

	mu    sync.Mutex
	byKey map[string]*attempt
}

func newAttempts(clock clock.PassiveClock, stored func(reference string) attempt) *attempts {
	return &attempts{clock: clock, stored: stored, byKey: map[string]*attempt{}}
}

// of returns how the last attempt at an image ended, in this process or in the one
// before it.
func (a *attempts) of(image image) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *a.at(image)
}

// at is of for a caller who holds the mutex and may change the attempt.
func (a *attempts) at(image image) *attempt {
	last := a.byKey[image.key]
	if last == nil {
		last = &attempt{}
		for _, reference := range image.references {
			if *last = a.stored(reference); last.reason != "" {
				break
			}
		}
		a.byKey[image.key] = last
	}
	return last
}

// allowRetry notes that circumstances have changed for images that are refused for
// one of the reasons. If this one is, it may be asked for at once, and its next
// failure is reported again. An attempt that is under way may have begun before the
// change, so failed does not believe its refusal either.
func (a *attempts) allowRetry(image image, reasons ...string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.at(image)
	last.allowed++
	if !slices.Contains(reasons, last.reason) {
		return false
	}
	last.retry, last.reason, last.message = time.Time{}, "", ""
	return true
}

// failed notes why an attempt failed, decides when the next may follow, and
// returns both. before is what of returned when the attempt began; wait is how
// long the registries ask to wait.
func (a *attempts) failed(image image, before attempt, reason, message string, wait time.Duration) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.at(image)
	switch {
	case temporary(reason):
		wait = max(wait, backoff(last.failures, minError, maxError))
	case last.allowed != before.allowed:
		wait = 0 // there is another secret now, or another platform
	default:
		wait = backoff(last.failures, minRefusal, maxRefusal)
	}
	last.failures++
	last.retry, last.reason, last.message = a.clock.Now().Add(wait), reason, message
	return *last
}

// forget drops what is remembered of images.
func (a *attempts) forget(keys ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range keys {
		delete(a.byKey, key)
	}
}
