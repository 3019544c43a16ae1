package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// A registry that is only in use sends requests into the network that is allowed for other
// registries: by a redirect, as a token server, and on a connection that another image
// opened there.
func TestRegistryLeadsIntoAllowedNetwork(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	internal := listen(t, "127.0.0.1:0", "other.test", false, content)
	var registry *server
	evil := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v2/":
		case strings.Contains(r.URL.Path, "/token/"):
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q", "https://"+internal.host+"/token"))
			w.WriteHeader(http.StatusUnauthorized)
		default:
			http.Redirect(w, r, "https://"+internal.host+"/v2/app/manifests/1", http.StatusTemporaryRedirect)
		}
	})
	registry = listen(t, "127.0.0.1:0", "registry.test", false, evil)
	for _, listed := range []bool{false, true} {
		config := policy.Config{Networks: mustNetworks("127.0.0.1/32")}
		if listed {
			config.HostNetworks = map[string][]netip.Prefix{internal.host: mustNetworks("127.0.0.1/32")}
		}
		allowed, err := policy.New(config)
		if err != nil {
			t.Fatal(err)
		}
		allowed.SetInUse([]string{registry.host, internal.host})
		w := newWorld(t, func(c *Config) { c.Policy = allowed })
		internal.take()
		if _, err := w.Resolve(t.Context(), internal.host+"/app:1", amd64, nil); err != nil {
			t.Fatal(err) // there is a connection now
		}
		internal.take()
		_, err = w.Resolve(t.Context(), registry.host+"/app:1", amd64, nil)
		if listed {
			if err != nil || len(internal.take()) != 1 {
				t.Errorf("listed: %v", err)
			}
			continue
		}
		wantError(t, err, v1alpha1.ReasonDenied, "--allow-network="+internal.host+"=127.0.0.1/32")
		if got := internal.take(); len(got) > 0 {
			t.Errorf("%s was sent %q", internal.host, got)
		}
	}
}

// A registry that sends its requests to another one uses up nothing of that one's rate.
func TestRateOfAnotherRegistry(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t, func(c *Config) { c.RequestsPerSecond, c.Burst = 1e-6, 2 })
	o := listen(t, "127.0.0.1:0", "other.test", false, content)
	s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Redirect(rw, r, "https://"+o.host+r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, host := range []string{s.host, o.host} { // the second with a question how it authenticates
		if _, err := w.Resolve(ctx, host+"/app:1", amd64, nil); err != nil {
			t.Error(err)
		}
	}
}

// How another host answers, to which a registry sends requests, is not told: that would be
// a way to look through the network.
func TestWhatAnotherHostAnswers(t *testing.T) {
	answers := map[string]http.Handler{
		"500": status(500), "503": status(503),
		"closed": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
	}
	texts, details := map[string]bool{}, map[string]bool{}
	for name, answer := range answers {
		w := newWorld(t)
		o := listen(t, "127.0.0.1:0", "other.test", false, answer)
		s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				http.Redirect(rw, r, "https://"+o.host+r.URL.Path, http.StatusTemporaryRedirect)
			}
		}))
		_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
		e := wantError(t, err, v1alpha1.ReasonUnavailable, s.host)
		texts[strings.ReplaceAll(e.Err.Error(), s.host, "HOST")] = true
		details[Details(err)] = true
		if strings.Contains(e.Err.Error(), o.host) || !strings.Contains(Details(err), o.host) {
			t.Errorf("%s: %q, for the log %q", name, e.Err, Details(err))
		}
		s.Close()
	}
	if len(texts) != 1 || len(details) != len(answers) {
		t.Errorf("%d texts, want one for all: %v; %d for the log", len(texts), texts, len(details))
	}
}

