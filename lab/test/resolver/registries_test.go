//go:build e2e

package resolver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestFarRegistries: a real registry with a certificate of a private authority and with
// authentication, of which only a proxy has the address.
func TestFarRegistries(t *testing.T) {
	for kind, authentication := range map[string]func(*testing.T) map[string]any{"basic": basicAuth, "token": tokenAuth} {
		t.Run(kind, func(t *testing.T) {
			authority := newAuthority(t)
			p, proxy := startProxy(t)
			config := authentication(t)
			hosts := []string{}
			far := func(name, address string) string {
				_, port, err := net.SplitHostPort(address)
				must(t, err)
				host := net.JoinHostPort(name, port)
				p.to[host] = address
				hosts = append(hosts, host)
				return host
			}
			if token, ok := config["token"].(map[string]any); ok {
				plain, err := url.Parse(token["realm"].(string))
				must(t, err)
				behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: plain.Host})
				token["realm"] = "https://" + far("tokens.far.test", authority.serve(t, behind)) + "/token"
			}
			address, _ := startRegistryWith(t, config, map[string]any{"certificate": authority.certificate, "key": authority.key})
			host := far("registry.far.test", address)
			createSecret(t, metav1.NamespaceDefault, "far-"+kind, host, password)

			reference, err := name.ParseReference(host + "/team/app:v1")
			must(t, err)
			image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "far-" + kind, Size: 1000}}})
			must(t, err)
			client := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: authority.pool}}
			t.Cleanup(client.CloseIdleConnections)
			must(t, remote.Write(reference, image, remote.WithContext(t.Context()), remote.WithTransport(client), remote.WithAuth(&authn.Basic{Username: user, Password: password})))

			arguments := []string{}
			for _, host := range hosts {
				arguments = append(arguments, "--proxy="+host+"="+proxy.String())
			}
			restartResolver(t, func(s *cluster.Component) { s.Args = append(s.Args, arguments...) })
			untrusted := scenario.Pod{Name: "far-untrusted-" + kind, Image: reference.String(), PullSecret: "far-" + kind}
			announce(t, untrusted)
			_, condition, err := lab.Failed(t.Context(), reference.String(), v1alpha1.ReasonUnavailable)
			must(t, err)
			t.Log(condition.Message)
			if !strings.Contains(condition.Message, "--ca-bundle") {
				t.Errorf("message %q does not name the way out", condition.Message)
			}
			restartResolver(t, func(s *cluster.Component) { s.Args = append(s.Args, "--ca-bundle="+authority.certificate) })
			must(t, lab.Resolved(t.Context(), reference.String()))
			for _, host := range hosts {
				if p.count(host) == 0 {
					t.Errorf("%s was not asked through the proxy", host)
				}
			}
		})
	}
}

