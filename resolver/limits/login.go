package limits

import "sync"

// doubted is at which refusal, after a registry took a credential, it is asked whether it still does: those before are
// about the repositories, which everybody can name, and cost no second request. A password that was changed is refused so
// often, once more when that is asked, and for each request that is under way then: registries lock an account after five or
// more in a row.
const doubted = 3

// Login is what is known about a credential at a registry.
type Login struct {
	// Asking is held while it is not known whether the registry takes the credential, so
	// that only one request finds out.
	Asking sync.Mutex

	mu                sync.Mutex
	accepted, refused bool
	// refusals since the registry took the credential the last time.
	refusals int
}

// State returns whether the registry took or refused the credential the last time; neither if it was not asked.
func (l *Login) State() (accepted, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted, l.refused
}

// OfRepository counts a refusal, and reports whether it is about the repository alone, as few are right after the
// registry took the credential.
func (l *Login) OfRepository() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusals++
	return l.accepted && l.refusals < doubted
}

// Note notes that the registry took the credential, or refused it.
func (l *Login) Note(accepted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted, l.refused, l.refusals = accepted, !accepted, 0
}