// One bad secret, used for many images by many workers, is two logins, for the image and for none,
// and does not keep a good one from being used.
func TestLoginsOfABadSecret(t *testing.T) {
	content := &repository{}
	for i := range 50 {
		content.push(fmt.Sprint("app", i), manifestType, manifestOf(), "1")
	}
	var logins atomic.Int32
	count := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, _, ok := r.BasicAuth(); ok && user == "bob" {
				logins.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	}
	for name, serve := range map[string]func(t *testing.T) *server{
		"password": func(t *testing.T) *server {
			return listen(t, "127.0.0.1:0", "registry.test", false, count(behindPassword(content)))
		},
		"tokens": func(t *testing.T) *server {
			ts := listen(t, "127.0.0.1:0", "token.test", false, count(&tokenServer{users: map[string]string{"ann": "s3cret"}, expires: 300}))
			return listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, func(token string) bool { return strings.HasPrefix(token, "token-of-ann") }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.RequestsPerSecond, c.Burst = 1000, 1000 })
			clock := testingclock.NewFakePassiveClock(time.Now())
			w.auth.setClock(clock)
			s := serve(t)
			logins.Store(0)
			var group sync.WaitGroup
			for i := range 50 {
				group.Go(func() {
					image := fmt.Sprintf("%s/app%d:1", s.host, i)
					_, err := w.Resolve(t.Context(), image, amd64, []authn.Keychain{login(s.host, "bob", "s3cret")})
					wantError(t, err, v1alpha1.ReasonUnauthorized)
					if _, err := w.Resolve(t.Context(), image, amd64, []authn.Keychain{login(s.host, "bob", "s3cret"), login(s.host, "ann", "s3cret")}); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if n := logins.Load(); n != 2 {
				t.Errorf("%d logins with one bad secret", n)
			}
			// Perhaps it is a good one by now.
			for i, passes := range []time.Duration{refusedLogin - time.Second, 2 * time.Second} {
				want := 2 * (i + 1)
				clock.SetTime(clock.Now().Add(passes))
				_, err := w.Resolve(t.Context(), s.host+"/app1:1", amd64, []authn.Keychain{login(s.host, "bob", "s3cret")})
				wantError(t, err, v1alpha1.ReasonUnauthorized)
				if n := logins.Load(); int(n) != want {
					t.Errorf("step %d: %d logins, want %d", i, n, want)
				}
			}
		})
	}
}

// A registry in trouble, or one that has enough, has not taken a credential: if it refuses
// it then, that counts at once.
func TestLoginAfterTrouble(t *testing.T) {
	for code, reason := range map[int]string{503: v1alpha1.ReasonUnavailable, 429: v1alpha1.ReasonRateLimited} {
		var inTrouble atomic.Bool
		w := newWorld(t)
		s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, _, ok := r.BasicAuth(); ok && inTrouble.Load() {
				w.WriteHeader(code)
				return
			}
			behindPassword(nil).ServeHTTP(w, r)
		}))
		bob := []authn.Keychain{login(s.host, "bob", "s3cret")}
		inTrouble.Store(true)
		_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, bob)
		wantError(t, err, reason)
		inTrouble.Store(false)
		s.take()
		for range 3 {
			_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, bob)
			wantError(t, err, v1alpha1.ReasonUnauthorized)
		}
		wantRequests(t, s, "GET /v2/app/manifests/1", "GET /v2/")
	}
}