// authority signs for all names below far.test and pkg.dev, and for this machine; its own certificate is the
// server's, too.
type authority struct {
	certificate, key string // files
	pool             *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"*.far.test", "*.pkg.dev"},
		IPAddresses: []net.IP{c.HostAddress().AsSlice()},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	dir := t.TempDir()
	a := &authority{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem"), x509.NewCertPool()}
	must(t, os.WriteFile(a.certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(a.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	a.pool.AddCert(parsed)
	return a
}

// client returns a certificate for a client and its key (PEM).
func (a *authority) client(t *testing.T) (certificate, key []byte) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(a.certificate, a.key)
	must(t, err)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, pair.Leaf, private.Public(), pair.PrivateKey)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// serve serves by TLS until the end of the test.
func (a *authority) serve(t *testing.T, handler http.Handler) (address string) {
	t.Helper()
	listener := listen(t, "0")
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.ServeTLS(listener, a.certificate, a.key) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

// tunnels is an HTTP proxy with a password that has the addresses of hosts.
type tunnels struct {
	to    map[string]string
	mu    sync.Mutex
	asked map[string]int
}

// startProxy starts a proxy without hosts, and returns its URL with the password.
func startProxy(t *testing.T) (*tunnels, *url.URL) {
	t.Helper()
	p := &tunnels{to: map[string]string{}, asked: map[string]int{}}
	return p, &url.URL{Scheme: "http", Host: serve(t, p.ServeHTTP), User: url.UserPassword("proxy-user", "proxy-password")}
}

func (p *tunnels) count(host string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[host]
}

func (p *tunnels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}})
	if name, secret, ok := given.BasicAuth(); !ok || name != "proxy-user" || secret != "proxy-password" {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	p.mu.Lock()
	p.asked[r.Host]++
	p.mu.Unlock()
	target, ok := p.to[r.Host]
	if !ok || r.Method != http.MethodConnect {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	registrytest.Tunnel(w, target)
}

// TestQuota: of the 100 manifests that a registry still gives, half are left when the
// resolver has asked for what it may.
func TestQuota(t *testing.T) {
	const all, limit = 60, 100
	var mu sync.Mutex
	left := limit
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if isManifest(r) {
			mu.Lock()
			if r.Method == http.MethodGet {
				left--
			}
			w.Header().Set("RateLimit-Limit", fmt.Sprintf("%d;w=21600", limit))
			w.Header().Set("RateLimit-Remaining", fmt.Sprintf("%d;w=21600", left))
			mu.Unlock()
		}
		through(w, r)
	})
	references := make([]string, all)
	for i := range references {
		name := fmt.Sprintf("quota-%d:v1", i+1)
		pushSmall(t, name)
		references[i] = address + "/" + name
	}
	announce(t, scenario.Pod{Name: "quota", Image: references[0]}, references[1:]...)
	var resolved, refused int
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		resolved, refused = 0, 0
		for _, reference := range references {
			manifest, err := lab.Manifest(ctx, reference)
			switch {
			case err != nil:
				return err
			case manifest == nil:
			case manifest.Spec.Digest != "":
				resolved++
			default:
				refused++
			}
		}
		if resolved+refused < all {
			return fmt.Errorf("%d resolved, %d refused of %d", resolved, refused, all)
		}
		return nil
	}))
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d resolved, %d refused, %d left of %d", resolved, refused, left, limit)
	if left < limit/2 || resolved < limit/2-8 {
		t.Errorf("%d resolved and %d left, want all but half", resolved, left)
	}
}

// TestCredentialProvider: a plugin as kubelets run it has the password of a registry.
func TestCredentialProvider(t *testing.T) {
	config := basicAuth(t)
	address, _ := startRegistry(t, config)
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "provided", Size: 1000}}})
	must(t, err)
	reference, err := name.ParseReference(address+"/team/provided:v1", name.Insecure)
	must(t, err)
	must(t, remote.Write(reference, image, remote.WithContext(t.Context()), remote.WithAuth(&authn.Basic{Username: user, Password: password})))

	dir := t.TempDir()
	write := func(name string, content any, mode os.FileMode) string {
		text, ok := content.(string)
		if !ok {
			encoded, err := json.Marshal(content)
			must(t, err)
			text = string(encoded)
		}
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	const lasts = time.Second
	answer := func(password string) (path string) {
		return write("answer.json", map[string]any{
			"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry", "cacheDuration": lasts.String(),
			"auth": map[string]any{address: map[string]string{"username": user, "password": password}},
		}, 0o644)
	}
	write("cloud", "#!/bin/sh\ncat >/dev/null\nexec cat "+answer(password)+"\n", 0o755)
	providers := write("config.yaml", map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
		"providers": []map[string]any{{
			"name": "cloud", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": []string{address}, "defaultCacheDuration": "1h",
		}},
	}, 0o644)
	// Without the plugin. An image of its own: a refusal is believed for a minute.
	without := address + "/team/unprovided:v1"
	announce(t, scenario.Pod{Name: "unprovided", Image: without})
	_, _, err = lab.Failed(t.Context(), without, v1alpha1.ReasonUnauthorized)
	must(t, err)
	restartResolver(t, func(s *cluster.Component) {
		s.Args = append(s.Args, "--image-credential-provider-config="+providers, "--image-credential-provider-bin-dir="+dir)
	})
	announce(t, scenario.Pod{Name: "provided", Image: reference.String()})
	must(t, lab.Resolved(t.Context(), reference.String()))

	// The plugin's answer expires, and the registry wants another password.
	time.Sleep(lasts)
	const renewed = "renewed-" + password
	writePassword(t, config["htpasswd"].(map[string]any)["path"].(string), user, renewed)
	answer(renewed)
	second, err := name.ParseReference(address+"/team/renewed:v1", name.Insecure)
	must(t, err)
	must(t, remote.Write(second, image, remote.WithContext(t.Context()), remote.WithAuth(&authn.Basic{Username: user, Password: renewed})))
	announce(t, scenario.Pod{Name: "renewed", Image: second.String()})
	must(t, lab.Resolved(t.Context(), second.String()))
}

