package lookup

import (
	"sync"
	"time"

	"github.com/layer-locality/layer-locality/resolver/usage"
)

// SecretAttempt is how it went with the pull secrets of one namespace. It is only kept in memory, and only
// for that namespace.
type SecretAttempt struct {
	// Opened is when they opened the image; zero if they did not.
	Opened time.Time
	// Reason why they did not, empty if none was tried, and Message with what is wrong with
	// them.
	Reason, Message string
}

// secretAttempts remembers how it went with pull secrets, by the key of the image.
type secretAttempts struct {
	mu    sync.Mutex
	byKey map[string]*ofImage
}

// ofImage are attempts at one image with the pull secrets of namespaces.
type ofImage struct {
	// next is whose pull secrets are next, after newest, those that a workload brought.
	next, newest usage.Pull
	// byNamespace has how it went; at most MaxNamespaces.
	byNamespace map[string]SecretAttempt
}

// MaxNamespaces bounds the namespaces that are remembered for one image.
const MaxNamespaces = 1000

// Brought notes that a workload brings other pull secrets for an image.
func (a *Asker) Brought(key string, newest usage.Pull) {
	a.secrets.mu.Lock()
	defer a.secrets.mu.Unlock()
	a.secrets.ofLocked(key).newest = newest
}

// Tried returns how it went with the pull secrets of a namespace; zero if they were not
// tried.
func (a *Asker) Tried(key, namespace string) (last SecretAttempt) {
	a.secrets.mu.Lock()
	defer a.secrets.mu.Unlock()
	if all := a.secrets.byKey[key]; all != nil {
		last = all.byNamespace[namespace]
	}
	return last
}

// Forget drops what is remembered of images.
func (a *Asker) Forget(keys ...string) {
	a.secrets.mu.Lock()
	defer a.secrets.mu.Unlock()
	for _, key := range keys {
		delete(a.secrets.byKey, key)
	}
}

// takeNext returns whose pull secrets are next for an image, and those that a workload brought
// since the last call, which come before all.
func (s *secretAttempts) takeNext(key string) (next, newest usage.Pull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.ofLocked(key)
	next, newest, all.newest = all.next, all.newest, usage.Pull{}
	return next, newest
}

// setNext notes whose pull secrets are next for an image.
func (s *secretAttempts) setNext(key string, next usage.Pull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ofLocked(key).next = next
}

// note notes how it went with the pull secrets of a namespace, and reports whether
// that is new to the namespace. using returns the namespaces that use the image: if
// there is no room, others are forgotten.
func (s *secretAttempts) note(key, namespace string, now SecretAttempt, using func() []string) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.ofLocked(key)
	before, known := all.byNamespace[namespace]
	if !known && len(all.byNamespace) >= MaxNamespaces {
		left := map[string]SecretAttempt{}
		for _, one := range using() {
			if had, ok := all.byNamespace[one]; ok {
				left[one] = had
			}
		}
		if all.byNamespace = left; len(left) >= MaxNamespaces {
			return false
		}
	}
	all.byNamespace[namespace] = now
	return before.Reason != now.Reason || before.Message != now.Message
}

func (s *secretAttempts) ofLocked(key string) *ofImage {
	if s.byKey == nil {
		s.byKey = map[string]*ofImage{}
	}
	all := s.byKey[key]
	if all == nil {
		all = &ofImage{byNamespace: map[string]SecretAttempt{}}
		s.byKey[key] = all
	}
	return all
}
