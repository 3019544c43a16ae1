package registry

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// writeFile writes a file and the folders above it, and returns its path.
func writeFile(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pemFiles returns the certificate of the tests, and its key.
func pemFiles(t *testing.T) (certificatePEM, keyPEM []byte) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
}

// configured makes a world trust what it is configured to trust, and not what tests trust.
func (w *world) configured(t *testing.T) *world {
	t.Helper()
	made, err := w.transport.build()
	if err != nil {
		t.Fatal(err)
	}
	w.transport.now.Store(made)
	w.transport.proxyDialer.Resolver = w.names.resolver
	t.Cleanup(made.closeIdle)
	return w
}

func oneImage() *repository {
	content := &repository{}
	content.push("app", manifestType, manifestOf(layerOf("a", 1)), "1")
	return content
}

// TestCABundle: the authorities of a bundle are trusted besides the system's.
func TestCABundle(t *testing.T) {
	authority, _ := pemFiles(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, oneImage())
	_, err := newWorld(t).configured(t).Resolve(t.Context(), s.host+"/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonUnavailable, "--ca-bundle")

	bundle := writeFile(t, filepath.Join(t.TempDir(), "ca.pem"), authority)
	w := newWorld(t, func(c *Config) { c.CABundles = []string{bundle} }).configured(t)
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
		t.Error(err)
	}
	want, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	want.AppendCertsFromPEM(authority)
	if got := w.transport.now.Load().verifiedVia.TLSClientConfig.RootCAs; !got.Equal(want) {
		t.Error("trusted are not the system's authorities and those of the bundle")
	}
}

// TestCertsDir: a host's folder has its authorities and the client's certificate, laid out as
// in a volume. Another registry that sends requests there does not get the certificate.
func TestCertsDir(t *testing.T) {
	authority, key := pemFiles(t)
	s := listenMutual(t, oneImage())
	dir := t.TempDir()
	version := filepath.Join(dir, "..2026", s.host)
	writeFile(t, filepath.Join(version, "ca.crt"), authority)
	writeFile(t, filepath.Join(version, "client.cert"), authority)
	writeFile(t, filepath.Join(version, "client.key"), key)
	for link, target := range map[string]string{"..data": "..2026", s.host: filepath.Join("..data", s.host)} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, func(c *Config) { c.CertsDir = dir })
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
		t.Error(err)
	}

	evil := listen(t, "127.0.0.1:0", "other.test", false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Redirect(rw, r, "https://"+s.host+r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	s.take()
	_, err := w.Resolve(t.Context(), evil.host+"/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonUnavailable)
	wantRequests(t, s)
}

// listenMutual starts a server that wants the certificate of the tests from clients.
func listenMutual(t *testing.T, handler http.Handler) *server {
	t.Helper()
	return listen(t, "127.0.0.1:0", "registry.test", false, handler, func(c *tls.Config) {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, authorities
	})
}

// TestCertificatesChange: changed files count a minute later at most; unreadable ones do not
// take away what was trusted.
func TestCertificatesChange(t *testing.T) {
	authority, _ := pemFiles(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, oneImage())
	dir := t.TempDir()
	other := writeFile(t, filepath.Join(dir, "other.test", "ca.crt"), authority)
	w := newWorld(t, func(c *Config) { c.CertsDir = dir }).configured(t)
	clock := testingclock.NewFakePassiveClock(time.Now())
	w.transport.clock = clock
	try := func() error {
		clock.SetTime(clock.Now().Add(rereadCertificates))
		_, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil)
		return err
	}
	wantError(t, try(), v1alpha1.ReasonUnavailable)
	own := writeFile(t, filepath.Join(dir, s.host, "ca.crt"), authority)
	if err := try(); err != nil {
		t.Error(err)
	}
	writeFile(t, other, []byte("broken"))
	if err := try(); err != nil {
		t.Error(err)
	}
	writeFile(t, other, authority)
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	wantError(t, try(), v1alpha1.ReasonUnavailable)
}

// proxy is an HTTP proxy that knows the addresses of names, and which were asked for.
type proxy struct {
	*server
	mu     sync.Mutex
	hosts  []string
	tunnel map[string]string
}

func listenProxy(t *testing.T, plain bool, tunnel map[string]string) *proxy {
	t.Helper()
	p := &proxy{tunnel: tunnel}
	p.server = listen(t, "127.0.0.1:0", "proxy.test", plain, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.hosts = append(p.hosts, r.Method+" "+r.Host)
		p.mu.Unlock()
		target := p.tunnel[r.Host]
		switch user, _, _ := parseBasic(r.Header.Get("Proxy-Authorization")); {
		case user != "ann":
			w.WriteHeader(http.StatusProxyAuthRequired)
		case target == "" || r.Method != http.MethodConnect:
			w.WriteHeader(http.StatusForbidden)
		default:
			registrytest.Tunnel(w, target)
		}
	}))
	return p
}