// TestGoogleCredentials: a registry with the name of one of Google's takes the token that the
// metadata service gives.
func TestGoogleCredentials(t *testing.T) {
	const host, token = "europe-docker.pkg.dev", "token-that-is-nowhere-else"
	metadata := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/service-accounts/default/token") {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "expires_in": 3600, "token_type": "Bearer"})
	})
	authority := newAuthority(t)
	config := basicAuth(t)
	writePassword(t, config["htpasswd"].(map[string]any)["path"].(string), "_token", token)
	address, _ := startRegistryWith(t, config, map[string]any{"certificate": authority.certificate, "key": authority.key})
	p, proxy := startProxy(t)
	p.to[host+":443"] = address

	reference, err := name.ParseReference(host + "/project/team/app:v1")
	must(t, err)
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "google", Size: 1000}}})
	must(t, err)
	client := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: authority.pool}}
	t.Cleanup(client.CloseIdleConnections)
	must(t, remote.Write(reference, image, remote.WithContext(t.Context()), remote.WithTransport(client), remote.WithAuth(&authn.Basic{Username: "_token", Password: token})))

	restartResolver(t, func(s *cluster.Component) {
		s.Args = append(s.Args, "--google-credentials", "--ca-bundle="+authority.certificate, "--proxy="+host+"="+proxy.String())
		s.Env = append(s.Env, "GCE_METADATA_HOST="+metadata)
	})
	announce(t, scenario.Pod{Name: "google", Image: reference.String()})
	must(t, lab.Resolved(t.Context(), reference.String()))
}

// TestClientCertificates: a real registry that authenticates its clients by certificates of its own
// authority, with a folder for it as in /etc/containers/certs.d.
func TestClientCertificates(t *testing.T) {
	authority := newAuthority(t)
	address, _ := startRegistryWith(t, nil, map[string]any{
		"certificate": authority.certificate, "key": authority.key, "clientcas": []string{authority.certificate},
	})
	dir := t.TempDir()
	folder := filepath.Join(dir, address)
	must(t, os.Mkdir(folder, 0o700))
	must(t, os.CopyFS(folder, os.DirFS(filepath.Dir(authority.certificate)))) // ca.pem, key.pem
	must(t, os.Rename(filepath.Join(folder, "ca.pem"), filepath.Join(folder, "ca.crt")))
	must(t, os.Remove(filepath.Join(folder, "key.pem")))
	certificate, key := authority.client(t)
	pair, err := tls.X509KeyPair(certificate, key)
	must(t, err)

	// The nodes' registries.conf has this machine for plain HTTP.
	conf := filepath.Join(t.TempDir(), "registries.conf")
	must(t, os.WriteFile(conf, nil, 0o600))
	reference, err := name.ParseReference(address + "/team/certified:v1")
	must(t, err)
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "certified", Size: 1000}}})
	must(t, err)
	client := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.pool, Certificates: []tls.Certificate{pair}}}
	t.Cleanup(client.CloseIdleConnections)
	must(t, remote.Write(reference, image, remote.WithContext(t.Context()), remote.WithTransport(client)))

	restartResolver(t, func(s *cluster.Component) {
		s.Args = append(s.Args, "--registries-conf="+conf, "--certs-dir="+dir)
	})
	announce(t, scenario.Pod{Name: "certified", Image: reference.String()})
	_, condition, err := lab.Failed(t.Context(), reference.String(), v1alpha1.ReasonUnavailable)
	must(t, err)
	t.Log(condition.Message)
	must(t, os.WriteFile(filepath.Join(folder, "client.cert"), certificate, 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "client.key"), key, 0o600))
	restartResolver(t, func(*cluster.Component) {})
	must(t, lab.Resolved(t.Context(), reference.String()))
}

