package registry

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry/manifest"
)

// Tests of what registries really answer, beside what the distribution specification has.

const onContainerd = "linux/amd64" + manifest.Containerd

// TestNestedIndexes: containerd follows an index in an index, CRI-O does not.
func TestNestedIndexes(t *testing.T) {
	// push pushes an index around an image that many times, and returns the image.
	push := func(content *repository, deep int, platform string) digest.Digest {
		image := content.push("app", manifestType, manifestOf(layerOf("the only layer", 7)))
		inner := indexOf(entryOf(image, "linux/amd64"), entryOf(digest.FromString("attestation"), "unknown/unknown"))
		for range deep {
			entry := entryOf(content.push("app", indexType, inner), platform)
			entry["mediaType"] = indexType
			inner = indexOf(entry)
		}
		content.push("app", indexType, inner, "1")
		return image
	}
	for _, c := range []struct {
		deep      int
		platform  string
		platforms []string
		reason    string
	}{
		{1, "linux/amd64", []string{onContainerd}, ""},
		{1, "", []string{onContainerd}, ""},
		{maxNested, "linux/amd64", []string{onContainerd}, ""},
		{1, "linux/amd64", []string{"linux/amd64", onContainerd}, ""}, // the nodes with containerd pull it
		{1, "linux/amd64", amd64, v1alpha1.ReasonInvalidManifest},
		{1, "linux/arm64", []string{onContainerd}, v1alpha1.ReasonPlatformNotFound},
		{maxNested + 1, "linux/amd64", []string{onContainerd}, v1alpha1.ReasonInvalidManifest},
	} {
		content := &repository{}
		image := push(content, c.deep, c.platform)
		s := listen(t, "127.0.0.1:0", "registry.test", false, content)
		found, err := newWorld(t).Resolve(t.Context(), s.host+"/app:1", c.platforms, nil)
		switch {
		case c.reason != "":
			wantError(t, err, c.reason)
		case err != nil || len(found.Manifests) != 1 || found.Manifests[0].Digest != image.String() || !found.Index:
			t.Errorf("%+v: %+v, error %v", c, found, err)
		}
	}
}

// TestRepositoryStatesChallenge: a registry that answers /v2/ to everybody, or not at all, states at a repository who may
// read it. What it states there is for that repository.
func TestRepositoryStatesChallenge(t *testing.T) {
	content := &repository{}
	content.push("team/app", manifestType, manifestOf(), "1")
	content.push("open/app", manifestType, manifestOf(), "1")
	ts := listen(t, "127.0.0.1:0", "token.test", false, &tokenServer{users: map[string]string{"ann": "s3cret"}, expires: 300})
	tokens := func(prefix string) http.Handler {
		return behindToken("https://"+ts.host+"/token", content, func(token string) bool { return strings.HasPrefix(token, prefix) })
	}
	for name, guarded := range map[string]http.Handler{"anybody's token": tokens("token-of-"), "her token": tokens("token-of-ann-"), "her password": behindPassword(content)} {
		for _, ping := range []int{200, 403, 404} {
			w := newWorld(t)
			s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/v2/":
					w.WriteHeader(ping)
				case strings.HasPrefix(r.URL.Path, "/v2/open/"):
					content.ServeHTTP(w, r)
				default:
					guarded.ServeHTTP(w, r)
				}
			}))
			ann := []authn.Keychain{login(s.host, "ann", "s3cret")}
			for range 2 {
				if _, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, ann); err != nil {
					t.Errorf("%s, /v2/ answers %d: %v", name, ping, err)
				}
			}
			if requests := s.take(); len(requests) > 4 {
				t.Errorf("%s: the challenge is forgotten: %q", name, requests)
			}
			if _, err := w.Resolve(t.Context(), s.host+"/open/app:1", amd64, nil); err != nil {
				t.Errorf("%s: the open repository: %v", name, err)
			}
			if got := strings.Join(s.take(), " "); got != "GET /v2/open/app/manifests/1" {
				t.Errorf("%s: requests %s", name, got)
			}
		}
	}
}

// TestServiceOfRepository: a token server may serve several services, and a repository be of another than /v2/ states.
func TestServiceOfRepository(t *testing.T) {
	content := &repository{}
	content.push("proxy/app", manifestType, manifestOf(), "1")
	ts := listen(t, "127.0.0.1:0", "token.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"token":"for-%s"}`, r.URL.Query().Get("service"))
	}))
	s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service := "registry"
		if strings.HasPrefix(r.URL.Path, "/v2/proxy/") {
			service = "proxy"
		}
		if r.Header.Get("Authorization") != "Bearer for-"+service {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="%s"`, ts.host, service))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		content.ServeHTTP(w, r)
	}))
	if _, err := newWorld(t).Resolve(t.Context(), s.host+"/proxy/app:1", amd64, nil); err != nil {
		t.Error(err)
	}
}

// TestScopeOfRepository: a manager that rewrites paths states the scope of the repository behind it, which the token server
// wants. One that is stated at /v2/, and one that is too long, is not asked for.
func TestScopeOfRepository(t *testing.T) {
	content := &repository{}
	content.push("proxy/app", manifestType, manifestOf(), "1")
	stated := ""
	ts := listen(t, "127.0.0.1:0", "token.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := json.Marshal(r.URL.Query()["scope"])
		fmt.Fprintf(w, `{"token":%q}`, base64.StdEncoding.EncodeToString(token))
	}))
	s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope := "*"
		if r.URL.Path != "/v2/" {
			scope = stated
		}
		token, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		var scopes []string
		if json.Unmarshal(token, &scopes) != nil || !slices.Contains(scopes, stated) || slices.Contains(scopes, "*") {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="r",scope="%s"`, ts.host, scope))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		content.ServeHTTP(w, r)
	}))
	for scope, requests := range map[string]int{"repository:proxy/app:pull": 2, "repository:behind/team/app:pull": 3} {
		stated = scope
		if _, err := newWorld(t).Resolve(t.Context(), s.host+"/proxy/app:1", amd64, nil); err != nil {
			t.Errorf("%s: %v", scope, err)
		}
		if got := s.take(); len(got) != requests {
			t.Errorf("%s: %d requests, want %d: %q", scope, len(got), requests, got)
		}
	}
	stated = "repository:" + strings.Repeat("x", maxScope) + ":pull"
	if _, err := newWorld(t).Resolve(t.Context(), s.host+"/proxy/app:1", amd64, nil); err == nil {
		t.Error("a long scope was asked for")
	}
}