func parseBasic(header string) (user, password string, ok bool) {
	return (&http.Request{Header: http.Header{"Authorization": {header}}}).BasicAuth()
}

func (p *proxy) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.hosts
	p.hosts = nil
	return slices.Compact(asked)
}

// TestProxy: a listed registry is asked through its proxy, also where only the proxy knows
// its address. Others are not, and a host to which it sends requests only if it is listed.
func TestProxy(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			content := oneImage()
			var tokens, registry *server
			registry = listen(t, "127.0.0.1:0", "far.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				behindToken("https://"+tokens.host+"/token", content, func(string) bool { return true }).ServeHTTP(w, r)
			}))
			tokens = listen(t, "127.0.0.1:0", "tokens.test", false, &tokenServer{})
			near := listen(t, "127.0.0.1:0", "registry.test", false, content)
			through := listenProxy(t, scheme == "http", map[string]string{
				registry.host: registry.Listener.Addr().String(), tokens.host: tokens.Listener.Addr().String(),
			})
			authority, _ := pemFiles(t)
			bundle := writeFile(t, filepath.Join(t.TempDir(), "ca.pem"), authority)
			with := func(proxied ...string) *world {
				w := newWorld(t, func(c *Config) {
					c.CABundles, c.Proxies = []string{bundle}, map[string]*url.URL{}
					for _, host := range proxied {
						c.Proxies[host] = &url.URL{Scheme: scheme, Host: through.host, User: url.UserPassword("ann", "s3cret")}
					}
				})
				w.names.set("proxy.test", "127.0.0.1")
				return w.configured(t)
			}
			gone := with(registry.host, tokens.host)
			gone.names.set("proxy.test", "127.0.0.2") // where nothing listens
			_, err := gone.Resolve(t.Context(), registry.host+"/app:1", amd64, nil)
			wantError(t, err, v1alpha1.ReasonUnavailable, "its proxy cannot be reached")
			if strings.Contains(err.Error(), "127.0.0.2") {
				t.Errorf("error %v shows the proxy's address", err)
			}
			w := with(registry.host, tokens.host)
			if _, err := w.Resolve(t.Context(), registry.host+"/app:1", amd64, nil); err != nil {
				t.Error(err)
			}
			if got := through.asked(); !slices.Contains(got, "CONNECT "+registry.host) || !slices.Contains(got, "CONNECT "+tokens.host) {
				t.Errorf("the proxy was asked for %q", got)
			}
			if _, err := w.Resolve(t.Context(), near.host+"/app:1", amd64, nil); err != nil {
				t.Error(err)
			}
			if got := through.asked(); len(got) > 0 {
				t.Errorf("the proxy was asked for %q", got)
			}
			if registry.saw("Proxy-Authorization") || registry.saw("s3cret") {
				t.Error("the registry saw the proxy's password")
			}

			_, err = with(registry.host).Resolve(t.Context(), registry.host+"/app:1", amd64, nil)
			wantError(t, err, v1alpha1.ReasonUnavailable)
			if got := through.asked(); slices.Contains(got, "CONNECT "+tokens.host) {
				t.Errorf("the proxy was asked for %q: the token server is not listed", got)
			}

			through.tunnel = nil
			_, err = with(registry.host).Resolve(t.Context(), registry.host+"/app:1", amd64, nil)
			wantError(t, err, v1alpha1.ReasonUnavailable, "its proxy answered 403")
		})
	}
}