// A registry that refuses a repository as it refuses a login: the credential stays in use for
// others, whatever is named, also first. Once it is refused for itself, it is not tried for others.
func TestRefusedRepositoryIsNoRefusedLogin(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	var changed atomic.Bool // the password
	var logins atomic.Int32
	refuse := func(w http.ResponseWriter, r *http.Request, what string) bool {
		if _, _, ok := r.BasicAuth(); ok {
			logins.Add(1)
			if changed.Load() || strings.Contains(what, "theirs") {
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
		}
		return false
	}
	guarded := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !refuse(w, r, r.URL.String()) {
				next.ServeHTTP(w, r)
			}
		})
	}
	for name, serve := range map[string]func(t *testing.T) *server{
		"password": func(t *testing.T) *server {
			return listen(t, "127.0.0.1:0", "registry.test", false, guarded(behindPassword(content)))
		},
		"tokens": func(t *testing.T) *server {
			ts := listen(t, "127.0.0.1:0", "token.test", false, guarded(&tokenServer{users: map[string]string{"ann": "s3cret"}, expires: 1}))
			return listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, func(token string) bool { return strings.HasPrefix(token, "token-of-ann") }))
		},
		// What /v2/ answers to everybody says nothing of a password.
		"password, and /v2/ is for everybody": func(t *testing.T) *server {
			return listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v2/" && !refuse(w, r, r.URL.String()) {
					behindPassword(content).ServeHTTP(w, r)
				}
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			changed.Store(false)
			w, s := newWorld(t), serve(t)
			ann := []authn.Keychain{login(s.host, "ann", "s3cret")}
			theirs := func() {
				t.Helper()
				_, err := w.Resolve(t.Context(), s.host+"/theirs:1", amd64, ann)
				wantError(t, err, v1alpha1.ReasonUnauthorized)
			}
			theirs()
			for range 3 {
				if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, ann); err != nil {
					t.Fatal(err)
				}
				theirs()
				theirs()
			}
			if strings.Contains(name, "everybody") {
				// Of a tenant's it is not known whether it is right: others are not tried with it.
				bob := []authn.Keychain{pullSecret(s.host, "bob", "s3cret"), keychains.NotAnonymously}
				_, err := w.Resolve(t.Context(), s.host+"/theirs:1", amd64, bob)
				wantError(t, err, v1alpha1.ReasonUnauthorized)
				_, err = w.Resolve(t.Context(), s.host+"/app:1", amd64, bob)
				wantError(t, err, v1alpha1.ReasonUnauthorized, "has just refused")
				return
			}
			// Every third refusal costs a second request, which tells it from that of a changed password.
			const doubted = 3
			logins.Store(0)
			for range 10 * doubted {
				theirs()
			}
			if n, most := int(logins.Load()), 10*(doubted+1); n > most && name == "password" {
				t.Errorf("%d logins for %d refused repositories, want %d at most", n, 10*doubted, most)
			}
			changed.Store(true)
			logins.Store(0)
			for range doubted {
				theirs()
			}
			if n := logins.Load(); n > doubted+1 {
				t.Errorf("%d logins with a changed password", n)
			}
			logins.Store(0)
			for range 3 {
				_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, ann)
				wantError(t, err, v1alpha1.ReasonUnauthorized, "has just refused")
			}
			if n := logins.Load(); n > 0 {
				t.Errorf("%d logins with a password that is refused", n)
			}
		})
	}
}

// A pull secret that cannot be sent, whatever the reason, is no outage of the registry.
func TestCredentialsThatCannotBeSent(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	long := strings.Repeat("x", 40<<10)
	for name, credential := range map[string]authn.AuthConfig{
		"longer than headers": {Username: "bob", Password: long},
		"a token like that":   {RegistryToken: long},
		"a line break":        {Auth: "Ym9i\nOng="},
	} {
		for _, protocol := range []string{"h2", "http/1.1"} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				w := newWorld(t)
				s := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(content), func(c *tls.Config) { c.NextProtos = []string{protocol} })
				s.Config.MaxHeaderBytes = 8 << 10
				_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{registrytest.Keychain{Registry: s.host, Credential: credential}, keychains.NotAnonymously})
				wantError(t, err, v1alpha1.ReasonUnauthorized)
			})
		}
	}
}

// Who opened an image is known; requests without credentials are made where they are
// wanted, and nowhere else.
func TestWhoOpened(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t)
	open := listen(t, "127.0.0.1:0", "other.test", false, content)
	closed := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(content))
	bob, ann := login(closed.host, "bob", "wrong"), login(closed.host, "ann", "s3cret")
	strangers := login(open.host, "bob", "any")
	for _, c := range []struct {
		name      string
		host      string
		keychains []authn.Keychain
		by        authn.Keychain
		reason    string
	}{
		{"the right one", closed.host, []authn.Keychain{bob, ann}, ann, ""},
		{"nobody's needed", open.host, []authn.Keychain{bob, ann}, nil, ""},
		{"asked for", open.host, []authn.Keychain{strangers, keychains.Anonymous}, strangers, ""},
		{"only without", open.host, []authn.Keychain{keychains.Anonymous}, nil, ""},
		{"not without", open.host, []authn.Keychain{bob, keychains.NotAnonymously}, nil, v1alpha1.ReasonUnauthorized},
		{"the wrong one, not without", closed.host, []authn.Keychain{bob, keychains.NotAnonymously}, nil, v1alpha1.ReasonUnauthorized},
		{"none and not without", closed.host, []authn.Keychain{keychains.NotAnonymously}, nil, v1alpha1.ReasonUnauthorized},
	} {
		open.take()
		found, err := w.Resolve(t.Context(), c.host+"/app:1", amd64, c.keychains)
		if c.reason != "" {
			wantError(t, err, c.reason)
			if none := len(c.keychains) == 1 || c.host == open.host; errors.Is(err, ErrNoCredentials) != none {
				t.Errorf("%s: %v", c.name, err)
			}
			if got := open.take(); len(got) > 0 {
				t.Errorf("%s: requests %q", c.name, got)
			}
			continue
		}
		if err != nil || found.By != c.by {
			t.Errorf("%s: opened by %v, error %v, want %v", c.name, found, err, c.by)
		}
	}
}

