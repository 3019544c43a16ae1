package registry

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

const (
	// challengeTTL is how long to remember how a registry authenticates.
	challengeTTL = time.Hour
	// tokenTTL is the longest time that a token is remembered. defaultTokenTTL is
	// used if the token server does not state a lifetime (token specification).
	tokenTTL        = time.Hour
	defaultTokenTTL = time.Minute
	// tokenMargin is how long before its expiry a token is no longer used.
	tokenMargin = 10 * time.Second
	// maxTokens bounds the tokens that are remembered, maxScope the bytes of a scope that a registry states.
	maxTokens, maxScope = 1024, 1 << 10
)

// authorizer remembers how registries authenticate, and the tokens that they
// issued.
type authorizer struct {
	policy     *policy.Policy
	transport  *transport
	challenges *cache.LRUExpireCache // challengeKey, repositoryKey: *ggcr.Challenge
	tokens     *cache.LRUExpireCache // tokenKey: string
	logins     *cache.LRUExpireCache // loginKey: *limits.Login
	loginsMu   sync.Mutex
	flights    singleflight.Group
}

func newAuthorizer(policy *policy.Policy, transport *transport) *authorizer {
	a := &authorizer{policy: policy, transport: transport}
	a.setClock(clock.RealClock{})
	return a
}

func (a *authorizer) setClock(clock cache.Clock) {
	a.challenges = cache.NewLRUExpireCacheWithClock(maxHosts, clock)
	a.tokens = cache.NewLRUExpireCacheWithClock(maxTokens, clock)
	a.logins = cache.NewLRUExpireCacheWithClock(maxTokens, clock)
}

type challengeKey struct {
	domain, path string
	insecure     bool
}

// repositoryKey is for what a registry states at one repository.
type repositoryKey struct {
	challengeKey
	repository string
}

type tokenKey struct {
	repositoryKey
	credential authn.AuthConfig
}

// grant is how one request is authorized.
type grant struct {
	challenge     *ggcr.Challenge
	authorization string
	// tokenRemembered is set if the token was not requested just now.
	tokenRemembered bool
}

func (g *grant) scheme() string {
	if g.challenge.Insecure {
		return "http"
	}
	return "https"
}

// authorize returns how a credential is used for a source.
func (a *authorizer) authorize(ctx context.Context, s *source, credential authn.AuthConfig) (*grant, error) {
	g := &grant{}
	var err error
	if g.challenge, err = a.challenge(ctx, s); err != nil {
		return nil, err
	}
	switch {
	case credential.RegistryToken != "":
		// The token comes from a user's secret, and the error of net/http would look
		// like an error of the registry.
		if strings.ContainsFunc(credential.RegistryToken, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, &Error{Reason: v1alpha1.ReasonUnauthorized, Host: s.domain, Err: text(nil, "the registrytoken given for registry %s is no token", s.domain)}
		}
		g.authorization = "Bearer " + credential.RegistryToken
	case strings.EqualFold(g.challenge.Scheme, "bearer"):
		var token string
		if token, g.tokenRemembered, err = a.token(ctx, s, credential, g.challenge); err != nil {
			return nil, err
		}
		g.authorization = "Bearer " + token
	case credential.Username != "" && credential.Password != "":
		g.authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(credential.Username+":"+credential.Password))
	case credential.Auth != "":
		g.authorization = "Basic " + credential.Auth
	}
	return g, nil
}

// refused notes what a 401 response to a request for the source's repository states, forgets what is out of date, and
// reports whether to authorize again. Registries behind a repository manager may answer /v2/ to everybody, and state
// only at a repository who may read it and where tokens are.
func (a *authorizer) refused(ctx context.Context, s *source, credential authn.AuthConfig, g *grant, header http.Header) bool {
	again := false
	if g.tokenRemembered {
		a.tokens.Remove(s.tokenKey(credential))
		again = true
	}
	// If the credential is wrong, the registry repeats the known challenge.
	stated := s.stated(ctx, header)
	if stated == nil || sameChallenge(stated, g.challenge) {
		return again
	}
	stated.Insecure = g.challenge.Insecure
	a.tokens.Remove(s.tokenKey(credential)) // it is for what was known before
	a.challenges.Add(s.repositoryKey(), stated, challengeTTL)
	return true
}

