package registry

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

var amd64 = []string{"linux/amd64"}

func TestResolve(t *testing.T) {
	content := &repository{}
	base, top, other := layerOf("base", 60<<20), layerOf("top", 5), layerOf("other", 7)
	amd := content.push("team/app", manifestType, manifestOf(base, top, base), "plain")
	arm := content.push("team/app", manifestType, manifestOf(base, other))
	index := content.push("team/app", indexType, indexOf(
		entryOf(digest.FromString("attestation"), "unknown/unknown"),
		entryOf(arm, "linux/arm64/v8"),
		entryOf(amd, "linux/amd64"),
	), "1")
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	app := s.host + "/team/app"

	amdSpec := v1alpha1.ImageManifestSpec{
		Digest: amd.String(), MediaType: manifestType, Platform: "linux/amd64", Size: 60<<20 + 5,
		Layers: []v1alpha1.ImageLayer{{Digest: base["digest"].(string), Size: 60 << 20}, {Digest: top["digest"].(string), Size: 5}},
	}
	armSpec := v1alpha1.ImageManifestSpec{
		Digest: arm.String(), MediaType: manifestType, Platform: "linux/arm64/v8", Size: 60<<20 + 7,
		Layers: []v1alpha1.ImageLayer{{Digest: base["digest"].(string), Size: 60 << 20}, {Digest: other["digest"].(string), Size: 7}},
	}
	plainSpec := amdSpec
	plainSpec.Platform = ""

	get := func(identifier any) string { return fmt.Sprintf("GET /v2/team/app/manifests/%s", identifier) }
	for _, c := range []struct {
		name, reference string
		platforms       []string
		want            Resolution
		requests        []string
	}{
		// The very first request is for the challenge.
		{"index", app + ":1", amd64, Resolution{index.String(), true, []v1alpha1.ImageManifestSpec{amdSpec}, nil},
			[]string{"GET /v2/", get("1"), get(amd)}},
		{"index by digest", app + "@" + index.String(), amd64, Resolution{index.String(), true, []v1alpha1.ImageManifestSpec{amdSpec}, nil},
			[]string{get(index), get(amd)}},
		{"of tag and digest the digest", app + ":0@" + index.String(), amd64, Resolution{index.String(), true, []v1alpha1.ImageManifestSpec{amdSpec}, nil},
			[]string{get(index), get(amd)}},
		{"two platforms", app + ":1", []string{"linux/arm64", "linux/s390x", "linux/amd64"},
			Resolution{index.String(), true, []v1alpha1.ImageManifestSpec{armSpec, amdSpec}, nil},
			[]string{get("1"), get(arm), get(amd)}},
		{"manifest", app + ":plain", []string{"linux/arm64"}, Resolution{amd.String(), false, []v1alpha1.ImageManifestSpec{plainSpec}, nil},
			[]string{get("plain")}},
		{"manifest by digest", app + "@" + amd.String(), amd64, Resolution{amd.String(), false, []v1alpha1.ImageManifestSpec{plainSpec}, nil},
			[]string{get(amd)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := w.Resolve(t.Context(), c.reference, c.platforms, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got  %+v\nwant %+v", *got, c.want)
			}
			wantRequests(t, s, c.requests...)
		})
	}
	if got := s.connected(); got != 1 {
		t.Errorf("%d connections for all requests, want 1", got)
	}

	_, err := w.Resolve(t.Context(), app+":1", []string{"linux/s390x", "windows/amd64"}, nil)
	wantError(t, err, v1alpha1.ReasonPlatformNotFound, s.host, "linux/s390x, windows/amd64")
	s.take()

	got, err := w.Digest(t.Context(), app+":1", nil)
	if err != nil || got != index.String() {
		t.Errorf("digest %s, %v, want %s", got, err, index)
	}
	wantRequests(t, s, "HEAD /v2/team/app/manifests/1")
}

