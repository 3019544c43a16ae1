package registry

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/limits"
)

// How long to remember that a registry refused a credential, or took it. Many registries
// lock an account after a few wrong passwords: one bad secret, which is tried twice, or a few times
// if it was right before, must not be tried for each of a thousand images.
const (
	refusedLogin  = 10 * time.Minute
	acceptedLogin = time.Hour
)

type loginKey struct {
	challengeKey
	credential authn.AuthConfig
}

// loginOf returns what is known about a credential.
func (a *authorizer) loginOf(key loginKey) *limits.Login {
	if known, ok := a.logins.Get(key); ok {
		return known.(*limits.Login)
	}
	// Of two at the same time, both must get the same.
	a.loginsMu.Lock()
	defer a.loginsMu.Unlock()
	if known, ok := a.logins.Get(key); ok {
		return known.(*limits.Login)
	}
	l := &limits.Login{}
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
	if accepted, _ := l.State(); !accepted {
		l.Asking.Lock()
		defer l.Asking.Unlock()
	}
	if _, refused := l.State(); refused {
		var none T
		return none, &Error{
			Reason: v1alpha1.ReasonUnauthorized, Host: s.source.domain,
			Err: text(nil, "registry %s has just refused the credentials given: the credentials given, an imagePullSecret for example, are wrong; they are tried again in some minutes", s.source.domain),
		}
	}
	answer, err := ask(ctx, s)
	switch failure := asErrorOrNil(err); {
	case failure == nil, failure.code != 0 && !failure.login && !temporary(failure.Reason):
		a.taken(key, l)
	case failure.login && !l.OfRepository():
		// Some registries refuse a repository in the same way, and everybody can name one that
		// the credential is not for. If they do not say which it is, a password of a tenant that
		// was never taken counts as wrong, or his account might be locked; one that is for all
		// is not taken from others because of what one tenant names.
		takes, known := a.takes(ctx, s)
		_, tenants := s.keychain.(keychains.OfTenant)
		switch accepted, _ := l.State(); {
		case ctx.Err() != nil, !known && (accepted || !tenants):
		case takes:
			a.taken(key, l)
		default:
			l.Note(false)
			a.logins.Add(key, l, refusedLogin)
		}
	}
	return answer, err
}

// taken notes that a registry took a credential, which counts for an hour from now on.
func (a *authorizer) taken(key loginKey, l *limits.Login) {
	l.Note(true)
	a.logins.Add(key, l, acceptedLogin)
}

// takes asks whether a registry takes a credential, whatever the repository, as docker login does: at
// its token server without a scope, or at its path. Neither is known if it answers that to everybody, or
// does not answer.
func (a *authorizer) takes(ctx context.Context, s *session) (takes, known bool) {
	challenge, err := a.challenge(ctx, s.source)
	if err != nil || challenge.Scheme == "" {
		return false, false
	}
	all := *s.source
	all.repository = ""
	if strings.EqualFold(challenge.Scheme, "bearer") {
		a.tokens.Remove(all.tokenKey(s.credential)) // it is from an earlier question
		_, _, err = a.token(ctx, &all, s.credential, challenge)
	} else {
		_, err = shared(ctx, &a.flights, fmt.Sprintf("login %#v", all.tokenKey(s.credential)), func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.ping(ctx)
		})
	}
	failure := asErrorOrNil(err)
	return failure == nil, failure == nil || failure.login
}

func asErrorOrNil(err error) *Error {
	if err == nil {
		return nil
	}
	return asError(err)
}

// temporary reports whether a reason is not about the credential.
func temporary(reason string) bool {
	return reason == v1alpha1.ReasonRateLimited || reason == v1alpha1.ReasonUnavailable
}
