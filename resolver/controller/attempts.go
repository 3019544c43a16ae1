package controller

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
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
	stored func(reference string) store.Failure

	mu    sync.Mutex
	byKey map[string]*attempt
	// secrets has how it went with pull secrets, by key.
	secrets map[string]*secretAttempts
}

// secretAttempts are attempts at one image with the pull secrets of namespaces. They are
// only kept in memory, and each is only for its own namespace.
type secretAttempts struct {
	// next is whose pull secrets are next, after newest, those that a workload brought.
	next, newest usage.Pull
	// pendingNotices are the namespaces that brought other pull secrets since the last failure
	// was notified; at most maxSecretAttempts.
	pendingNotices []string
	// byNamespace has how it went; at most maxSecretAttempts.
	byNamespace map[string]secretAttempt
}

// maxSecretAttempts bounds the namespaces that are remembered for one image.
const maxSecretAttempts = 1000

// secretAttempt is how it went with the pull secrets of one namespace.
type secretAttempt struct {
	// opened is when they opened the image; zero if they did not.
	opened time.Time
	// reason why they did not, empty if none was tried, and message with what is wrong with
	// them.
	reason, message string
}

func newAttempts(clock clock.PassiveClock, stored func(reference string) store.Failure) *attempts {
	return &attempts{clock: clock, stored: stored, byKey: map[string]*attempt{}, secrets: map[string]*secretAttempts{}}
}

// takeNextSecrets returns whose pull secrets are next for an image, and those that a workload brought
// since the last call, which come before all.
func (a *attempts) takeNextSecrets(key string) (next, newest usage.Pull) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.withSecretsLocked(key)
	next, newest, all.newest = all.next, all.newest, usage.Pull{}
	return next, newest
}

// noteNewSecrets notes that a workload brings other pull secrets for an image.
func (a *attempts) noteNewSecrets(key string, newest usage.Pull) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.withSecretsLocked(key).newest = newest
}

// addPendingNotice notes that a namespace brings other pull secrets for an image that failed: it has
// to be notified if it fails again.
func (a *attempts) addPendingNotice(key, namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.withSecretsLocked(key)
	if len(all.pendingNotices) < maxSecretAttempts && !slices.Contains(all.pendingNotices, namespace) {
		all.pendingNotices = append(all.pendingNotices, namespace)
	}
}

// takePendingNotices returns the namespaces that were added since the last call.
func (a *attempts) takePendingNotices(key string) (namespaces []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all := a.secrets[key]; all != nil {
		namespaces, all.pendingNotices = all.pendingNotices, nil
	}
	return namespaces
}

// setNextSecrets notes whose pull secrets are next for an image.
func (a *attempts) setNextSecrets(key string, next usage.Pull) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.withSecretsLocked(key).next = next
}

// noteSecrets notes how it went with the pull secrets of a namespace, and reports whether
// that is new to the namespace. using returns the namespaces that use the image: if
// there is no room, others are forgotten.
func (a *attempts) noteSecrets(key, namespace string, now secretAttempt, using func() []string) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.withSecretsLocked(key)
	before, known := all.byNamespace[namespace]
	if !known && len(all.byNamespace) >= maxSecretAttempts {
		left := map[string]secretAttempt{}
		for _, one := range using() {
			if had, ok := all.byNamespace[one]; ok {
				left[one] = had
			}
		}
		if all.byNamespace = left; len(left) >= maxSecretAttempts {
			return false
		}
	}
	all.byNamespace[namespace] = now
	return before.reason != now.reason || before.message != now.message
}

// secretsOf returns how it went with the pull secrets of a namespace; zero if they were not
// tried.
func (a *attempts) secretsOf(key, namespace string) secretAttempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all := a.secrets[key]; all != nil {
		return all.byNamespace[namespace]
	}
	return secretAttempt{}
}

// withSecretsLocked returns how it went with pull secrets for an image.
func (a *attempts) withSecretsLocked(key string) *secretAttempts {
	all := a.secrets[key]
	if all == nil {
		all = &secretAttempts{byNamespace: map[string]secretAttempt{}}
		a.secrets[key] = all
	}
	return all
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
	case temporary(reason):
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
		delete(a.secrets, key)
	}
}

// succeeded drops the failures of an image. What is noted of the pull secrets of
// namespaces stays.
func (a *attempts) succeeded(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byKey, key)
}