func TestSHA512(t *testing.T) {
	body := []byte(`{"schemaVersion":2,"config":{},"layers":[]}`)
	sum := sha512.Sum512(body)
	id := "sha512:" + hex.EncodeToString(sum[:])
	content := &repository{content: map[string]document{"app/manifests/" + id: {manifestType, body}}}
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	got, err := w.Resolve(t.Context(), s.host+"/app@"+id, nil, nil)
	if err != nil || got.Digest != id || got.Manifests[0].Digest != id {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = w.Resolve(t.Context(), s.host+"/app@sha384:"+strings.Repeat("0", 96), nil, nil)
	wantError(t, err, v1alpha1.ReasonInvalidReference)
}

func TestDigest(t *testing.T) {
	body := []byte(`{"schemaVersion":2,"config":{},"layers":[]}`)
	id := digest.FromBytes(body)
	for _, c := range []struct {
		name, said, identifier string
		want                   string
		requests               int
	}{
		{"said", id.String(), ":1", id.String(), 2},
		{"not said", "", ":1", id.String(), 3},
		{"nonsense", "sha256:", ":1", id.String(), 3},
		{"by digest", id.String(), "@" + id.String(), id.String(), 2},
		{"another one", digest.FromString("another").String(), "@" + id.String(), "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Docker-Content-Digest", c.said)
				w.Header().Set("Content-Type", manifestType)
				_, _ = w.Write(body)
			}))
			got, err := w.Digest(t.Context(), s.host+"/app"+c.identifier, nil)
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if c.want == "" {
				wantError(t, err, v1alpha1.ReasonInvalidManifest)
			} else if err != nil {
				t.Error(err)
			}
			if got := s.take(); len(got) != c.requests {
				t.Errorf("requests %q, want %d", got, c.requests)
			}
		})
	}
}

func TestTokens(t *testing.T) {
	content := &repository{}
	content.push("team/app", manifestType, manifestOf(), "1")
	content.push("team/web", manifestType, manifestOf(), "1")
	tokens := &tokenServer{users: map[string]string{"ann": "s3cret"}, expires: 300}
	w := newWorld(t)
	clock := testingclock.NewFakeClock(time.Now())
	w.auth.setClock(clock)
	ts := listen(t, "127.0.0.1:0", "token.test", false, tokens)
	var mu sync.Mutex
	revoked, public := "", false
	s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, func(token string) bool {
		mu.Lock()
		defer mu.Unlock()
		return token != revoked && (public || strings.HasPrefix(token, "token-of-ann"))
	}))
	app := s.host + "/team/app:1"
	ann := []authn.Keychain{login(s.host, "ann", "s3cret")}
	resolve := func(reference string, keychains []authn.Keychain) error {
		_, err := w.Resolve(t.Context(), reference, amd64, keychains)
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const get, ping, token = "GET /v2/team/app/manifests/1", "GET /v2/", "GET /token"

	must(resolve(app, ann))
	wantRequests(t, s, ping, get)
	wantRequests(t, ts, token)

	// Both are remembered.
	must(resolve(app, ann))
	wantRequests(t, s, get)
	wantRequests(t, ts)

	// A token is for a repository and a credential.
	must(resolve(s.host+"/team/web:1", ann))
	wantRequests(t, s, "GET /v2/team/web/manifests/1")
	wantRequests(t, ts, token)
	wantError(t, resolve(app, nil), v1alpha1.ReasonUnauthorized, s.host, "imagePullSecret")
	wantRequests(t, s, get)
	wantRequests(t, ts, token)
	wantError(t, resolve(app, []authn.Keychain{login(s.host, "ann", "s3cret-but-wrong")}), v1alpha1.ReasonUnauthorized, ts.host, "wrong")
	wantRequests(t, s)
	wantRequests(t, ts, token, token) // whether it is wrong, or not for this repository

	// A token that the registry no longer accepts is replaced, once.
	mu.Lock()
	revoked = "token-of-ann-1-for-repository:team/app:pull"
	mu.Unlock()
	must(resolve(app, ann))
	wantRequests(t, s, get, get)
	wantRequests(t, ts, token)

	// So is a token that has expired, without a useless request to the registry.
	clock.Step(5 * time.Minute)
	must(resolve(app, ann))
	wantRequests(t, s, get)
	wantRequests(t, ts, token)

	// The challenge is asked for again after an hour.
	clock.Step(time.Hour)
	must(resolve(app, ann))
	wantRequests(t, s, ping, get)
	wantRequests(t, ts, token)

	// Many concurrent callers make one request.
	clock.Step(2 * time.Hour)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if err := resolve(app, ann); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := strings.Count(strings.Join(s.take(), "\n")+"\n", ping+"\n"); got != 1 {
		t.Errorf("%d pings by many at once, want 1", got)
	}
	wantRequests(t, ts, token)
	mu.Lock()
	public = true
	mu.Unlock()
	must(resolve(app, nil))
}

func TestTokenThatDoesNotLast(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t)
	ts := listen(t, "127.0.0.1:0", "token.test", false, &tokenServer{expires: 5})
	s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, func(string) bool { return true }))
	for range 2 {
		if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
			t.Fatal(err)
		}
	}
	wantRequests(t, ts, "GET /token", "GET /token")
}