// TestExpiredTokenIsBadRequest: a token that has expired is requested anew, whatever the registry answers to it.
func TestExpiredTokenIsBadRequest(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	valid := "token-1"
	issued := 0
	ts := listen(t, "127.0.0.1:0", "token.test", false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		issued++
		fmt.Fprintf(w, `{"token":"token-%d","expires_in":43200}`, issued)
	}))
	s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token"`, ts.host))
			w.WriteHeader(http.StatusUnauthorized)
		case "Bearer " + valid:
			content.ServeHTTP(w, r)
		default:
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	w := newWorld(t)
	for _, valid = range []string{"token-1", "token-2"} {
		if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
			t.Errorf("%s: %v", valid, err)
		}
	}
	// One that is new and refused nevertheless is not requested again and again.
	valid = "none"
	for range 2 {
		if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err == nil {
			t.Error("resolved without a token")
		}
	}
	if issued > 4 {
		t.Errorf("%d tokens", issued)
	}
}

// TestHeadRedirected: a signed address to which HEAD is redirected may be valid for GET only.
func TestHeadRedirected(t *testing.T) {
	content := &repository{}
	id := content.push("app", manifestType, manifestOf(), "1")
	storage := listen(t, "127.0.0.1:0", "other.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		content.ServeHTTP(w, r)
	}))
	s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Redirect(w, r, "https://"+storage.host+r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	if got, err := newWorld(t).Digest(t.Context(), s.host+"/app:1", nil); err != nil || got != id.String() {
		t.Errorf("%q, %s", got, Details(err))
	}
}

// TestDefaultPort: a host with the default port of its scheme is the host without.
func TestDefaultPort(t *testing.T) {
	network, addr := netip.MustParsePrefix("10.20.0.0/16"), netip.MustParseAddr("10.20.0.7")
	for _, c := range []struct {
		registry, realm string
		same            bool
	}{
		{"a.example", "https://a.example:443/token", true},
		{"a.example:443", "https://a.example/token", true},
		{"a.example", "https://A.example/token", true},
		{"a.example:80", "http://a.example/token", true},
		{"a.example", "https://a.example:80/token", false},
		{"a.example", "http://a.example:443/token", false},
		{"a.example", "https://a.example:5000/token", false},
		{"a.example:5000", "https://a.example/token", false},
		{"a.example", "https://b.example/token", false},
	} {
		realm, err := url.Parse(c.realm)
		if err != nil {
			t.Fatal(err)
		}
		contact := (&exchange{source: &source{domain: c.registry}}).contact(realm)
		if (contact.Via == "") != c.same {
			t.Errorf("%s, token server %s: %+v", c.registry, c.realm, contact)
		}
		p, err := policy.New(policy.Config{Networks: []netip.Prefix{network}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Contact(addr, contact); (err == nil) != c.same {
			t.Errorf("%s, token server %s: %v", c.registry, c.realm, err)
		}
	}
	for _, hosts := range [][2]string{{"a.example", "a.example:443"}, {"a.example:443", "a.example"}} {
		p, err := policy.New(policy.Config{Registries: []string{hosts[0]}, HostNetworks: map[string][]netip.Prefix{hosts[0]: {network}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Registry(hosts[1]); err != nil {
			t.Error(err)
		}
		if err := p.Contact(addr, policy.Contact{Registry: "other.example", Via: hosts[1]}); err != nil {
			t.Error(err)
		}
		if err := p.Registry(strings.TrimSuffix(hosts[1], ":443") + ":5000"); err == nil {
			t.Error("another port is the same")
		}
	}
}

// TestOtherContentType: a server may send every answer with a type of its own, and state no digest.
func TestOtherContentType(t *testing.T) {
	body := fmt.Appendf(nil, `{"schemaVersion":2,"config":{"digest":"%s","size":1},"layers":[{"digest":"%s","size":3}]}`, digest.FromString("c"), digest.FromString("l"))
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(body)
	}))
	if got, err := w.Digest(t.Context(), s.host+"/app:1", nil); err != nil || got != digest.FromBytes(body).String() {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
		t.Error(err)
	}
}
