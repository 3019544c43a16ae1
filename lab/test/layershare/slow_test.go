//go:build e2e

package layershare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// throttle has the registry send the first answer with this blob at so many bytes a second, and
// all others as fast as the link is, to the node, until stop is called, which ends that answer. begun is
// closed when the blob is asked for.
func throttle(t *testing.T, node *cluster.Node, blob string, bytesPerSecond int) (begun <-chan struct{}, stop func()) {
	t.Helper()
	registry, err := url.Parse("http://" + c.Registry().Address)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(registry)
	proxy.FlushInterval = -1
	taken := make(chan struct{})
	var first atomic.Bool
	handler := http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, blob) && first.CompareAndSwap(false, true) {
			close(taken)
			answer = &slowAnswer{answer, request.Context(), bytesPerSecond}
		}
		proxy.ServeHTTP(answer, request)
	})
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostAddress().String(), "0"))
	must(t, err)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	// The node takes the proxy for the registry.
	rule := func(action string) {
		_, err := node.Exec(context.WithoutCancel(t.Context()), "iptables", "-w", "-t", "nat", action, "OUTPUT", "-p", "tcp",
			"-d", registry.Hostname(), "--dport", registry.Port(), "-j", "DNAT", "--to-destination", listener.Addr().String())
		must(t, err)
	}
	rule("-A")
	stop = sync.OnceFunc(func() {
		rule("-D")
		_ = server.Close()
	})
	t.Cleanup(stop)
	return taken, stop
}

type slowAnswer struct {
	http.ResponseWriter
	ctx            context.Context
	bytesPerSecond int
}

func (a *slowAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *slowAnswer) Write(all []byte) (written int, err error) {
	for part := a.bytesPerSecond / 5; len(all) > 0 && err == nil; all = all[part:] {
		part = min(part, len(all))
		_, err = a.ResponseWriter.Write(all[:part])
		err = errors.Join(err, http.NewResponseController(a.ResponseWriter).Flush())
		written += part
		select {
		case <-a.ctx.Done():
			return written, a.ctx.Err()
		case <-time.After(time.Second / 5):
		}
	}
	return written, err
}

// TestFirstConnectionIsSlow starts five pods of five images on one base at once, and the first image
// comes over a connection that gets 20 kB a second: the other pods run soon, as without sharing, and the
// base comes once more.
func TestFirstConnectionIsSlow(t *testing.T) {
	lab, err := scenario.NewLab(c)
	must(t, err)
	// With something to run, below the base.
	bottom, err := images.Build(images.Image{Layers: []images.Layer{{Name: "base", Size: base}}})
	must(t, err)
	layers, err := bottom.Layers()
	must(t, err)
	blob, err := layers[len(layers)-1].Digest()
	must(t, err)
	took := map[string]time.Duration{}
	rows := [][]string{{"CRI-O", "the other four pods are ready after", "came over the link"}}
	for _, name := range []string{off, patched} {
		node, names := c.Node(name), pushOn(t, bottom, "slow-"+name, 5, images.Gzip)
		begun, stop := throttle(t, node, blob.String(), 20_000)
		pods := scenario.Names("slow-"+name, len(names))
		start := func(i int) {
			must(t, lab.Submit(t.Context(), scenario.Pod{Name: pods[i], Image: names[i], Node: name}))
		}
		start(0)
		<-begun
		before, err := node.Received(t.Context())
		must(t, err)
		began := time.Now()
		for i := range pods[1:] {
			start(i + 1)
		}
		must(t, lab.Ready(t.Context(), pods[1:]...))
		took[name] = time.Since(began)
		after, err := node.Received(t.Context())
		must(t, err)
		complete(t, node, names[1:]...)
		rows = append(rows, []string{name, fmt.Sprintf("%.1f s", took[name].Seconds()), livetest.Megabytes(after - before)})
		if name == patched {
			// Besides the layers: a measurement of its own connection by each pod that waits, of 2 MiB, and the slow one.
			between(t, "with a slow connection", after-before, base+4*own, base+4*own+4*2<<20+int64(20_000*took[name].Seconds()))
		}
		stop() // kubelets end a pod after its pull
		must(t, lab.Remove(t.Context(), pods...))
		for _, name := range names[1:] {
			must(t, lab.RemoveImage(t.Context(), node.Name, name))
		}
	}
	livetest.Table(t, rows...)
	if limit := took[off]*3/2 + 5*time.Second; took[patched] > limit {
		t.Errorf("the others took %v, and %v without sharing: want %v at the most", took[patched], took[off], limit)
	}
}