// A registry may change how it authenticates.
func TestChallengeChanges(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	var mu sync.Mutex
	var handler http.Handler = content
	w := newWorld(t)
	ts := listen(t, "127.0.0.1:0", "token.test", false, &tokenServer{users: map[string]string{"ann": "s3cret"}})
	s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now := handler
		mu.Unlock()
		now.ServeHTTP(w, r)
	}))
	const get, ping = "GET /v2/app/manifests/1", "GET /v2/"
	for i, step := range []struct {
		handler  http.Handler
		requests []string
	}{
		{content, []string{ping, get}},
		{behindToken("https://"+ts.host+"/token", content, func(token string) bool { return strings.HasPrefix(token, "token-of-ann") }),
			[]string{get, get}},
		{behindPassword(content), []string{get, get}},
		{behindPassword(content), []string{get}},
	} {
		mu.Lock()
		handler = step.handler
		mu.Unlock()
		if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")}); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		wantRequests(t, s, step.requests...)
	}
}

func TestCredentials(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(content))
	public := listen(t, "127.0.0.1:0", "other.test", false, content)
	const get = "GET /v2/app/manifests/1"
	another := login(s.host, "carl", "s3cret")
	wrong, right, elsewhere := login(s.host, "bob", "s3cret"), login(s.host, "ann", "s3cret"), login("elsewhere.test", "ann", "s3cret")
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{right}); err != nil {
		t.Fatal(err)
	}
	s.take()
	for _, c := range []struct {
		name      string
		keychains []authn.Keychain
		reason    string
		// requests for the manifest; logins are for none, to know whether a refused one is wrong.
		requests, logins int
	}{
		{"in order, each once", []authn.Keychain{elsewhere, wrong, wrong, right, right}, "", 2, 1},
		{"the first that works", []authn.Keychain{right, wrong}, "", 1, 0},
		{"name and password in one", []authn.Keychain{registrytest.Keychain{Registry: s.host, Credential: authn.AuthConfig{Auth: "YW5uOnMzY3JldA=="}}}, "", 1, 0},
		{"wrong", []authn.Keychain{another, another}, v1alpha1.ReasonUnauthorized, 1, 1},
		{"wrong again", []authn.Keychain{another, wrong}, v1alpha1.ReasonUnauthorized, 0, 0}, // or the account is locked
		{"none for this registry", []authn.Keychain{elsewhere}, v1alpha1.ReasonUnauthorized, 1, 0},
		{"none", nil, v1alpha1.ReasonUnauthorized, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, c.keychains)
			if c.reason != "" {
				wantError(t, err, c.reason, s.host)
			} else if err != nil {
				t.Error(err)
			}
			if got := s.take(); len(got) != c.requests+c.logins || strings.Count(strings.Join(got, "\n"), get) != c.requests {
				t.Errorf("requests %q, want %d and %d logins", got, c.requests, c.logins)
			}
		})
	}
	// A credential for one registry is not used for another.
	if _, err := w.Resolve(t.Context(), public.host+"/app:1", amd64, []authn.Keychain{right, wrong}); err != nil {
		t.Error(err)
	}
	if public.saw("Basic") {
		t.Error("another registry was given the credential")
	}
	// A keychain that cannot be read is reported only if it may matter.
	broken := authn.NewMultiKeychain(brokenKeychain{})
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{broken, right}); err != nil {
		t.Error(err)
	}
	_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{broken})
	wantError(t, err, v1alpha1.ReasonUnauthorized, "cannot be read: the log")
	if strings.Contains(err.Error(), "no such secret") || !strings.Contains(Details(err), "cannot be read: no such secret") {
		t.Errorf("tenants see %q, the log has %q", err, Details(err))
	}
}

// Of several refusals the one that says most is told: the image is not there. A registry in
// trouble is not asked with further credentials.
func TestRefusalsOfSeveralCredentials(t *testing.T) {
	codes := map[string]int{"none": 404, "wrong": 401, "busy": 503}
	reasons := map[int]string{404: v1alpha1.ReasonNotFound, 401: v1alpha1.ReasonUnauthorized, 503: v1alpha1.ReasonUnavailable}
	for _, c := range []struct {
		users []string
		want  int
		asked int
	}{
		{[]string{"none", "wrong"}, 404, 2}, {[]string{"wrong", "none"}, 404, 2}, {[]string{"wrong", "none", "wrong"}, 404, 2},
		{[]string{"none", "busy", "wrong"}, 503, 2}, {[]string{"wrong", "busy", "none"}, 503, 2}, {[]string{"wrong"}, 401, 1},
	} {
		asked := map[string]bool{}
		var mu sync.Mutex
		s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, _, ok := r.BasicAuth()
			if !ok {
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			mu.Lock()
			asked[user] = true
			mu.Unlock()
			w.WriteHeader(codes[user])
		}))
		w := newWorld(t)
		keychains := []authn.Keychain{authn.NewMultiKeychain(brokenKeychain{})}
		for _, user := range c.users {
			keychains = append(keychains, login(s.host, user, "s3cret"))
		}
		_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, keychains)
		wantError(t, err, reasons[c.want])
		if told := strings.Contains(err.Error(), "cannot be read"); told != (c.want == 401) {
			t.Errorf("%q: %v", c.users, err)
		}
		if len(asked) != c.asked {
			t.Errorf("%q: asked as %v", c.users, asked)
		}
	}
}