// sameChallenge reports whether two challenges are met in the same way. GitLab has one token server for its registry and
// its dependency proxy, as two services.
func sameChallenge(a, b *ggcr.Challenge) bool {
	same := func(parameter string) bool { return a.Parameters[parameter] == b.Parameters[parameter] }
	return strings.EqualFold(a.Scheme, b.Scheme) && same("realm") && same("service") && same("scope")
}

// stated returns the challenge in the headers of a 401 response; nil if there is none that a client can meet.
func (s *source) stated(ctx context.Context, header http.Header) *ggcr.Challenge {
	registry, err := s.registry()
	if err != nil {
		return nil
	}
	// The library parses challenges only in answers to its own request.
	stated, err := ggcr.Ping(ctx, registry, refusedWith(header))
	if err != nil || !strings.EqualFold(stated.Scheme, "bearer") && !strings.EqualFold(stated.Scheme, "basic") {
		return nil
	}
	// Managers that rewrite paths name the repository behind them. Who pulls asks for that scope, too.
	if scope := stated.Parameters["scope"]; len(scope) > maxScope || scope == "repository:"+s.repository+":pull" {
		delete(stated.Parameters, "scope")
	}
	return stated
}

// refusedWith answers every request with 401 and these headers.
type refusedWith http.Header

// RoundTrip implements http.RoundTripper.
func (h refusedWith) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusUnauthorized, Header: http.Header(h), Body: http.NoBody, Request: req}, nil
}

// below asks at the path of a source what the library asks at /v2/.
type below struct {
	*transport
	source *source
}

// RoundTrip implements http.RoundTripper.
func (b below) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Response == nil { // otherwise, where it is redirected to
		u, err := req.URL.Parse(b.source.path + "/")
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.URL = u
	}
	resp, err := b.transport.RoundTrip(req)
	if err == nil && req.URL.Scheme == "https" && b.source.statesNothing(resp.StatusCode) {
		resp.StatusCode = http.StatusOK // or the library would ask by HTTP
	}
	return resp, err
}

// statesNothing reports whether a registry that answers so to a ping may serve repositories nevertheless. containerd does
// not ping at all; CRI-O does, at /v2/, and pulls nothing then.
func (s *source) statesNothing(code int) bool {
	return refuses(code) && code != http.StatusUnauthorized || s.path != "/v2" && code >= 500
}

// challenge returns how the registry authenticates: as it stated at the repository, or as it states for all.
func (a *authorizer) challenge(ctx context.Context, s *source) (challenge *ggcr.Challenge, err error) {
	for _, key := range []any{s.repositoryKey(), s.challengeKey()} {
		if known, ok := a.challenges.Get(key); ok {
			return known.(*ggcr.Challenge), nil
		}
	}
	registry, err := s.registry()
	if err != nil {
		return nil, err
	}
	return shared(ctx, &a.flights, fmt.Sprintf("challenge %#v", s.challengeKey()), func(ctx context.Context) (*ggcr.Challenge, error) {
		// Somebody else may have asked since.
		if known, ok := a.challenges.Get(s.challengeKey()); ok {
			return known.(*ggcr.Challenge), nil
		}
		var answer *ggcr.Challenge
		x := &exchange{source: s, kind: kindPing, anonymous: true, host: registry.RegistryStr()}
		err := a.transport.within(ctx, x, func(ctx context.Context) (err error) {
			answer, err = ggcr.Ping(ctx, registry, below{a.transport, s})
			return err
		})
		switch e := asErrorOrNil(err); {
		case e != nil && s.statesNothing(e.code):
			answer = &ggcr.Challenge{Insecure: x.last.Load().Scheme == "http"}
		case e != nil:
			return nil, err
		case x.redirected():
			// The request was redirected: credentials must not go to a place that
			// another host names.
			answer = &ggcr.Challenge{Insecure: answer.Insecure}
		}
		delete(answer.Parameters, "scope") // that is not about a repository
		a.challenges.Add(s.challengeKey(), answer, challengeTTL)
		return answer, nil
	})
}

