package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// certificate is valid for every name below .test and the addresses of the tests.
var certificate, authorities = func() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IsCA:         true, BasicConstraintsValid: true,
		DNSNames:    []string{"*.test", "sub.registry.test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2), net.IPv4(127, 0, 0, 3)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}()

// server counts connections and records requests with their headers and bodies.
type server struct {
	*httptest.Server
	host string // as in references

	mu          sync.Mutex
	connections int
	requests    []string
	headers     []http.Header
	bodies      []string
}

// listen starts a server at an address, known by a name. Without handler it
// answers 404.
func listen(t *testing.T, address, name string, plain bool, handler http.Handler, change ...func(*tls.Config)) *server {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{}
	if handler == nil {
		handler = http.NotFoundHandler()
	}
	s.Server = &httptest.Server{Listener: listener, Config: &http.Server{
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				s.mu.Lock()
				s.connections++
				s.mu.Unlock()
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			s.mu.Lock()
			s.requests = append(s.requests, r.Method+" "+r.URL.Path)
			s.headers = append(s.headers, r.Header.Clone())
			s.bodies = append(s.bodies, string(body))
			s.mu.Unlock()
			handler.ServeHTTP(w, r)
		}),
	}}
	if plain {
		s.Start()
	} else {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
		for _, f := range change {
			f(s.TLS)
		}
		s.EnableHTTP2 = true
		s.StartTLS()
	}
	t.Cleanup(s.Close)
	s.host = fmt.Sprintf("%s:%d", name, s.port())
	return s
}

func (s *server) port() int { return s.Listener.Addr().(*net.TCPAddr).Port }

// take returns the requests since its last call.
func (s *server) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests, s.headers, s.bodies = nil, nil, nil
	return requests
}

func (s *server) connected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

// saw tells whether anything that was sent here contains the text.
func (s *server) saw(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, header := range s.headers {
		for _, values := range header {
			if slices.ContainsFunc(values, func(value string) bool { return strings.Contains(value, text) }) {
				return true
			}
		}
	}
	return slices.ContainsFunc(append(s.bodies, s.requests...), func(sent string) bool { return strings.Contains(sent, text) })
}

// names is a name server with the addresses that tests set below .test.
type names struct {
	mu        sync.Mutex
	addresses map[string]string
	resolver  *net.Resolver
}

func serveNames(t *testing.T) *names {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	n := &names{addresses: map[string]string{}}
	n.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	go func() {
		buffer := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if err := query.Unpack(buffer[:size]); err != nil || len(query.Questions) != 1 {
				continue
			}
			if answer, err := n.answer(query); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return n
}

func (n *names) answer(query dnsmessage.Message) ([]byte, error) {
	question := query.Questions[0]
	n.mu.Lock()
	address := n.addresses[strings.TrimSuffix(question.Name.String(), ".")]
	n.mu.Unlock()
	answer := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true},
		Questions: query.Questions,
	}
	switch {
	case address == "":
		answer.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		answer.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
		}}
	}
	return answer.Pack()
}

func (n *names) set(name, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses[name] = address
}

// world is a client, its name server, and a registry of its own.
type world struct {
	*Client
	names *names
}

type option func(*Config)

func withConf(path string) option { return func(c *Config) { c.RegistriesConf = path } }

// newWorld returns a client that may contact 127.0.0.1 only, under any name.
func newWorld(t *testing.T, options ...option) *world {
	t.Helper()
	config := Config{
		Policy:  mustPolicy(t, "127.0.0.1/32"),
		Timeout: time.Minute,
	}
	for _, option := range options {
		option(&config)
	}
	client, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{client, serveNames(t)}
	for _, name := range []string{"registry.test", "sub.registry.test", "token.test", "other.test", "mirror.test"} {
		w.names.set(name, "127.0.0.1")
	}
	client.transport.dialer.Resolver = w.names.resolver
	for _, verified := range []*http.Transport{client.transport.now.Load().verified, client.transport.now.Load().verifiedVia} {
		verified.TLSClientConfig.RootCAs = authorities
		t.Cleanup(verified.CloseIdleConnections)
	}
	t.Cleanup(client.transport.now.Load().unverified.CloseIdleConnections)
	t.Cleanup(client.transport.now.Load().unverifiedVia.CloseIdleConnections)
	return w
}