// TestProxyInDeniedNetwork: a proxy may be anywhere but in a denied network.
func TestProxyInDeniedNetwork(t *testing.T) {
	through := listenProxy(t, true, nil)
	for _, denied := range []bool{false, true} {
		config := policy.Config{Registries: []string{"registry.test"}}
		if denied {
			config.Denied = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		}
		p, err := policy.New(config)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, func(c *Config) {
			c.Policy, c.Proxies = p, map[string]*url.URL{"registry.test": {Scheme: "http", Host: through.Listener.Addr().String()}}
		})
		_, err = w.Resolve(t.Context(), "registry.test/app:1", amd64, nil)
		want := v1alpha1.ReasonUnavailable // 407
		if denied {
			want = v1alpha1.ReasonDenied
		}
		wantError(t, err, want)
		if connected := through.connected() > 0; connected == denied {
			t.Errorf("denied %v, connected %v", denied, connected)
		}
		through.CloseClientConnections()
		through.server.mu.Lock()
		through.connections = 0
		through.server.mu.Unlock()
	}
}

// TestConnectionsConfig: what cannot be used is an error at the start that names it.
func TestConnectionsConfig(t *testing.T) {
	authority, key := pemFiles(t)
	dir := t.TempDir()
	file := func(name string, content []byte) string { return writeFile(t, filepath.Join(dir, name), content) }
	for want, change := range map[string]option{
		"no such file": func(c *Config) { c.CABundles = []string{filepath.Join(dir, "none")} },
		"empty.pem has no certificate": func(c *Config) {
			c.CABundles = []string{file("empty.pem", nil)}
		},
		"more than 4194304 bytes": func(c *Config) { c.CABundles = []string{file("large.pem", make([]byte, maxCertificates+1))} },
		"folder of certificates":  func(c *Config) { c.CertsDir = filepath.Join(dir, "none") },
		"is no folder": func(c *Config) {
			c.CertsDir = filepath.Dir(file("flat/ca.crt", authority))
		},
		`host "a b"`: func(c *Config) { c.CertsDir = filepath.Dir(filepath.Dir(file("odd/a b/ca.crt", authority))) },
		"ca.crt has no certificate": func(c *Config) {
			c.CertsDir = filepath.Dir(filepath.Dir(file("broken/registry.test/ca.crt", []byte("x"))))
		},
		"missing client certificate client.cert": func(c *Config) {
			c.CertsDir = filepath.Dir(filepath.Dir(file("half/registry.test/client.key", key)))
		},
		"http://proxy.example.com:3128": func(c *Config) { c.Proxies = map[string]*url.URL{"registry.test": {Scheme: "socks5", Host: "p"}} },
		`proxy: host "*"`:               func(c *Config) { c.Proxies = map[string]*url.URL{"*": {Scheme: "http", Host: "p"}} },
	} {
		config := Config{Policy: mustPolicy(t)}
		change(&config)
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Files have changed if one has other content, of the same length, or another name.
func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	c := &connector{certsDir: dir}
	seen := map[[sha256.Size]byte]bool{}
	for i, change := range []func() error{
		func() error { writeFile(t, filepath.Join(dir, "a.test", "ca.crt"), []byte("one")); return nil },
		func() error { writeFile(t, filepath.Join(dir, "a.test", "ca.crt"), []byte("two")); return nil },
		func() error { return os.Rename(filepath.Join(dir, "a.test"), filepath.Join(dir, "b.test")) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		sum, err := c.fingerprint()
		again, _ := c.fingerprint()
		if err != nil || seen[sum] || sum != again {
			t.Errorf("step %d: seen before %v, the same again %v, error %v", i, seen[sum], sum == again, err)
		}
		seen[sum] = true
	}
}