// TestRewrittenImages: admission gives the pods of a Deployment another image than its
// template names. What they have counts; what the template names is no longer in use.
func TestRewrittenImages(t *testing.T) {
	const name, mark = "rewritten", "/written"
	for _, image := range []string{"written:v1", "written:v2", "instead:v1", "instead:v2"} {
		pushSmall(t, image)
	}
	registry := c.Registry().Address
	policies := lab.Client.AdmissionregistrationV1().MutatingAdmissionPolicies()
	bindings := lab.Client.AdmissionregistrationV1().MutatingAdmissionPolicyBindings()
	t.Cleanup(func() {
		must(t, bindings.Delete(context.Background(), name, metav1.DeleteOptions{}))
		must(t, policies.Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
	must(t, c.Apply(t.Context(), "", []byte(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: rewritten}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  matchConditions:
  - {name: written, expression: 'object.spec.containers[0].image.contains("`+mark+`")'}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: '[JSONPatch{op: "replace", path: "/spec/containers/0/image", value: object.spec.containers[0].image.replace("`+mark+`", "/instead")}]'
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: rewritten}
spec: {policyName: rewritten}
`)))
	written := func(tag string) string { return registry + mark + ":" + tag }
	instead := func(tag string) string { return registry + "/instead:" + tag }
	trial := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "trial"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "one", Image: written("v1")}}}}
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		pod, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.Containers[0].Image != instead("v1") {
			return fmt.Errorf("the policy leaves %s as it is", pod.Spec.Containers[0].Image)
		}
		return err
	}))
	// state waits until some references are in use, and others were and are no longer.
	state := func(used, unused []string) {
		t.Helper()
		must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
			for i, reference := range append(slices.Clone(used), unused...) {
				manifest, err := lab.Manifest(ctx, reference)
				if err != nil {
					return err
				}
				if manifest == nil || manifest.Spec.Digest == "" {
					return fmt.Errorf("%s is not resolved", reference)
				}
				for _, of := range manifest.Status.References {
					if of.Name == reference && (of.UnusedSince != nil) != (i >= len(used)) {
						return fmt.Errorf("%s: unused since %v", reference, of.UnusedSince)
					}
				}
			}
			return nil
		}))
	}

	livetest.WithdrawAtEnd(t, lab, name)
	deployments := lab.Client.AppsV1().Deployments(metav1.NamespaceDefault)
	_, err := deployments.Create(t.Context(), scenario.Deployment(name, 0, scenario.Pod{Image: written("v1")}), metav1.CreateOptions{})
	must(t, err)
	state([]string{written("v1")}, nil) // there are no pods yet that run another one
	set := func(patch string) {
		t.Helper()
		_, err := deployments.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	set(`{"spec":{"replicas":2}}`)
	state([]string{instead("v1")}, []string{written("v1")})
	set(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"` + written("v2") + `"}]}}}}`)
	state([]string{instead("v2")}, []string{written("v1"), written("v2"), instead("v1")})
	set(`{"spec":{"replicas":0}}`)
	state([]string{written("v2")}, []string{instead("v2")})
}