func mustPolicy(t *testing.T, networks ...string) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.Config{Registries: []string{"*"}, Networks: mustNetworks(networks...)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// repository serves manifests by the path after /v2/, such as
// "team/app/manifests/1", and every manifest by its digest.
type repository struct {
	mu      sync.Mutex
	content map[string]document
}

type document struct {
	mediaType string
	body      []byte
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

func (r *repository) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/v2/" {
		return
	}
	r.mu.Lock()
	found, ok := r.content[strings.TrimPrefix(req.URL.Path, "/v2/")]
	r.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", found.mediaType)
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(found.body).String())
	_, _ = w.Write(found.body)
}

// push stores a document under its digest and its tags, and returns the digest.
func (r *repository) push(name, mediaType string, content any, tags ...string) digest.Digest {
	body, ok := content.([]byte)
	if !ok {
		var err error
		if body, err = json.Marshal(content); err != nil {
			panic(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.content == nil {
		r.content = map[string]document{}
	}
	id := digest.FromBytes(body)
	for _, tag := range append(tags, id.String()) {
		r.content[name+"/manifests/"+tag] = document{mediaType, body}
	}
	return id
}

type object = registrytest.Object

var layerOf, manifestOf, entryOf, indexOf = registrytest.LayerOf, registrytest.ManifestOf, registrytest.EntryOf, registrytest.IndexOf

// tokenServer gives tokens named after the user, to a user that it knows or to
// nobody in particular.
type tokenServer struct {
	users   map[string]string
	expires int
	mu      sync.Mutex
	given   int
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, ok := r.BasicAuth()
	if ok && s.users[user] != password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given++
	_ = json.NewEncoder(w).Encode(object{"token": fmt.Sprintf("token-of-%s-%d-for-%s", user, s.given, r.URL.Query().Get("scope")), "expires_in": s.expires})
}

// behindToken requires a token that accept accepts.
func behindToken(realm string, next http.Handler, accept func(token string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || !accept(token) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=%q", realm, "registry"))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// behindPassword requires the user ann and her password.
func behindPassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != "ann" || p != "s3cret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// secret is a keychain of a tenant.
type secret struct{ registrytest.Keychain }

func (secret) OfTenant() {}

var login = registrytest.Login

func pullSecret(registry, user, password string) authn.Keychain {
	return secret{registrytest.Login(registry, user, password)}
}

// wantError checks an error against the rules for every error, and for reason
// and texts.
func wantError(t *testing.T, err error, reason string, texts ...string) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want an *Error of reason %s", err, reason)
	}
	if e.Reason != reason {
		t.Errorf("reason %s (%v), want %s", e.Reason, err, reason)
	}
	if e.Reference == "" {
		t.Errorf("%v: no reference", err)
	}
	for _, message := range []string{e.Error(), e.Err.Error()} {
		if len(message) > maxMessage || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q: too long or with control characters", message)
		}
		for _, secret := range []string{"s3cret", "token-of", "?", "c2VjcmV0"} {
			if strings.Contains(message, secret) {
				t.Errorf("%q contains %q", message, secret)
			}
		}
	}
	for _, text := range texts {
		if !strings.Contains(e.Err.Error(), text) { // not in the reference, which has the host, too
			t.Errorf("error %q does not contain %q", e.Err, text)
		}
	}
	return e
}

func wantRequests(t *testing.T, s *server, want ...string) {
	t.Helper()
	if got := s.take(); !slices.Equal(got, want) {
		t.Errorf("requests to %s:\n%s\nwant:\n%s", s.host, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func mustNetworks(networks ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(networks))
	for i, network := range networks {
		parsed[i] = netip.MustParsePrefix(network)
	}
	return parsed
}