// A registry that refuses HEAD is asked with GET.
func TestHeadRefused(t *testing.T) {
	content := &repository{}
	id := content.push("app", manifestType, manifestOf(), "1")
	for code, works := range map[int]bool{400: true, 403: true, 405: true, 501: true, 404: false, 500: false} {
		w := newWorld(t)
		s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(code)
				return
			}
			content.ServeHTTP(w, r)
		}))
		got, err := w.Digest(t.Context(), s.host+"/app:1", nil)
		if works && (err != nil || got != id.String()) || !works && err == nil {
			t.Errorf("%d: %q, %v", code, got, err)
		}
	}
}

// Large answers of many registries do not add up in memory, and delay no small one.
func TestLargeAnswers(t *testing.T) {
	const hosts = 6
	release := make(chan struct{})
	large := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(make([]byte, smallBody+1))
		w.(http.Flusher).Flush()
		<-release
		_, _ = w.Write(make([]byte, maxBody))
	})
	w := newWorld(t, func(c *Config) { c.RequestsPerSecond, c.Burst, c.Timeout = 1000, 1000, time.Minute })
	var group sync.WaitGroup
	for range hosts {
		s := listen(t, "127.0.0.1:0", "registry.test", false, large)
		for i := range 4 {
			group.Go(func() {
				_, err := w.Resolve(t.Context(), fmt.Sprintf("%s/app%d:1", s.host, i), amd64, nil)
				wantError(t, err, v1alpha1.ReasonInvalidManifest)
			})
		}
	}
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	for w.transport.large.all.TryAcquire(1) { // until all places are taken
		w.transport.large.all.Release(1)
		time.Sleep(time.Millisecond)
	}
	honest := listen(t, "127.0.0.1:0", "other.test", false, content)
	if _, err := w.Resolve(t.Context(), honest.host+"/app:1", amd64, nil); err != nil {
		t.Error(err)
	}
	close(release)
	group.Wait()
	if !w.transport.large.all.TryAcquire(maxLarge) {
		t.Error("a place is still taken")
	}
}

// An answer that has to wait too long for those of other registries says nothing about its
// registry.
func TestLargeAnswerThatWaits(t *testing.T) {
	content := &repository{}
	large := manifestOf()
	large["annotations"] = object{"padding": strings.Repeat("x", smallBody)}
	content.push("app", manifestType, large, "1")
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	if !w.transport.large.all.TryAcquire(maxLarge) {
		t.Fatal("a place is taken")
	}
	// The time for a request grows until the answer comes within it, and waits.
	limit, busy := w.transport.timeout, false
	var err error
	for w.transport.timeout = time.Second; !busy && w.transport.timeout < limit; w.transport.timeout *= 2 {
		_, err = w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
		busy = wantError(t, err, v1alpha1.ReasonUnavailable, s.host).Busy
	}
	wantError(t, err, v1alpha1.ReasonUnavailable, "more than 131072 bytes", "too many others")
	if !busy {
		t.Errorf("the registry is blamed: %v", err)
	}
	w.transport.timeout = limit
	w.transport.large.all.Release(maxLarge)
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
		t.Error(err)
	}
	// Nor does one that is refused keep its place.
	other := digest.FromString("something else").String()
	content.mu.Lock()
	content.content["app/manifests/"+other] = content.content["app/manifests/1"]
	content.mu.Unlock()
	_, err = w.Resolve(t.Context(), s.host+"/app@"+other, amd64, nil)
	wantError(t, err, v1alpha1.ReasonInvalidManifest, "digest")
	if !w.transport.large.all.TryAcquire(maxLarge) {
		t.Error("a place is still taken")
	}
}

// One registry takes no more than its share of the places for large answers.
func TestLargeOfOneRegistry(t *testing.T) {
	l := newLarge()
	for range maxLargeEach {
		if _, err := l.reserve(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.reserve(ctx, "one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	release, err := l.reserve(t.Context(), "two")
	if err != nil {
		t.Fatal(err)
	}
	release()
}
