package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// faulty answers the ping itself, and everything else by fault.
func faulty(fault http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			fault(w, r)
		}
	})
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if len(header) > 0 {
			w.Header().Set(header[0], header[1])
		}
		w.WriteHeader(code)
		// Larger than the part of an error that is read, and with text that must not
		// be shown.
		_, _ = fmt.Fprintf(w, `{"errors":[{"code":"X","message":"s3cret"}]}%s`, strings.Repeat("\x00", 100<<10))
	}
}

func body(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", manifestType)
		_, _ = w.Write([]byte(text))
	}
}

func manyLayers(n int) string {
	layers := make([]object, n)
	for i := range layers {
		layers[i] = layerOf(fmt.Sprint(i), 1)
	}
	text, err := json.Marshal(manifestOf(layers...))
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestFaults(t *testing.T) {
	id := digest.FromString("what was asked for").String()
	for _, c := range []struct {
		name       string
		fault      http.HandlerFunc
		identifier string
		reason     string
		after      time.Duration
		text       string
	}{
		{"401", status(401), ":1", v1alpha1.ReasonUnauthorized, 0, "imagePullSecret"},
		{"403", status(403), ":1", v1alpha1.ReasonUnauthorized, 0, "403"},
		{"404", status(404), ":1", v1alpha1.ReasonNotFound, 0, "no such"},
		{"429", status(429), ":1", v1alpha1.ReasonRateLimited, 0, "429"},
		{"429 with seconds", status(429, "Retry-After", "30"), ":1", v1alpha1.ReasonRateLimited, 30 * time.Second, "30s"},
		{"429 for ever", status(429, "Retry-After", "99999999999999999999"), ":1", v1alpha1.ReasonRateLimited, time.Hour, "1h"},
		{"429 until a date", status(429, "Retry-After", "Fri, 31 Dec 2199 23:59:59 GMT"), ":1", v1alpha1.ReasonRateLimited, time.Hour, ""},
		{"500", status(500), ":1", v1alpha1.ReasonUnavailable, 0, "500 Internal Server Error"},
		{"503 with seconds", status(503, "Retry-After", "7"), ":1", v1alpha1.ReasonUnavailable, 7 * time.Second, "503"},
		{"400", status(400), ":1", v1alpha1.ReasonNotFound, 0, "400 Bad Request: it does not serve this name"},
		{"400 with half of its text", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte("no"))
		}, ":1", v1alpha1.ReasonNotFound, 0, "400"},
		{"408", status(408), ":1", v1alpha1.ReasonUnavailable, 0, "408"},
		{"451", status(451), ":1", v1alpha1.ReasonNotFound, 0, "451"},
		{"unknown status", status(599), ":1", v1alpha1.ReasonUnavailable, 0, "599"},
		{"no answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ":1", v1alpha1.ReasonUnavailable, 0, ""},
		{"truncated", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"schemaVersion":2,`))
		}, ":1", v1alpha1.ReasonUnavailable, 0, ""},
		{"truncated without length", body(manyLayers(10)[:500]), ":1", v1alpha1.ReasonInvalidManifest, 0, ""},
		{"wrong digest", body(manyLayers(1)), "@" + id, v1alpha1.ReasonInvalidManifest, 0, "digest"},
		{"5 MiB", body(`{"schemaVersion":2,"config":{},"layers":[]` + strings.Repeat(" ", 5<<20) + "}"), ":1", v1alpha1.ReasonInvalidManifest, 0, "4194304 bytes"},
		{"512 layers", body(manyLayers(v1alpha1.MaxLayers)), ":1", "", 0, ""},
		{"513 layers", body(manyLayers(v1alpha1.MaxLayers + 1)), ":1", v1alpha1.ReasonInvalidManifest, 0, "512 layers"},
		{"10,000 layers", body(manyLayers(10_000)), ":1", v1alpha1.ReasonInvalidManifest, 0, "512 layers"},
		{"headers of 100 KiB", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", 100<<10))
			body(manyLayers(1))(w, r)
		}, ":1", v1alpha1.ReasonUnavailable, 0, ""},
		{"asked to compress", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "" {
				w.WriteHeader(http.StatusTeapot) // a small answer might become a large one
			}
			body(manyLayers(1))(w, r)
		}, ":1", "", 0, ""},
		{"a page", body("<html>"), ":1", v1alpha1.ReasonInvalidManifest, 0, ""},
		{"nothing", body(""), ":1", v1alpha1.ReasonInvalidManifest, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			s := listen(t, "127.0.0.1:0", "registry.test", false, faulty(c.fault))
			_, err := w.Resolve(t.Context(), s.host+"/app"+c.identifier, amd64, nil)
			if c.reason == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e := wantError(t, err, c.reason, s.host, c.text)
			if e.RetryAfter != c.after || e.Host != s.host {
				t.Errorf("retry after %s, host %s; want %s, %s", e.RetryAfter, e.Host, c.after, s.host)
			}
			if said := strings.Contains(e.Err.Error(), "come back in"); said != (c.after > 0 && c.reason == v1alpha1.ReasonRateLimited) {
				t.Errorf("%q; the registry says to come back after %s", e.Err, c.after)
			}
			if got := len(s.take()); got != 2 {
				t.Errorf("%d requests, want 2: a failure is the caller's to repeat", got)
			}
		})
	}
}

// A failure before the request for the manifest is reported in the same way.
func TestFaultsOfPing(t *testing.T) {
	for code, reason := range map[int]string{
		403: v1alpha1.ReasonUnauthorized,
		404: v1alpha1.ReasonNotFound,
		429: v1alpha1.ReasonRateLimited,
		500: v1alpha1.ReasonUnavailable,
		503: v1alpha1.ReasonUnavailable,
	} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			w := newWorld(t)
			s := listen(t, "127.0.0.1:0", "registry.test", false, status(code, "Retry-After", "30"))
			_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
			e := wantError(t, err, reason, s.host, strconv.Itoa(code))
			if want := map[int]time.Duration{429: 30 * time.Second, 503: 30 * time.Second}[code]; e.RetryAfter != want {
				t.Errorf("retry after %s, want %s", e.RetryAfter, want)
			}
			if code < 429 { // it may serve repositories nevertheless
				wantRequests(t, s, "GET /v2/", "GET /v2/app/manifests/1")
			} else {
				wantRequests(t, s, "GET /v2/")
			}
		})
	}
}

func TestFaultsOfTokenServer(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  http.HandlerFunc
		reason string
	}{
		{"401", status(401), v1alpha1.ReasonUnauthorized},
		{"404", status(404), v1alpha1.ReasonUnauthorized},
		{"405", status(405), v1alpha1.ReasonUnauthorized},
		{"429", status(429), v1alpha1.ReasonRateLimited},
		{"500", status(500), v1alpha1.ReasonUnavailable},
		{"no token", body(`{"refresh_token":"s3cret"}`), v1alpha1.ReasonUnavailable},
		{"a token of 5 MiB", body(`{"token":"` + strings.Repeat("s3cret", 1<<20) + `"}`), v1alpha1.ReasonUnavailable},
		{"a token that is no header", body(`{"token":"s3cret\r\nHost: other.test"}`), v1alpha1.ReasonUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			ts := listen(t, "127.0.0.1:0", "token.test", false, c.fault)
			s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", &repository{}, func(string) bool { return true }))
			_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")})
			wantError(t, err, c.reason, s.host)
		})
	}
}

func TestNoConnection(t *testing.T) {
	t.Run("down", func(t *testing.T) {
		_, err := newWorld(t).Resolve(t.Context(), "registry.test:1/app:1", amd64, nil)
		wantError(t, err, v1alpha1.ReasonUnavailable, "registry.test:1", "connection refused")
	})
	t.Run("no such host", func(t *testing.T) {
		_, err := newWorld(t).Resolve(t.Context(), "nowhere.test/app:1", amd64, nil)
		wantError(t, err, v1alpha1.ReasonUnavailable, "nowhere.test", "no such host")
	})
	t.Run("silent", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Timeout = 50 * time.Millisecond })
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		_, err = w.Resolve(t.Context(), listener.Addr().String()+"/app:1", amd64, nil) // no name, whose address could come late
		wantError(t, err, v1alpha1.ReasonUnavailable, "in time")
	})
	t.Run("slow body", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Timeout = time.Second })
		end := make(chan struct{})
		s := listen(t, "127.0.0.1:0", "127.0.0.1", false, faulty(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(`{"schemaVersion":`))
			w.(http.Flusher).Flush()
			<-end
		}))
		_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
		close(end)
		wantError(t, err, v1alpha1.ReasonUnavailable, s.host, "in time")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is no context.DeadlineExceeded", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		s := listen(t, "127.0.0.1:0", "registry.test", false, faulty(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		}))
		_, err := w.Resolve(ctx, s.host+"/app:1", amd64, nil)
		wantError(t, err, v1alpha1.ReasonUnavailable)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is no context.Canceled", err)
		}
	})
	t.Run("unknown authority", func(t *testing.T) {
		w := newWorld(t)
		w.transport.now.Load().verified.TLSClientConfig.RootCAs = nil
		s := listen(t, "127.0.0.1:0", "registry.test", false, nil)
		_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
		wantError(t, err, v1alpha1.ReasonUnavailable, s.host, "--ca-bundle")
		wantRequests(t, s)
	})
}

// Registries with names that look local are not asked over plain HTTP either: a
// credential would be readable on the way.
func TestPlainHTTP(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t)
	w.names.set("registry.localhost", "127.0.0.1")
	for _, name := range []string{"registry.test", "127.0.0.1", "localhost", "registry.localhost"} {
		s := listen(t, "127.0.0.1:0", name, true, content)
		_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")})
		wantError(t, err, v1alpha1.ReasonUnavailable, s.host, "insecure in registries.conf")
		wantRequests(t, s)
	}
}

func TestRedirects(t *testing.T) {
	content := &repository{}
	content.push("team/app", manifestType, manifestOf(), "1")
	redirect := func(code int, to *string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				http.Redirect(w, r, *to+r.URL.Path+"?signature=s3cret", code)
			}
		})
	}
	for _, code := range []int{301, 302, 307, 308} {
		t.Run(fmt.Sprintf("%d to another host", code), func(t *testing.T) {
			w := newWorld(t)
			var to string
			s := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(redirect(code, &to)))
			keychains := []authn.Keychain{login(s.host, "ann", "s3cret")}
			// Neither a host below the registry's nor another port of it is the registry.
			for _, name := range []string{"other.test", "sub.registry.test", "registry.test"} {
				o := listen(t, "127.0.0.1:0", name, false, content)
				to = "https://" + o.host
				if _, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, keychains); err != nil {
					t.Error(err)
				}
				if o.saw("https://" + s.host) {
					t.Errorf("%s was told where it was named", o.host)
				}
				if o.saw("Basic") || o.saw("ann:") || len(o.take()) != 1 {
					t.Errorf("%s was given a credential, or not asked once", o.host)
				}
				if _, err := w.Digest(t.Context(), s.host+"/team/app:1", keychains); err != nil {
					t.Error(err)
				}
				wantRequests(t, o, "HEAD /v2/team/app/manifests/1")
			}
		})
	}
	t.Run("within the registry", func(t *testing.T) {
		w := newWorld(t)
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name, ok := strings.CutPrefix(r.URL.Path, "/v2/old/"); ok {
				http.Redirect(w, r, "/v2/team/"+name, http.StatusTemporaryRedirect)
				return
			}
			content.ServeHTTP(w, r)
		})))
		if _, err := w.Resolve(t.Context(), s.host+"/old/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")}); err != nil {
			t.Error(err)
		}
	})
	t.Run("failure of the other host", func(t *testing.T) {
		w := newWorld(t)
		var to string
		s := listen(t, "127.0.0.1:0", "registry.test", false, redirect(307, &to))
		o := listen(t, "127.0.0.1:0", "other.test", false, status(429, "Retry-After", "30"))
		to = "https://" + o.host
		_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, nil)
		e := wantError(t, err, v1alpha1.ReasonRateLimited, s.host, "redirected to "+o.host)
		if e.Host != o.host || e.RetryAfter != 30*time.Second {
			t.Errorf("host %s, retry after %s", e.Host, e.RetryAfter)
		}
	})
	t.Run("for ever", func(t *testing.T) {
		w := newWorld(t)
		var to string
		s := listen(t, "127.0.0.1:0", "registry.test", false, redirect(307, &to))
		_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, nil)
		wantError(t, err, v1alpha1.ReasonUnavailable, s.host, "more than 3 times")
		if got := len(s.take()); got != 1+1+maxRedirects {
			t.Errorf("%d requests, want %d", got, 1+1+maxRedirects)
		}
	})
	t.Run("to plain HTTP", func(t *testing.T) {
		for _, insecure := range []bool{false, true} {
			var to string
			s := listen(t, "127.0.0.1:0", "registry.test", false, redirect(307, &to))
			o := listen(t, "127.0.0.1:0", "other.test", true, content)
			to = "http://" + o.host
			w := newWorld(t, withConf(writeConf(t, fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = %t\n", s.host, insecure))))
			_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, nil)
			wantError(t, err, v1alpha1.ReasonDenied, s.host, "plain HTTP")
			wantRequests(t, o)
		}
	})
	t.Run("to a forbidden address", func(t *testing.T) {
		w := newWorld(t)
		var to string
		s := listen(t, "127.0.0.1:0", "registry.test", false, redirect(307, &to))
		forbidden := listen(t, "127.0.0.2:0", "forbidden.test", false, content)
		w.names.set("forbidden.test", "127.0.0.2")
		for _, host := range []string{forbidden.host, forbidden.Listener.Addr().String(), fmt.Sprintf("[::ffff:127.0.0.2]:%d", forbidden.port())} {
			to = "https://" + host
			_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, nil)
			wantError(t, err, v1alpha1.ReasonDenied, "--allow-network=127.0.0.2/32", s.host)
			var denied *policy.Denied
			if !errors.As(err, &denied) {
				t.Errorf("%v is no *policy.Denied", err)
			}
		}
		if got := forbidden.connected(); got != 0 {
			t.Errorf("%d connections to a forbidden address", got)
		}
	})
	t.Run("of the ping", func(t *testing.T) {
		// Another host's challenge gets no credential.
		w := newWorld(t)
		ts := listen(t, "127.0.0.1:0", "token.test", false, &tokenServer{users: map[string]string{"ann": "s3cret"}})
		o := listen(t, "127.0.0.1:0", "other.test", false, behindToken("https://"+ts.host+"/token", content, func(string) bool { return true }))
		s := listen(t, "127.0.0.1:0", "registry.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+o.host+r.URL.Path, http.StatusTemporaryRedirect)
		}))
		_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")})
		wantError(t, err, v1alpha1.ReasonUnauthorized, s.host, "redirected to "+o.host)
		if ts.connected() != 0 || o.saw("Basic") || o.saw("Bearer") {
			t.Error("a credential went to another host")
		}
	})
}

// A name server that gives a different answer the second time.
func TestAddressThatChanges(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	forbidden := listen(t, fmt.Sprintf("127.0.0.2:%d", s.port()), "registry.test", false, content)
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
		t.Fatal(err)
	}
	w.names.set("registry.test", "127.0.0.2")
	var err error
	for err == nil { // a connection is idle some time after its last answer
		w.transport.now.Load().verified.CloseIdleConnections()
		_, err = w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
	}
	wantError(t, err, v1alpha1.ReasonDenied, "--allow-network=127.0.0.2/32")
	if got := forbidden.connected(); got != 0 {
		t.Errorf("%d connections to a forbidden address", got)
	}
}

func TestTokenServers(t *testing.T) {
	content := &repository{}
	content.push("team/app", manifestType, manifestOf(), "1")
	fromAnn := func(token string) bool { return strings.HasPrefix(token, "token-of-ann") }
	tokens := &tokenServer{users: map[string]string{"ann": "s3cret"}}

	t.Run("on another host", func(t *testing.T) {
		w := newWorld(t)
		ts := listen(t, "127.0.0.1:0", "token.test", false, tokens)
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, fromAnn))
		if _, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")}); err != nil {
			t.Fatal(err)
		}
		if s.saw("Basic") {
			t.Error("the registry was given the password that its token server wants")
		}
		if !ts.saw("Basic") || ts.saw("Bearer") {
			t.Error("the token server was given something else than the password")
		}
	})
	t.Run("by a private address", func(t *testing.T) {
		w := newWorld(t)
		ts := listen(t, "127.0.0.1:0", "127.0.0.1", false, tokens)
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, fromAnn))
		if _, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")}); err != nil {
			t.Fatal(err)
		}
		wantRequests(t, ts, "GET /token")
	})
	t.Run("redirected", func(t *testing.T) {
		w := newWorld(t)
		o := listen(t, "127.0.0.1:0", "other.test", false, tokens)
		ts := listen(t, "127.0.0.1:0", "token.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+o.host+r.URL.Path, http.StatusTemporaryRedirect)
		}))
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, fromAnn))
		for name, credential := range map[string]authn.AuthConfig{
			"password":       {Username: "ann", Password: "s3cret"},
			"identity token": {IdentityToken: "s3cret"},
		} {
			_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{registrytest.Keychain{Registry: s.host, Credential: credential}})
			var e *Error
			if !errors.As(err, &e) || e.Reason != v1alpha1.ReasonUnauthorized && e.Reason != v1alpha1.ReasonDenied {
				t.Errorf("%s: %v", name, err)
			}
			if o.saw("Basic") || o.saw("s3cret") {
				t.Errorf("%s: went to the host that the token server redirects to", name)
			}
		}
	})
	t.Run("identity token", func(t *testing.T) {
		w := newWorld(t)
		ts := listen(t, "127.0.0.1:0", "token.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(`{"access_token":"token-of-ann","expires_in":300}`))
		}))
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, fromAnn))
		if _, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{registrytest.Keychain{Registry: s.host, Credential: authn.AuthConfig{IdentityToken: "s3cret"}}}); err != nil {
			t.Error(err)
		}
		if !ts.saw("refresh_token=s3cret") || s.saw("s3cret") {
			t.Error("the identity token is for the token server")
		}
		wantRequests(t, ts, "POST /token")
	})
	t.Run("registry token", func(t *testing.T) {
		w := newWorld(t)
		ts := listen(t, "127.0.0.1:0", "token.test", false, tokens)
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, fromAnn))
		if _, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{registrytest.Keychain{Registry: s.host, Credential: authn.AuthConfig{RegistryToken: "token-of-ann"}}}); err != nil {
			t.Error(err)
		}
		wantRequests(t, ts)
	})
	t.Run("refuses with a long page", func(t *testing.T) { // which is not read to its end
		w := newWorld(t)
		ts := listen(t, "127.0.0.1:0", "token.test", false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write(make([]byte, 200<<10))
		}))
		s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, fromAnn))
		_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")})
		wantError(t, err, v1alpha1.ReasonUnauthorized, ts.host, "400 Bad Request")
	})
	forbidden := listen(t, "127.0.0.2:0", "forbidden.test", false, tokens)
	plain := listen(t, "127.0.0.1:0", "token.test", true, tokens)
	for name, c := range map[string]struct{ realm, reason string }{
		"plain HTTP":           {"http://" + plain.host + "/token", v1alpha1.ReasonDenied},
		"forbidden name":       {"https://" + forbidden.host + "/token", v1alpha1.ReasonDenied},
		"forbidden address":    {"https://" + forbidden.Listener.Addr().String() + "/token", v1alpha1.ReasonDenied},
		"nowhere":              {"/token", v1alpha1.ReasonUnavailable},
		"no address":           {"https://%zz/token", v1alpha1.ReasonUnavailable},
		"neither HTTP nor TLS": {"gopher://" + plain.host + "/token", v1alpha1.ReasonDenied},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.names.set("forbidden.test", "127.0.0.2")
			s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken(c.realm, content, fromAnn))
			_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")})
			wantError(t, err, c.reason, s.host)
			if forbidden.connected() != 0 || plain.connected() != 0 {
				t.Error("a token server was contacted that may not be")
			}
		})
	}
}

// A token server that is in trouble has not refused a login: it is asked again.
func TestTokenServerInTrouble(t *testing.T) {
	content := &repository{}
	content.push("team/app", manifestType, manifestOf(), "1")
	tokens := &tokenServer{users: map[string]string{"ann": "s3cret"}}
	var inTrouble atomic.Bool
	w := newWorld(t)
	ts := listen(t, "127.0.0.1:0", "token.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if inTrouble.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		tokens.ServeHTTP(w, r)
	}))
	s := listen(t, "127.0.0.1:0", "registry.test", false, behindToken("https://"+ts.host+"/token", content, func(token string) bool { return strings.HasPrefix(token, "token-of-ann") }))
	ann := []authn.Keychain{login(s.host, "ann", "s3cret")}
	inTrouble.Store(true)
	_, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, ann)
	wantError(t, err, v1alpha1.ReasonUnavailable)
	inTrouble.Store(false)
	if _, err := w.Resolve(t.Context(), s.host+"/team/app:1", amd64, ann); err != nil {
		t.Error(err)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"":                              0,
		"soon":                          0,
		"-1":                            0,
		"0":                             0,
		"1":                             time.Second,
		" 90 ":                          90 * time.Second,
		"3601":                          time.Hour,
		"18446744073709551615":          time.Hour,
		"18446744073709551616":          time.Hour,
		"Thu, 01 Jan 2026 12:00:30 GMT": 30 * time.Second,
		"Thu, 01 Jan 2026 11:00:00 GMT": 0,
		"Fri, 31 Dec 9999 23:59:59 GMT": time.Hour,
		"1767268820":                    20 * time.Second, // 2026-01-01 12:00:20 UTC
		"1767268700":                    0,
		"1.5":                           1500 * time.Millisecond,
		"441.9µs":                       441900 * time.Nanosecond,
		"2m":                            2 * time.Minute,
		"-2m":                           0,
		"NaN":                           0,
		"inf":                           time.Hour,
	} {
		if got := retryAfter(header, now); got != want {
			t.Errorf("%q: %s, want %s", header, got, want)
		}
	}
}

func TestBoundedBody(t *testing.T) {
	for size, fails := range map[int]bool{0: false, 9: false, 10: false, 11: true, 100: true} {
		body := &boundedBody{ReadCloser: http.NoBody, left: 10}
		if size > 0 {
			body.ReadCloser = readCloser{bytes.NewReader(make([]byte, size))}
		}
		var buffer bytes.Buffer
		_, err := buffer.ReadFrom(body)
		if errors.Is(err, errTooLarge) != fails || buffer.Len() != min(size, 10) {
			t.Errorf("%d bytes: %d read, %v", size, buffer.Len(), err)
		}
	}
}

// Without room for more, a little of an answer may be read, and no more.
func TestBoundedBodyWithoutRoom(t *testing.T) {
	body := &boundedBody{ReadCloser: readCloser{bytes.NewReader(make([]byte, 100))}, left: 100, small: 10, reserve: func() (func(), error) {
		return nil, errors.New("no room")
	}}
	n, err := body.Read(make([]byte, 50))
	if n != 10 || err != nil {
		t.Errorf("first %d bytes, error %v", n, err)
	}
	if n, err := body.Read(make([]byte, 50)); n != 0 || !errors.Is(err, errBusy) {
		t.Errorf("then %d bytes, error %v", n, err)
	}
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

func TestPrintable(t *testing.T) {
	long := printable(strings.Repeat("ä", 400))
	if len(long) > maxMessage || !strings.HasSuffix(long, "ä...") {
		t.Errorf("%d bytes: %q", len(long), long)
	}
	if got, want := printable("a\x00b\r\nc\xffd\u202ee"), "a b  c?d e"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Timeouts come from contexts, connections and TLS handshakes.
func TestTimedOut(t *testing.T) {
	for _, err := range []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, &net.DNSError{IsTimeout: true}} {
		if !timedOut(fmt.Errorf("get: %w", err)) {
			t.Errorf("%v is not taken for a timeout", err)
		}
	}
	for _, err := range []error{io.EOF, context.Canceled, &net.DNSError{IsNotFound: true}} {
		if timedOut(err) {
			t.Errorf("%v is taken for a timeout", err)
		}
	}
}

// What crypto/tls says of a certificate: that its authority is not known, that it is another host's, that it has
// expired.
func TestCertificateErrors(t *testing.T) {
	for _, err := range []error{x509.UnknownAuthorityError{}, x509.HostnameError{Certificate: &x509.Certificate{}, Host: "h"}, x509.CertificateInvalidError{Reason: x509.Expired}} {
		if !isCertificateError(&tls.CertificateVerificationError{Err: err}) {
			t.Errorf("%T is not taken for an error of a certificate", err)
		}
	}
	if isCertificateError(tls.AlertError(40)) {
		t.Error("a failed handshake is taken for an error of a certificate")
	}
}

func TestBoundsOfTexts(t *testing.T) {
	exact := strings.Repeat("x", 512) // as Error promises
	if got := printable(exact); got != exact {
		t.Errorf("%d bytes of 512 allowed ones", len(got))
	}
	if got := printable(exact + "y"); len(got) > 512 {
		t.Errorf("%d bytes, more than 512", len(got))
	}
}

// A registry makes up no labels: a status of HTTP/2 is any number.
func TestCodesAreFew(t *testing.T) {
	labels := map[string]bool{}
	for code := -1; code < 100_000; code++ {
		labels[codeLabel(strconv.Itoa(code))] = true
	}
	for _, code := range []int{math.MinInt, math.MaxInt, 1_000_200} {
		labels[codeLabel(strconv.Itoa(code))] = true
	}
	if len(labels) != 20 || !labels["429"] || !labels["5xx"] || !labels["other"] {
		t.Errorf("%d labels: %v", len(labels), labels)
	}
}
