package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

// authority signs certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority makes an authority, with its own certificate in a file ca.crt of a folder.
func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	var err error
	a.cert, a.key, err = pkiutil.NewCertificateAuthority(&pkiutil.CertConfig{Config: cert.Config{CommonName: name}})
	must(t, err)
	must(t, pkiutil.WriteCert(a.dir, "ca", a.cert))
	return a
}

// issue writes a certificate and its key, and returns their files.
func (a *authority) issue(t *testing.T, name string, address net.IP, usage x509.ExtKeyUsage) (certFile, keyFile string) {
	t.Helper()
	signed, key, err := pkiutil.NewCertAndKey(a.cert, a.key, &pkiutil.CertConfig{Config: cert.Config{
		CommonName: name, AltNames: cert.AltNames{IPs: []net.IP{address}}, Usages: []x509.ExtKeyUsage{usage},
	}})
	must(t, err)
	must(t, pkiutil.WriteCertAndKey(a.dir, name, signed, key))
	return filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// apiserver serves lists by path, as an apiserver whose objects do not change, and returns a
// kubeconfig.
func apiserver(t *testing.T, lists map[string]runtime.Object) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := lists[r.URL.Path]
		switch {
		case list == nil:
			http.NotFound(w, r)
		case r.URL.Query().Has("sendInitialEvents"): // of a newer apiserver: clients list then
			http.Error(w, "no lists as events", http.StatusUnprocessableEntity)
		case r.URL.Query().Has("watch"):
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(list); err != nil {
				t.Error(err)
			}
		}
	}))
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["made"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["made"] = &clientcmdapi.Context{Cluster: "made"}
	config.CurrentContext = "made"
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, kubeconfig))
	return kubeconfig
}

// nodesAnd returns the lists of a cluster with nodes, without pods.
func nodesAnd(more map[string]runtime.Object, nodes ...v1.Node) map[string]runtime.Object {
	meta := metav1.ListMeta{ResourceVersion: "1"}
	lists := map[string]runtime.Object{
		"/api/v1/nodes": &v1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: meta, Items: nodes},
		"/api/v1/pods":  &v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: meta, Items: []v1.Pod{}},
	}
	maps.Copy(lists, more)
	return lists
}

// emptyCluster returns the kubeconfig of a cluster without objects.
func emptyCluster(t *testing.T) (kubeconfig string) {
	t.Helper()
	return apiserver(t, nodesAnd(nil))
}

// start runs the program until the end of the test, on a loopback address that nothing else
// has, and returns that.
func start(t *testing.T, address net.IP, args ...string) (hostPort string) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
	must(t, err)
	hostPort = listener.Addr().String()
	_, port, err := net.SplitHostPort(hostPort)
	must(t, err)
	must(t, listener.Close())
	o, _, _ := parse(t, nil, append(args, "--bind-address="+address.String(), "--port="+port)...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return hostPort
}

// ready waits until the program is.
func ready(t *testing.T, ask func() (status int, body string, err error)) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		status, body, err := ask()
		if status == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not ready after a minute: %d %s %v", status, body, err)
		}
	}
}