// A user name or a password alone does not hide the pair that Auth has.
func TestNameWithoutPassword(t *testing.T) {
	for _, config := range []authn.AuthConfig{{Username: "ann", Auth: "YW5uOnMzY3JldA=="}, {Password: "s3cret", Auth: "YW5uOnMzY3JldA=="}} {
		content := &repository{}
		content.push("app", manifestType, manifestOf(), "1")
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(content))
		if _, err := newWorld(t).Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{registrytest.Keychain{Registry: s.host, Credential: config}}); err != nil {
			t.Error(err)
		}
	}
}

// An invalid token in a pull secret must not count as a failure of the
// registry: callers stop asking a registry that fails.
func TestTokenThatIsNoHeader(t *testing.T) {
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(&repository{}))
	token := registrytest.Keychain{Registry: s.host, Credential: authn.AuthConfig{RegistryToken: "s3cret\ntoken"}}
	_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{token})
	wantError(t, err, v1alpha1.ReasonUnauthorized, s.host, "registrytoken")
	wantRequests(t, s, "GET /v2/")
}

// All characters that a token may have (RFC 6750, section 2.1).
func TestTokenOfAllCharacters(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	const token = "aZ09-._~+/=="
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://token.test/", content, func(given string) bool { return given == token }))
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{registrytest.Keychain{Registry: s.host, Credential: authn.AuthConfig{RegistryToken: token}}}); err != nil {
		t.Error(err)
	}
}

type brokenKeychain struct{}

func (brokenKeychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return nil, fmt.Errorf("no such secret")
}

// Registries tell clients apart by it, and limit or block them.
func TestUserAgent(t *testing.T) {
	for configured, want := range map[string]string{"": "layer-resolver", "layer-resolver/v1": "layer-resolver/v1"} {
		w := newWorld(t, func(c *Config) { c.UserAgent = configured })
		s := listen(t, "127.0.0.1:0", "registry.test", false, nil)
		_, _ = w.Resolve(t.Context(), s.host+"/app:1", amd64, nil) // it has no image
		s.mu.Lock()
		headers := s.headers
		s.mu.Unlock()
		if len(headers) == 0 {
			t.Error("no request")
		}
		for _, header := range headers {
			if got := header.Get("User-Agent"); got != want {
				t.Errorf("configured %q: %q, want %q", configured, got, want)
			}
		}
	}
}

func TestRegistryPolicy(t *testing.T) {
	p, err := policy.New(policy.Config{Registries: []string{"registry.test"}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *Config) { c.Policy = p })
	s := listen(t, "127.0.0.1:0", "registry.test", false, &repository{})
	_, err = w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonDenied, "--allow-registry="+s.host)
	p.SetInUse([]string{s.host})
	_, err = w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonDenied, "--allow-network=127.0.0.1/32", s.host)
	if got := s.connected(); got != 0 {
		t.Errorf("%d connections to what the policy does not allow", got)
	}
}

