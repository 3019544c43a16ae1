//go:build e2e

package tenants

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// door is the cluster's registry behind passwords: a team's are all repositories below its name, and
// its password is passwordOf(team). It holds back blobs, from each node by itself.
type door struct {
	address string
	proxy   http.Handler

	mu   sync.Mutex
	held map[hold]*holding
}

// hold is a blob for a node, by the addresses of both.
type hold struct{ node, blob string }

type holding struct {
	size int64
	// first is closed when the first answer may end, others when that has ended.
	first, others chan struct{}
	// asked counts the requests, sent the answers that went out as a whole.
	asked, sent int
}

func passwordOf(team string) string { return "password of " + team }

// openDoor serves until the test ends.
func openDoor(t *testing.T) *door {
	t.Helper()
	registry, err := url.Parse("http://" + c.Registry().Address)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(registry)
	proxy.FlushInterval = -1
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostAddress().String(), "0"))
	must(t, err)
	d := &door{address: listener.Addr().String(), proxy: proxy, held: map[hold]*holding{}}
	server := &http.Server{Handler: d, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { _ = server.Close() })
	return d
}

func (d *door) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	team, _, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/v2/"), "/")
	if user, password, ok := request.BasicAuth(); !ok || user != team || password != passwordOf(team) {
		answer.Header().Set("WWW-Authenticate", `Basic realm="tenants"`)
		http.Error(answer, `{"errors":[{"code":"UNAUTHORIZED","message":"this door wants a password"}]}`, http.StatusUnauthorized)
		return
	}
	node, _, _ := net.SplitHostPort(request.RemoteAddr)
	_, blob, _ := strings.Cut(request.URL.Path, "/blobs/")
	d.mu.Lock()
	held := d.held[hold{node, blob}]
	if held == nil || request.Method != http.MethodGet {
		d.mu.Unlock()
		d.proxy.ServeHTTP(answer, request)
		return
	}
	held.asked++
	slow := &heldAnswer{ResponseWriter: answer, ctx: request.Context(), released: held.others}
	if held.asked == 1 {
		slow.released = held.first
		defer close(held.others)
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if slow.written == held.size {
			held.sent++
		}
	}()
	d.proxy.ServeHTTP(slow, request)
}

// hold sends the blob to the node so slowly that it does not end, until release. Then the first
// answer ends, and after it the others: until then no connection is faster than that of the first.
func (d *door) hold(node, blob string, size int64) (release func()) {
	held := &holding{size: size, first: make(chan struct{}), others: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[hold{node, blob}] = held
	return sync.OnceFunc(func() { close(held.first) })
}

// requests returns how many requests for the blob there have been, and how many of them got all of it.
func (d *door) requests(node, blob string) (asked, sent int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := d.held[hold{node, blob}]
	return held.asked, held.sent
}

// heldAnswer sends 100 kB a second, until it is released.
type heldAnswer struct {
	http.ResponseWriter
	ctx      context.Context
	released <-chan struct{}
	written  int64
}

func (a *heldAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *heldAnswer) Write(all []byte) (written int, err error) {
	for len(all) > 0 && err == nil {
		var part int
		select {
		case <-a.released:
			part = len(all)
		case <-a.ctx.Done():
			return written, a.ctx.Err()
		case <-time.After(time.Second / 5):
			part = min(20_000, len(all))
		}
		part, err = a.ResponseWriter.Write(all[:part])
		err = errors.Join(err, http.NewResponseController(a.ResponseWriter).Flush())
		written += part
		a.written += int64(part)
		all = all[part:]
	}
	return written, err
}