// token returns a token to read the source's repository with; without a scope if it has none.
func (a *authorizer) token(ctx context.Context, s *source, credential authn.AuthConfig, challenge *ggcr.Challenge) (token string, remembered bool, err error) {
	key := s.tokenKey(credential)
	if known, ok := a.tokens.Get(key); ok {
		return known.(string), true, nil
	}
	registry, err := s.registry()
	if err != nil {
		return "", false, err
	}
	realm, err := a.realm(s, challenge)
	if err != nil {
		return "", false, err
	}
	// go-containerregistry asks no private address that is not the registry it is given. Which
	// addresses may be asked is our policy's to say, and it has.
	server, err := name.NewRegistry(realm.Host)
	if err != nil {
		return "", false, unusableRealm(s)
	}
	token, err = shared(ctx, &a.flights, fmt.Sprintf("token %#v", key), func(ctx context.Context) (string, error) {
		// Somebody else may have asked since.
		if known, ok := a.tokens.Get(key); ok {
			return known.(string), nil
		}
		var answer *ggcr.Token
		x := &exchange{source: s, kind: kindToken, anonymous: credential == authn.AuthConfig{}, scheme: realm.Scheme, host: realm.Host}
		err := a.transport.within(ctx, x, func(ctx context.Context) (err error) {
			var scopes []string
			if s.repository != "" {
				scopes = []string{registry.Repo(s.repository).Scope(ggcr.PullScope)}
			}
			if stated := challenge.Parameters["scope"]; stated != "" {
				scopes = append(scopes, stated)
			}
			answer, err = ggcr.Exchange(ctx, server, authn.FromConfig(credential), a.transport, scopes, challenge)
			return err
		})
		if err != nil {
			return "", err
		}
		token := cmp.Or(answer.AccessToken, answer.Token)
		ttl := defaultTokenTTL
		if answer.ExpiresIn > 0 {
			ttl = time.Duration(min(answer.ExpiresIn, int(tokenTTL/time.Second))) * time.Second
		}
		if ttl > tokenMargin {
			a.tokens.Add(key, token, ttl-tokenMargin)
		}
		return token, nil
	})
	return token, false, err
}

// realm returns the token server that a registry names.
func (a *authorizer) realm(s *source, challenge *ggcr.Challenge) (*url.URL, error) {
	realm, err := url.Parse(challenge.Parameters["realm"])
	if err != nil || realm.Host == "" {
		return nil, unusableRealm(s)
	}
	if realm.Scheme != "https" && !challenge.Insecure {
		return nil, denied(realm.Host, text(nil, "registry %s names a token server that is not asked by HTTPS", s.domain))
	}
	if addr, err := netip.ParseAddr(realm.Hostname()); err == nil {
		if err := a.policy.Contact(addr, (&exchange{source: s}).contact(realm)); err != nil {
			return nil, denied(realm.Host, text(err, "token server of registry %s: %s", s.domain, err))
		}
	}
	return realm, nil
}

func unusableRealm(s *source) error {
	return &Error{Reason: v1alpha1.ReasonUnavailable, Host: s.domain, Err: text(nil, "registry %s names no usable token server", s.domain)}
}

// shared calls do once for all callers that ask for the same key at the same
// time. If one of them stops waiting, the call continues for the others; do has
// its own time limits.
func shared[T any](ctx context.Context, flights *singleflight.Group, key string, do func(context.Context) (T, error)) (T, error) {
	var none T
	result := flights.DoChan(key, func() (any, error) { return do(context.WithoutCancel(ctx)) })
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case r := <-result:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(T), nil
	}
}

func (s *source) challengeKey() challengeKey { return challengeKey{s.domain, s.path, s.insecure} }

func (s *source) repositoryKey() repositoryKey { return repositoryKey{s.challengeKey(), s.repository} }

func (s *source) tokenKey(credential authn.AuthConfig) tokenKey {
	return tokenKey{s.repositoryKey(), credential}
}

// registry returns the registry as go-containerregistry names it.
func (s *source) registry() (name.Registry, error) {
	var options []name.Option
	if s.insecure {
		options = append(options, name.Insecure)
	}
	registry, err := name.NewRegistry(s.domain, options...)
	if err != nil {
		return name.Registry{}, invalidReference(s.domain, err)
	}
	return registry, nil
}