// TestAuthorities runs the program with a certificate that one authority signed, for clients
// of another one. Whoever has a certificate of another authority is kept out, also of the one
// that signed the server's, and of one with the name of the right one.
func TestAuthorities(t *testing.T) {
	address := net.IPv4(127, 54, 1, 1)
	servers, clients, impostor := newAuthority(t, "servers"), newAuthority(t, "clients"), newAuthority(t, "clients")
	certFile, keyFile := servers.issue(t, "layer-extender", address, x509.ExtKeyUsageServerAuth)
	hostPort := start(t, address, "--kubeconfig="+emptyCluster(t), "--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile,
		"--client-ca-file="+filepath.Join(clients.dir, "ca.crt"))

	// client shows the certificate of an authority, if any; to servers that do not name that
	// authority only if it insists, as kube-scheduler does.
	client := func(trusts, shows *authority, insists bool) *http.Client {
		config := &tls.Config{RootCAs: trusts.pool()}
		if shows != nil {
			pair, err := tls.LoadX509KeyPair(shows.issue(t, "scheduler", address, x509.ExtKeyUsageClientAuth))
			must(t, err)
			config.Certificates = []tls.Certificate{pair}
			if insists {
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
			}
		}
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: time.Minute}
	}
	// ask returns the status and the body of an answer; the status is 0 if the connection
	// did not come about.
	ask := func(c *http.Client, path string) (status int, body string, err error) {
		url := "https://" + hostPort + path
		var response *http.Response
		if strings.HasPrefix(path, "/scheduler/") {
			response, err = c.Post(url, "application/json", strings.NewReader(`{"Pod": {}, "NodeNames": ["n1", "n2"]}`))
		} else {
			response, err = c.Get(url)
		}
		if err != nil {
			return 0, "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return response.StatusCode, string(text), err
	}
	anybody := client(servers, nil, false)
	ready(t, func() (int, string, error) { return ask(anybody, "/readyz") })
	const priorities = "/scheduler/priorities/layers"
	for _, c := range []struct {
		name   string
		client *http.Client
		status int // of what needs a certificate
		open   int // of what does not
	}{
		{"of the authority for clients", client(servers, clients, false), http.StatusOK, http.StatusOK},
		{"the same, as kube-scheduler shows it", client(servers, clients, true), http.StatusOK, http.StatusOK},
		{"none", anybody, http.StatusUnauthorized, http.StatusOK},
		{"of the server's authority, which is not shown as it is not asked for", client(servers, servers, false), http.StatusUnauthorized, http.StatusOK},
		{"of the server's authority", client(servers, servers, true), 0, 0},
		{"of an authority with the name of the right one", client(servers, impostor, false), 0, 0},
	} {
		for path, want := range map[string]int{priorities: c.status, "/metrics": c.status, "/debug/layerlocality?image=a": c.status, "/livez": c.open} {
			status, body, err := ask(c.client, path)
			var ofServer x509.UnknownAuthorityError
			if status != want || status == 0 && (err == nil || errors.As(err, &ofServer)) {
				t.Errorf("certificate %s: %s: %d %.100s %v, want %d", c.name, path, status, body, err, want)
			}
		}
	}
	if _, body, err := ask(client(servers, clients, true), priorities); err != nil || body != `[{"Host":"n1","Score":0},{"Host":"n2","Score":0}]` {
		t.Errorf("answer %q %v", body, err)
	}
	// The other way round: a scheduler that trusts the clients' authority only does not ask.
	var unknown x509.UnknownAuthorityError
	if status, _, err := ask(client(clients, clients, true), priorities); !errors.As(err, &unknown) {
		t.Errorf("a server with a certificate of another authority is asked: %d %v", status, err)
	}
}

// TestRenewed replaces the certificate and the authority for clients while the program runs:
// new connections have the new ones.
func TestRenewed(t *testing.T) {
	servers := newAuthority(t, "servers")
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	o := &options{clientCA: filepath.Join(first.dir, "ca.crt")}
	o.certFile, o.keyFile = servers.issue(t, "layer-extender", net.IPv4(127, 0, 0, 1), x509.ExtKeyUsageServerAuth)
	config, err := o.tlsConfig()
	must(t, err)
	current := func() *tls.Config {
		config, err := config.GetConfigForClient(nil)
		must(t, err)
		return config
	}
	before := current()
	servers.issue(t, "layer-extender", net.IPv4(127, 0, 0, 1), x509.ExtKeyUsageServerAuth)
	text, err := os.ReadFile(filepath.Join(second.dir, "ca.crt"))
	must(t, err)
	must(t, os.WriteFile(o.clientCA, text, 0o600))
	after := current()
	if string(before.Certificates[0].Certificate[0]) == string(after.Certificates[0].Certificate[0]) {
		t.Error("the old certificate is shown")
	}
	if !before.ClientCAs.Equal(first.pool()) || !after.ClientCAs.Equal(second.pool()) {
		t.Error("clients of the old authority are let in")
	}
	must(t, os.Remove(o.clientCA))
	if _, err := config.GetConfigForClient(nil); err == nil || !strings.Contains(err.Error(), "--client-ca-file="+o.clientCA) {
		t.Errorf("without the file: %v", err)
	}
}
