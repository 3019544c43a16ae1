package registry

import (
	"context"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// How long to remember that a registry refused a credential, or took it. Many registries
// lock an account after a few wrong passwords: one bad secret must not be tried for each
// of a thousand images.
const (
	refusedLogin  = 5 * time.Minute
	acceptedLogin = time.Hour
)

type loginKey struct {
	challengeKey
	credential authn.AuthConfig
}

// account is what is known about a credential at a registry.
type account struct {
	// asking is held while it is not known whether the registry takes the credential, so
	// that only one request finds out.
	asking sync.Mutex

	mu                sync.Mutex
	accepted, refused bool
}

func (l *account) state() (accepted, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted, l.refused
}

// loginOf returns what is known about a credential.
func (a *authorizer) loginOf(key loginKey) *account {
	if known, ok := a.logins.Get(key); ok {
		return known.(*account)
	}
	// Of two at the same time, both must get the same.
	a.loginsMu.Lock()
	defer a.loginsMu.Unlock()
	if known, ok := a.logins.Get(key); ok {
		return known.(*account)
	}
	l := &account{}
	a.logins.Add(key, l, acceptedLogin)
	return l
}

// withLogin asks with a credential, unless the registry has just refused it.
func withLogin[T any](ctx context.Context, s *session, ask func(context.Context, *session) (T, error)) (T, error) {
	if (s.credential == authn.AuthConfig{}) {
		return ask(ctx, s)
	}
	a := s.client.auth
	key := loginKey{s.source.challengeKey(), s.credential}
	l := a.loginOf(key)
	if accepted, _ := l.state(); !accepted {
		l.asking.Lock()
		defer l.asking.Unlock()
	}
	if _, refused := l.state(); refused {
		var none T
		return none, &Error{
			Reason: v1alpha1.ReasonUnauthorized, Host: s.source.domain,
			Err: text(nil, "registry %s has just refused the credentials given: the credentials given, an imagePullSecret for example, are wrong; they are tried again in some minutes", s.source.domain),
		}
	}
	answer, err := ask(ctx, s)
	a.noteLogin(key, l, err)
	return answer, err
}

// noteLogin notes whether a registry took a credential. A credential that it took before is
// given up only if it is refused twice in a row: some registries refuse a repository in
// the same way.
func (a *authorizer) noteLogin(key loginKey, l *account, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch failure := asErrorOrNil(err); {
	case failure == nil, failure.code != 0 && !failure.login && !temporary(failure.Reason):
		l.accepted = true
	case failure.login && l.accepted:
		l.accepted = false
	case failure.login:
		l.refused = true
		a.logins.Add(key, l, refusedLogin)
	}
}

func asErrorOrNil(err error) *Error {
	if err == nil {
		return nil
	}
	return asError(err)
}

// temporary reports whether a reason says nothing about the credential.
func temporary(reason string) bool {
	return reason == v1alpha1.ReasonRateLimited || reason == v1alpha1.ReasonUnavailable
}