func TestRateLimit(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t, func(c *Config) { c.RequestsPerSecond, c.Burst = 1e-6, 2 })
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	o := listen(t, "127.0.0.1:0", "other.test", false, content)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := w.Resolve(ctx, s.host+"/app:1", amd64, nil); err != nil {
		t.Fatal(err)
	}
	s.take()
	_, err := w.Resolve(ctx, s.host+"/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonUnavailable)
	wantRequests(t, s)
	if _, err := w.Resolve(ctx, o.host+"/app:1", amd64, nil); err != nil {
		t.Errorf("another registry waits too: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	metrics := prometheus.NewRegistry()
	w := newWorld(t, func(c *Config) { c.Registerer = metrics })
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Digest(t.Context(), s.host+"/app:2", nil); err == nil {
		t.Fatal("no error")
	}
	_, err := w.Resolve(t.Context(), "nowhere.test/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonUnavailable, "no such host")
	want := fmt.Sprintf(`
		# HELP layerlocality_resolver_registry_requests_total HTTP requests sent for a registry, redirects and requests for tokens included, by what they are for and status code; an unusual code is counted by its class (4xx) or as other; error if there was no answer.
		# TYPE layerlocality_resolver_registry_requests_total counter
		layerlocality_resolver_registry_requests_total{code="200",method="GET",registry=%[1]q,request="manifest"} 1
		layerlocality_resolver_registry_requests_total{code="200",method="GET",registry=%[1]q,request="ping"} 1
		layerlocality_resolver_registry_requests_total{code="404",method="HEAD",registry=%[1]q,request="manifest"} 1
		layerlocality_resolver_registry_requests_total{code="error",method="GET",registry="nowhere.test",request="ping"} 1
	`, s.host)
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(want), "layerlocality_resolver_registry_requests_total"); err != nil {
		t.Error(err)
	}
	for i := range 2 * maxLabels {
		w.transport.label(fmt.Sprint(i))
	}
	if got := w.transport.label("one more"); got != "other" {
		t.Errorf("label %q after %d registries, want other", got, 2*maxLabels)
	}
	if got := w.transport.label(s.host); got != s.host {
		t.Errorf("label %q, want %q", got, s.host)
	}
}

func TestNewRefuses(t *testing.T) {
	allowed := mustPolicy(t)
	metrics := prometheus.NewRegistry()
	if _, err := New(Config{Policy: allowed, Registerer: metrics}); err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]Config{
		"no policy":        {},
		"negative timeout": {Policy: allowed, Timeout: -1},
		"negative burst":   {Policy: allowed, Burst: -1},
		"no such file":     {Policy: allowed, RegistriesConf: filepath.Join(t.TempDir(), "registries.conf")},
		"metrics twice":    {Policy: allowed, Registerer: metrics},
	} {
		if _, err := New(config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestDenied: only names are checked, and nothing is asked.
func TestDenied(t *testing.T) {
	allowed, err := policy.New(policy.Config{Registries: []string{"listed.example"}})
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(t.TempDir(), "registries.conf")
	text := "[[registry]]\nlocation = \"conf.example\"\n[[registry]]\nlocation = \"mirrored.example\"\n[[registry.mirror]]\nlocation = \"mirror.example\"\n" +
		"[[registry]]\nlocation = \"blocked.example\"\nblocked = true\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := New(Config{Policy: allowed, RegistriesConf: conf})
	if err != nil {
		t.Fatal(err)
	}
	for reference, denied := range map[string]bool{
		"listed.example/x:1": false, "conf.example/x:1": false, "mirrored.example/x:1": false,
		"other.example/x:1": true, "blocked.example/x:1": true, "mirror.example/x:1": true,
	} {
		if err := client.Denied(reference); (err != nil) != denied {
			t.Errorf("%s: %v", reference, err)
		}
	}
}

// An index in an index is refused when it is fetched, no matter what media type
// its descriptor states.
func TestNestedIndex(t *testing.T) {
	content := &repository{}
	inner := content.push("app", indexType, indexOf(entryOf(digest.FromString("a"), "linux/amd64")))
	content.push("app", indexType, indexOf(entryOf(inner, "linux/amd64")), "1")
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonInvalidManifest, s.host, "another index")
}

// renewed is a keychain that has another password for each one that is refused, while there are any.
type renewed struct {
	mu        sync.Mutex
	passwords []string
}

func (k *renewed) Resolve(authn.Resource) (authn.Authenticator, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &authn.Basic{Username: "ann", Password: k.passwords[0]}, nil
}

func (k *renewed) Refused(authn.Resource) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.passwords) > 1 {
		k.passwords = k.passwords[1:]
		return true
	}
	return false
}

// TestRefusedCredentialIsRenewed: a keychain that may have another credential is asked again when a registry refuses
// the one that it had.
func TestRefusedCredentialIsRenewed(t *testing.T) {
	s := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(oneImage()))
	for _, c := range []struct {
		passwords []string
		opens     bool
	}{{[]string{"old", "s3cret"}, true}, {[]string{"s3cret", "new"}, true}, {[]string{"old", "older", "s3cret"}, false}, {[]string{"old"}, false}} {
		keychain := &renewed{passwords: c.passwords}
		found, err := newWorld(t).Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{keychain})
		if !c.opens {
			wantError(t, err, v1alpha1.ReasonUnauthorized)
		} else if err != nil || found.By != authn.Keychain(keychain) {
			t.Errorf("%q: opened by %v, error %v", c.passwords, found.By, err)
		}
	}
}
