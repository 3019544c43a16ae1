//go:build e2e

package skew

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// The kubelet's log message when layers that an apiserver kept are gone again
// and again.
const lossMessage = "The layers of images in the node status are lost again and again"

// stockAPIServer is a second apiserver, with the etcd of the first.
const stockAPIServer, stockAPIServerPort = "stock-apiserver", "444"

// TestLosses has patched kubelets whose layers are kept, according to the answers
// to their writes, and gone later. A kubelet that insists would write its status
// every ten seconds for ever.
func TestLosses(t *testing.T) {
	t.Parallel()
	const name = "skew-losses"
	pki := filepath.Join(folder.Default(name), "pki")
	binary, err := filepath.Abs(filepath.Join("..", "..", "..", "_build", "bin", "stock", "kube-apiserver"))
	must(t, err)
	c := start(t, cluster.Config{
		Name:        name,
		Nodes:       2,
		Flavour:     cluster.Patched,
		Kubelet:     cluster.Component{Config: map[string]any{"nodeStatusReportFrequency": "2h"}},
		AuditPolicy: auditlog.NodeWrites,
		Addons: []cluster.Addon{{
			Name:     stockAPIServer,
			Settings: cluster.Component{Binary: binary},
			Args: []string{
				"--etcd-servers=http://127.0.0.1:2379",
				"--bind-address=$(ADDRESS)",
				"--secure-port=" + stockAPIServerPort,
				"--tls-cert-file=" + filepath.Join(pki, "control.crt"),
				"--tls-private-key-file=" + filepath.Join(pki, "control.key"),
				"--client-ca-file=" + filepath.Join(pki, "ca.crt"),
				"--authorization-mode=Node,RBAC",
				"--service-cluster-ip-range=10.96.0.0/16",
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file=" + filepath.Join(pki, "service-account.pub"),
				"--service-account-signing-key-file=" + filepath.Join(pki, "service-account.key"),
			},
			Health: "https://$(ADDRESS):" + stockAPIServerPort + "/readyz",
		}},
	})
	image := c.push(t, "image:v1", "base", "own")
	for _, node := range c.Nodes() {
		c.pull(t, node.Name, image)
		c.wait(t, node.Name, image, withLayers)
	}

	t.Run("two kinds of apiserver", func(t *testing.T) {
		t.Parallel()
		kubeconfig := mixAPIServers(t, c, "n1")
		begin := time.Now()
		must(t, c.Node("n1").Kubelet().Restart(t.Context(), func(kubelet *cluster.Component) {
			kubelet.Args = append(kubelet.Args, "--kubeconfig="+kubeconfig)
		}))
		checkLossesEnd(t, c, "n1", begin)
	})
	t.Run("a client without layers", func(t *testing.T) {
		t.Parallel()
		begin := time.Now()
		writeBack(t, c, "n2")
		checkLossesEnd(t, c, "n2", begin)
		c.check(t, "n2", image, withoutLayers)
	})
}

// checkLossesEnd waits until the kubelet leaves layers out, for which it may
// write a few times, and checks that it then writes no more.
func checkLossesEnd(t *testing.T, c live, node string, begin time.Time) {
	t.Helper()
	livetest.Eventually(t, 2*time.Minute, "the kubelet of "+node+" gives up", func(context.Context) error {
		if n := logged(t, c.Node(node).Kubelet(), lossMessage); n != 1 {
			return fmt.Errorf("%d lines about it in its log", n)
		}
		return nil
	})
	const quiet = time.Minute
	noticed := time.Now()
	select {
	case <-time.After(quiet):
	case <-t.Context().Done():
	}
	log, err := auditlog.Read(c.AuditLog())
	must(t, err)
	before, after := log.StatusWrites(node).Between(begin, noticed), log.StatusWrites(node).Between(noticed, noticed.Add(quiet))
	t.Logf("%s wrote its status %d times in %.0f s until it noticed, and %d times in %s after that",
		node, len(before), noticed.Sub(begin).Seconds(), len(after), quiet)
	// The restart of a kubelet is worth some more: no images yet, not ready, ready.
	if len(before) > 3+4 {
		t.Errorf("it wrote at %v", before.Times())
	}
	if len(after) > 0 {
		t.Errorf("it still wrote at %v", after.Times())
	}
	if n := logged(t, c.Node(node).Kubelet(), refusalMessage); n != 0 {
		t.Errorf("an answer showed that layers were not kept: the test is wrong")
	}
	object, err := c.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	must(t, err)
	if len(object.Status.Images) == 0 {
		t.Error("the Node has no images")
	}
}

// mixAPIServers serves both apiservers at one address, as a load balancer does
// during an upgrade, in the way that is worst for a kubelet: it reads from the
// stock one and writes to the patched one. It returns a kubeconfig of the node's
// kubelet for that address.
func mixAPIServers(t *testing.T, c live, node string) string {
	t.Helper()
	identity := filepath.Join(c.Node(node).Dir(), "kubelet.kubeconfig")
	config, err := clientcmd.BuildConfigFromFlags("", identity)
	must(t, err)
	transport, err := rest.TransportFor(config)
	must(t, err)
	stock := net.JoinHostPort(c.Address().String(), stockAPIServerPort)
	patched, err := url.Parse(config.Host)
	must(t, err)
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // watches
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(patched)
			if r.In.Method == http.MethodGet {
				r.Out.URL.Host = stock
			}
		},
	}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(c.Dir(), "pki", "control.crt"), filepath.Join(c.Dir(), "pki", "control.key"))
	must(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostAddress().String(), "0"))
	must(t, err)
	server := &http.Server{Handler: proxy, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() {
		must(t, server.Close())
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})

	mixed, err := clientcmd.LoadFromFile(identity)
	must(t, err)
	for _, entry := range mixed.Clusters {
		entry.Server, entry.TLSServerName = "https://"+listener.Addr().String(), "localhost"
	}
	path := filepath.Join(c.Node(node).Dir(), "mixed.kubeconfig")
	must(t, clientcmd.WriteToFile(*mixed, path))
	return path
}

// writeBack reads the Node and writes its status back every five seconds, until
// the test ends, with the types of a client that has no layers.
func writeBack(t *testing.T, c live, node string) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	nodes := c.client.CoreV1().Nodes()
	go func() {
		defer close(ended)
		for {
			object, err := nodes.Get(ctx, node, metav1.GetOptions{})
			if err == nil {
				_, err = nodes.UpdateStatus(ctx, object, metav1.UpdateOptions{})
			}
			if err != nil && ctx.Err() == nil {
				t.Logf("the client that writes back: %v", err) // sometimes a conflict with the kubelet
			}
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// testTooLarge pins the text by which the kubelet recognizes that etcd has
// refused a Node because of its size: the apiserver passes it on as any internal
// error.
func testTooLarge(t *testing.T, c live) {
	const node = "large"
	c.createNode(t, node)
	for size, want := range map[int]string{
		1700 << 10: "request is too large",                   // more than etcd stores
		2200 << 10: "trying to send message larger than max", // more than its client sends
	} {
		patch := fmt.Appendf(nil, `{"status":{"images":[{"names":[%q]}]}}`, strings.Repeat("a", size))
		_, err := c.patch(t.Context(), node, "status", types.StrategicMergePatchType, patch)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a Node of %d bytes: got error %.300v, want one with %q", size, err, want)
		}
	}
}
