package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// A server and a client of the same CA trust each other, and the server learns
// the client's identity. The Node authorizer depends on that.
func TestIdentities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := NewAuthority(filepath.Join(dir, "pki"), "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Server("server", "server", []string{"example.test"}, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	var user *x509.Certificate
	server := start(t, ca, func(r *http.Request) { user = r.TLS.PeerCertificates[0] })

	path := filepath.Join(dir, "node.kubeconfig")
	if err := ca.Kubeconfig(path, server.URL, "system:node:n1", "system:nodes"); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if user == nil || user.Subject.CommonName != "system:node:n1" || !slices.Equal(user.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("the server saw %v", user)
	}

	// Another cluster's CA is not trusted.
	other, err := NewAuthority(filepath.Join(dir, "other"), "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Kubeconfig(path, server.URL, "system:node:n1", "system:nodes"); err != nil {
		t.Fatal(err)
	}
	if config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		t.Fatal(err)
	}
	// This client still trusts the server, so only the server can refuse.
	if config.CAData, err = os.ReadFile(ca.Cert("ca")); err != nil {
		t.Fatal(err)
	}
	if client, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	if response, err := client.Get(server.URL); err == nil {
		response.Body.Close()
		t.Error("the server took another authority's client")
	}
}

func start(t *testing.T, ca *Authority, seen func(*http.Request)) *httptest.Server {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(ca.Cert("server"), ca.Key("server"))
	if err != nil {
		t.Fatal(err)
	}
	roots, err := cert.NewPool(ca.Cert("ca"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen(r) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func TestKeyPair(t *testing.T) {
	t.Parallel()
	ca, err := NewAuthority(filepath.Join(t.TempDir(), "pki"), "test")
	if err != nil {
		t.Fatal(err)
	}
	private, public, err := ca.KeyPair("service-account")
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.PrivateKeyFromFile(private)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := keyutil.PublicKeysFromFile(public)
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 1 || !key.(*ecdsa.PrivateKey).PublicKey.Equal(keys[0]) {
		t.Error("the keys do not belong together")
	}
}

// Only their owner may read keys.
func TestKeysAreSecret(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	ca, err := NewAuthority(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Client("client", "me"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{ca.Key("ca"), ca.Key("client")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
	}
}
