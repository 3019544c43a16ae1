package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a node that serves and asks.
type node struct {
	name     string
	folder   string
	identity *Identity
	index    *Index
	server   *Server
	asker    *Asker
	listener net.Listener
	metrics  *metrics
	layers   []string
	renewals int64
}

// cluster has nodes that know each other.
type cluster struct {
	t     *testing.T
	nodes []*node
}

func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := &cluster{t: t}
	for n := range nodes {
		c.add(fmt.Sprintf("n%d", n))
	}
	c.publish()
	return c
}

func (c *cluster) add(name string) *node {
	c.t.Helper()
	identity, err := NewIdentity()
	must(c.t, err)
	n := &node{name: name, folder: c.t.TempDir(), identity: identity, index: NewIndex(name, "a"), metrics: NewMetrics(prometheus.NewRegistry())}
	n.asker = NewAsker(identity, n.index, n.metrics, nil)
	n.asker.connect, n.asker.answer, n.asker.window = time.Minute, time.Minute, time.Minute // a machine may be slow
	n.server, err = NewServer(identity, n.index, n.folder, 1<<30, n.metrics)
	must(c.t, err)
	n.server.patience = time.Minute
	n.listener, err = (&net.ListenConfig{}).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	must(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	listener := n.listener
	go func() { ended <- n.server.Serve(ctx, listener) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
	})
	c.nodes = append(c.nodes, n)
	return n
}

// object is what the node publishes.
func (n *node) object() *v1alpha1.NodeLayers {
	n.renewals++
	o := &v1alpha1.NodeLayers{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: v1alpha1.NodeLayersSpec{
		Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.NewTime(time.Unix(n.renewals, 0)),
		Peer: &v1alpha1.NodePeer{Address: n.listener.Addr().String(), Keys: n.identity.Keys()},
	}}
	for _, layer := range n.layers {
		o.Spec.Layers = append(o.Spec.Layers, layer+" 1")
	}
	return o
}

// publish has every node learn of every other one.
func (c *cluster) publish() {
	for _, to := range c.nodes {
		for _, from := range c.nodes {
			must(c.t, to.index.Update(from.object()))
		}
	}
}

// size is that of a layer: what comes is passed on before its end.
const size = 3 * trial

var random = rand.NewChaCha8([32]byte{})

// layer returns a layer that the nodes hold.
func (c *cluster) layer(holders ...*node) (content []byte, layer string) {
	c.t.Helper()
	content = make([]byte, size)
	_, _ = random.Read(content)
	sum := sha256.Sum256(content)
	name := hex.EncodeToString(sum[:])
	for _, n := range holders {
		must(c.t, os.WriteFile(filepath.Join(n.folder, name), content, 0o600))
		n.layers = append(n.layers, "sha256:"+name)
	}
	c.publish()
	return content, "sha256:" + name
}

// fetch has a node ask for a layer, as CRI-O does.
func (n *node) fetch(t *testing.T, content []byte, layer string) ([]byte, error) {
	t.Helper()
	var got bytes.Buffer
	_, err := n.asker.fetch(t.Context(), wanted{layer, size, leastRate, content[:HeadBytes]}, &got)
	return got.Bytes(), err
}

func TestFetch(t *testing.T) {
	c := newCluster(t, 3)
	asks, serves := c.nodes[0], c.nodes[1]
	content, layer := c.layer(serves)
	got, err := asks.fetch(t, content, layer)
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if sent, received := testutil.ToFloat64(serves.metrics.sent), testutil.ToFloat64(asks.metrics.received); sent != size || received != size {
		t.Errorf("%v bytes sent, %v received", sent, received)
	}
	if _, layer := c.layer(); len(asks.asker.candidates(layer)) > 0 {
		t.Error("nobody has it, and somebody would be asked")
	}
}

// Who does not know the head gets nothing, whatever else it knows: the same answer as for a layer that is not there.
func TestUnproven(t *testing.T) {
	c := newCluster(t, 2)
	content, layer := c.layer(c.nodes[1])
	guess := bytes.Clone(content)
	guess[HeadBytes-1]++
	if got, err := c.nodes[0].fetch(t, guess, layer); err == nil || len(got) > 0 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if count := testutil.ToFloat64(c.nodes[1].metrics.served.WithLabelValues(unproven)); count != 1 {
		t.Errorf("%v unproven requests", count)
	}
	// A proof of another connection, as of somebody in between, proves nothing.
	first, second := c.dial(c.nodes[0], c.nodes[1]), c.dial(c.nodes[0], c.nodes[1])
	state := first.ConnectionState()
	code, err := proof(&state, content[:HeadBytes])
	must(t, err)
	for what, try := range map[string]struct {
		conn   *tls.Conn
		layer  string
		code   string
		status int
	}{
		"another connection": {second, layer, base64.StdEncoding.EncodeToString(code), http.StatusNotFound},
		"its own":            {first, layer, base64.StdEncoding.EncodeToString(code), http.StatusOK},
		"none":               {c.dial(c.nodes[0], c.nodes[1]), layer, "", http.StatusNotFound},
		"no code":            {c.dial(c.nodes[0], c.nodes[1]), layer, "%", http.StatusNotFound},
	} {
		if status := request(t, try.conn, http.MethodHead, "/v2/any/name/blobs/"+try.layer, try.code); status != try.status {
			t.Errorf("proof of %s: %d, want %d", what, status, try.status)
		}
	}
}

func (c *cluster) dial(from, to *node) *tls.Conn {
	c.t.Helper()
	conn, err := tls.Dial("tcp", to.listener.Addr().String(), from.identity.config(func(string) bool { return true }))
	must(c.t, err)
	c.t.Cleanup(func() { conn.Close() })
	return conn
}

func request(t *testing.T, conn *tls.Conn, method, path, code string) (status int) {
	t.Helper()
	transport := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	r, err := http.NewRequestWithContext(t.Context(), method, "https://peer"+path, nil)
	must(t, err)
	r.Header.Set(proofHeader, code)
	answer, err := transport.RoundTrip(r)
	must(t, err)
	answer.Body.Close()
	return answer.StatusCode
}

func TestPathsAndMethods(t *testing.T) {
	c := newCluster(t, 2)
	content, layer := c.layer(c.nodes[1])
	must(t, os.WriteFile(filepath.Join(c.nodes[1].folder, "secret"), content, 0o600))
	must(t, os.Mkdir(filepath.Join(c.nodes[1].folder, strings.Repeat("a", 64)), 0o700))
	must(t, os.Symlink("/etc/passwd", filepath.Join(c.nodes[1].folder, strings.Repeat("b", 64))))
	for _, try := range []struct{ method, path string }{
		{http.MethodPost, "/v2/a/blobs/" + layer}, {http.MethodGet, "/v2/blobs/" + layer}, {http.MethodGet, "/v1/a/blobs/" + layer},
		{http.MethodGet, "/v2/a/manifests/" + layer}, {http.MethodGet, "/v2/a/blobs/secret"}, {http.MethodGet, "/v2/a/blobs/sha256:../secret"},
		{http.MethodGet, "/v2/a/blobs/sha256:" + strings.Repeat("a", 64)}, {http.MethodGet, "/v2/a/blobs/sha256:" + strings.Repeat("b", 64)},
		{http.MethodGet, "/v2/a/blobs/sha512:" + strings.Repeat("a", 128)}, {http.MethodGet, "/metrics"},
	} {
		conn := c.dial(c.nodes[0], c.nodes[1])
		state := conn.ConnectionState()
		code, err := proof(&state, content[:HeadBytes])
		must(t, err)
		if status := request(t, conn, try.method, try.path, base64.StdEncoding.EncodeToString(code)); status != http.StatusNotFound {
			t.Errorf("%s %s: %d", try.method, try.path, status)
		}
	}
}

// A node whose NodeLayers nobody has, or has no more, neither gets anything nor is asked.
func TestKeys(t *testing.T) {
	for what, tc := range map[string]func(*cluster){
		"no NodeLayers of the one that asks":   func(c *cluster) { must(c.t, c.nodes[1].index.Delete(c.nodes[0].object())) },
		"no NodeLayers of the one that serves": func(c *cluster) { must(c.t, c.nodes[0].index.Replace(nil, "")) },
		"NodeLayers that nobody renews": func(c *cluster) {
			c.nodes[1].index.now = func() time.Time { return time.Now().Add(time.Hour) }
		},
		"another key than that of the node": func(c *cluster) {
			o := c.nodes[1].object()
			o.Spec.Peer.Keys = []string{strings.Repeat("a", 64)}
			must(c.t, c.nodes[0].index.Update(o))
		},
		"the key of another node": func(c *cluster) {
			o := c.nodes[1].object()
			o.Spec.Peer.Keys = c.nodes[2].identity.Keys()
			must(c.t, c.nodes[0].index.Update(o))
		},
		"the certificate of the one that asks has expired": func(c *cluster) {
			c.nodes[1].identity.now = func() time.Time { return time.Now().Add(3 * keyLife) }
		},
		"that of the one that serves has": func(c *cluster) {
			c.nodes[0].identity.now = func() time.Time { return time.Now().Add(3 * keyLife) }
		},
		"that of the one that serves is of the future": func(c *cluster) {
			c.nodes[0].identity.now = func() time.Time { return time.Now().Add(-2 * clocks) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3)
			content, layer := c.layer(c.nodes[1])
			tc(c)
			if got, err := c.nodes[0].fetch(t, content, layer); err == nil || len(got) > 0 {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// Keys change, and at no time does a node that knows the published ones refuse another.
func TestRotation(t *testing.T) {
	c := newCluster(t, 2)
	content, layer := c.layer(c.nodes[1])
	began := time.Now()
	first := c.nodes[1].identity.Keys()[0]
	published := 0
	for step := range 82 {
		now := began.Add(time.Duration(step) * 20 * time.Minute)
		for _, n := range c.nodes {
			n.identity.now = func() time.Time { return now }
			changed, err := n.identity.rotate()
			must(t, err)
			if !changed {
				continue
			}
			published++
			// Before the others know of it
			if got, err := c.nodes[0].fetch(t, content, layer); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("after %v, unpublished: %v", now.Sub(began), err)
			}
		}
		if step%2 == 0 {
			c.publish() // as late as that
		}
	}
	if keys := c.nodes[1].identity.Keys(); published != 4 || len(keys) != 1 || keys[0] == first {
		t.Errorf("published %d times, %q after %s", published, keys, first)
	}
}

// Keys that could not be published are published a minute later.
func TestPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		identity, err := NewIdentity()
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var calls atomic.Int32
		go identity.Run(ctx, func([]string) error {
			if calls.Add(1) < 3 {
				return errors.New("no space left")
			}
			return nil
		})
		for minute, want := range []int32{1, 2, 3, 3} {
			time.Sleep(time.Second)
			if got := calls.Load(); got != want {
				t.Errorf("after %d minutes: %d, want %d", minute, got, want)
			}
			time.Sleep(59 * time.Second)
		}
	})
}

// Of two pauses the later end counts.
func TestPauses(t *testing.T) {
	c := newCluster(t, 2)
	a := c.nodes[0].asker
	now := time.Now()
	c.nodes[0].index.now = func() time.Time { return now }
	a.failed(&peer{name: "n1"}, wrongPause)
	a.failed(&peer{name: "n1"}, 0)
	if left := a.pauses["n1"].until.Sub(now); left != wrongPause {
		t.Errorf("left alone for %v", left)
	}
}

// hostile makes a node answer otherwise.
func (c *cluster) hostile(n *node, handler http.HandlerFunc) {
	c.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	must(c.t, err)
	n.listener = listener
	server := &http.Server{Handler: handler, TLSConfig: n.identity.config(func(string) bool { return true }), ReadHeaderTimeout: time.Minute}
	go server.ServeTLS(listener, "", "")
	c.t.Cleanup(func() { server.Close() })
	c.publish()
}

// Whatever a peer does, CRI-O gets the layer from another one, or not all of it. No other one is paused for it.
func TestFaults(t *testing.T) {
	announce := func(w http.ResponseWriter) { w.Header().Set("Content-Length", fmt.Sprint(size)) }
	changed := func(content []byte, at int) []byte {
		wrong := bytes.Clone(content)
		wrong[at]++
		return wrong
	}
	const slowWindow = 100 * time.Millisecond
	// part sends the first bytes and ends, or says nothing more.
	part := func(bytes int, ends bool) func([]byte) http.HandlerFunc {
		return func(content []byte) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				announce(w)
				w.Write(content[:bytes])
				w.(http.Flusher).Flush()
				if !ends {
					<-r.Context().Done()
				}
			}
		}
	}
	for what, tc := range map[string]struct {
		first func(content []byte) http.HandlerFunc
		// late: too late for another one to make good for it. pause is how long it is not asked.
		late  bool
		pause time.Duration
		slow  bool
	}{
		"away": {first: func([]byte) http.HandlerFunc { return nil }, pause: firstPause},
		"wrong bytes": {first: func(content []byte) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				announce(w)
				w.Write(changed(content, size/2))
			}
		}, late: true, pause: wrongPause},
		"wrong bytes, and two thirds of them": {first: func(content []byte) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				announce(w)
				w.Write(changed(content, 0)[:2*trial])
			}
		}, late: true, pause: lastPause},
		"wrong bytes, and few of them": {first: func(content []byte) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				announce(w)
				w.Write(changed(content, 0)[:trial])
			}
		}, pause: firstPause},
		"truncated":       {first: part(2*trial, true), late: true, pause: lastPause},
		"truncated early": {first: part(trial, true), pause: firstPause},
		"another size": {first: func(content []byte) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { w.Write(content[:size-1]) }
		}, pause: firstPause},
		"without a size": {first: func(content []byte) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.(http.Flusher).Flush()
				w.Write(content)
				w.Write(content)
			}
		}, pause: firstPause},
		"a redirect": {first: func([]byte) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
			}
		}, pause: firstPause},
		"stalled":       {first: part(2*trial, false), late: true, pause: lastPause, slow: true},
		"stalled early": {first: part(1, false), pause: firstPause, slow: true},
		"1 kB/s": {first: func(content []byte) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				announce(w)
				for at := 0; r.Context().Err() == nil; at += 10 {
					w.Write(content[at : at+10])
					w.(http.Flusher).Flush()
					time.Sleep(10 * time.Millisecond)
				}
			}
		}, pause: firstPause, slow: true},
		"busy":    {first: func([]byte) http.HandlerFunc { return status(http.StatusServiceUnavailable) }},
		"absent":  {first: func([]byte) http.HandlerFunc { return status(http.StatusNotFound) }},
		"failing": {first: func([]byte) http.HandlerFunc { return status(http.StatusInternalServerError) }, pause: firstPause},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3)
			asks, first, second := c.nodes[0], c.nodes[1], c.nodes[2]
			content, layer := c.layer(first)
			if handler := tc.first(content); handler != nil {
				c.hostile(first, handler)
			} else {
				gone, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
				must(t, err)
				must(t, gone.Close())
				first.listener = gone
			}
			now := time.Now()
			asks.index.now = func() time.Time { return now }
			c.publish()
			// Alone: it is slow once all came that it sends.
			var got []byte
			if tc.slow && !tc.late {
				asks.asker.window = slowWindow
			}
			_, err := asks.asker.fetch(t.Context(), wanted{layer, size, leastRate, content[:HeadBytes]}, writerFunc(func(p []byte) (int, error) {
				if got = append(got, p...); tc.slow && len(got) == 2*trial {
					asks.asker.window = slowWindow
				}
				return len(p), nil
			}))
			if err == nil || len(got) >= size || len(got) > 0 != tc.late {
				t.Errorf("alone: %d bytes, %v", len(got), err)
			}
			if errors.Is(err, errSlow) != tc.slow {
				t.Error(err)
			}
			for _, after := range []time.Duration{0, tc.pause - 1, tc.pause} {
				asks.index.now = func() time.Time { return now.Add(after) }
				must(t, asks.index.Update(first.object()))
				if asked := len(asks.asker.candidates(layer)) > 0; after >= 0 && asked != (after == tc.pause) {
					t.Errorf("after %v: asked %v", after, asked)
				}
			}
			// Before another one: whichever is asked first, all of it comes, unless it is too late.
			second.layers = first.layers
			must(t, os.WriteFile(filepath.Join(second.folder, layer[len("sha256:"):]), content, 0o600))
			c.publish()
			for range 8 {
				asks.asker.pauses = map[string]pause{}
				got, err := asks.fetch(t, content, layer)
				switch {
				case err == nil && !bytes.Equal(got, content), err != nil && len(got) >= size:
					t.Errorf("%d bytes, %v", len(got), err)
				case tc.slow && errors.Is(err, errSlow): // maybe this machine
					continue
				case err != nil && !tc.late:
					t.Error(err)
				}
				if other, paused := asks.asker.pauses[second.name]; paused {
					t.Errorf("the other one is paused: %+v", other)
				}
			}
			if count := testutil.ToFloat64(asks.metrics.asked.WithLabelValues(wrong)); (count > 0) != (tc.pause == wrongPause) {
				t.Errorf("%v wrong layers", count)
			}
		})
	}
}

// A peer that sent something else is named in an event on its Node, and there are no more than ten at once.
func TestEvents(t *testing.T) {
	type event struct {
		Kind, Type, Reason, Message string
		Metadata                    struct{ GenerateName, Namespace string }
		InvolvedObject              struct{ APIVersion, Kind, Name, UID string }
	}
	written := make(chan event, 1000)
	apiserver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil || r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/default/events" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		w.WriteHeader(http.StatusCreated)
		written <- e
	}))
	t.Cleanup(apiserver.Close)
	c := newCluster(t, 2)
	a := c.nodes[0].asker
	var err error
	a.events, err = NewEvents(&rest.Config{Host: apiserver.URL}, "n0")
	must(t, err)
	content, layer := c.layer(c.nodes[1])
	c.hostile(c.nodes[1], func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.Write(make([]byte, size))
	})
	for range 2 { // it is asked once
		_, err = c.nodes[0].fetch(t, content, layer)
	}
	if !errors.Is(err, errNone) {
		t.Error(err)
	}
	e := <-written
	if e.Type != "Warning" || e.Reason != "WrongLayer" || e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != "n1" || e.InvolvedObject.UID != "n1" ||
		e.Metadata.Namespace != "default" || e.Metadata.GenerateName == "" || !strings.Contains(e.Message, layer) || !strings.Contains(e.Message, "n0") {
		t.Errorf("%+v", e)
	}
	for range 100 {
		a.events.wrong(t.Context(), "n1", layer)
	}
	if len(written) != mostEvents-1 {
		t.Errorf("%d more events", len(written))
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// No more than three peers are asked for one layer.
func TestMostPeers(t *testing.T) {
	c := newCluster(t, 6)
	var mu sync.Mutex
	asked := 0
	for _, n := range c.nodes[1:] {
		c.hostile(n, func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			asked++
			mu.Unlock()
			w.WriteHeader(http.StatusNotFound)
		})
	}
	content, layer := c.layer(c.nodes[1:]...)
	if _, err := c.nodes[0].fetch(t, content, layer); !errors.Is(err, errAbsent) || asked != maxPeers {
		t.Errorf("%d were asked, %v", asked, err)
	}
}

// A layer that is deleted while it is sent comes whole; one that was deleted does not come.
func TestDeleted(t *testing.T) {
	c := newCluster(t, 2)
	content, layer := c.layer(c.nodes[1])
	path := filepath.Join(c.nodes[1].folder, layer[len("sha256:"):])
	deleted := writerFunc(func(p []byte) (int, error) {
		os.Remove(path)
		return len(p), nil
	})
	if sent, err := c.nodes[0].asker.fetch(t.Context(), wanted{layer, size, leastRate, content[:HeadBytes]}, deleted); err != nil {
		t.Errorf("after %d bytes: %v", sent, err)
	}
	if _, err := c.nodes[0].fetch(t, content, layer); !errors.Is(err, errAbsent) {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Of 200 nodes that want one layer at the same time, as many get it as may at a time. The others are refused while
// these get it, and nothing is sent to them.
func TestManyAsk(t *testing.T) {
	const nodes, large = 200, 64 << 30 // so that it does not end, and may take hours
	c := newCluster(t, 1)
	serves, layer := c.nodes[0], strings.Repeat("a", 64)
	must(t, os.WriteFile(filepath.Join(serves.folder, layer), nil, 0o600))
	must(t, os.Truncate(filepath.Join(serves.folder, layer), large))
	layer = "sha256:" + layer
	serves.layers = []string{layer}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, nodes)
	var sending atomic.Int32
	for i := range nodes {
		identity, err := NewIdentity()
		must(t, err)
		n := &node{name: fmt.Sprint("asks", i), identity: identity, index: NewIndex(fmt.Sprint("asks", i), ""), listener: serves.listener}
		n.asker = NewAsker(identity, n.index, serves.metrics, nil)
		n.asker.connect, n.asker.answer, n.asker.window = time.Minute, time.Minute, time.Minute
		must(t, serves.index.Update(n.object()))
		must(t, n.index.Update(serves.object()))
		blocked := writerFunc(func(p []byte) (int, error) {
			if sending.Add(1) > maxSending {
				cancel()
			}
			<-ctx.Done()
			return len(p), nil
		})
		go func() {
			_, err := n.asker.fetch(ctx, wanted{layer, large, leastRate, make([]byte, HeadBytes)}, blocked)
			ended <- err
		}()
	}
	for range nodes - maxSending {
		if err := <-ended; !errors.Is(err, errBusy) {
			t.Error(err)
		}
	}
	cancel()
	for range maxSending {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("one of those that were not refused: %v", err)
		}
	}
	if count := testutil.ToFloat64(serves.metrics.served.WithLabelValues(busy)); count != nodes-maxSending {
		t.Errorf("%v were refused", count)
	}
}

// One node gets no more than its part.
func TestGreedy(t *testing.T) {
	s, got := newCluster(t, 1).nodes[0].server, 0
	for range maxSending {
		if s.begin("greedy") {
			got++
		}
	}
	if got != maxOfNode || !s.begin("another") {
		t.Errorf("one node gets %d at a time", got)
	}
}

// No more connections are accepted than there are places.
func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bounded{Listener: endless{}, places: make(chan struct{}, 2)}
		accepted := make(chan net.Conn, 10)
		go func() {
			for range cap(accepted) {
				conn, _ := b.Accept()
				accepted <- conn
			}
		}()
		for range cap(accepted) - 2 {
			if synctest.Wait(); len(accepted) != 2 {
				t.Fatalf("%d connections at a time", len(accepted))
			}
			conn := <-accepted
			must(t, conn.Close())
			must(t, conn.Close()) // counts once
		}
	})
}

// endless accepts any number.
type endless struct{ net.Listener }

func (endless) Accept() (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

// The rate is that of all that is sent together.
func TestRate(t *testing.T) {
	c := newCluster(t, 2)
	c.nodes[1].server.rate.SetBurst(maxRead)
	c.nodes[1].server.rate.SetLimit(1) // a byte a second
	content, layer := c.layer(c.nodes[1])
	c.nodes[0].asker.window = 50 * time.Millisecond
	got, err := c.nodes[0].fetch(t, content, layer)
	if !errors.Is(err, errSlow) || len(got) > 2*maxRead {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// A peer has to be as fast as the registry was.
func TestRateOfTheRegistry(t *testing.T) {
	c := newCluster(t, 2)
	a := c.nodes[0].asker
	content, layer := c.layer(c.nodes[1])
	try := func(size int, rate string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("/layers/%s?size=%d%s", layer, size, rate), bytes.NewReader(content[:HeadBytes]))
		answer := httptest.NewRecorder()
		defer func() { _ = recover() }() // as net/http does
		a.Handler().ServeHTTP(answer, r)
		return answer.Code
	}
	for _, rate := range []string{"", "&rate=-1", "&rate=9223372036854775807"} {
		if code := try(size, rate); code != http.StatusOK {
			t.Errorf("%s: %d", rate, code)
		}
	}
	const large = 1 << 30
	c.hostile(c.nodes[1], func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(large))
		for sent := 0; sent < large; sent += len(content) {
			if _, err := w.Write(content); err != nil {
				return
			}
		}
	})
	a.window = 10 * time.Millisecond
	if try(large, "&rate=1000000000000000"); testutil.ToFloat64(c.nodes[0].metrics.asked.WithLabelValues(slow)) != 1 {
		t.Error("a peer is fast enough that sends less than a petabyte a second")
	}
}

// What counts is the time in which nothing else is done than to wait for the peer.
func TestTimed(t *testing.T) {
	const rate = 6 * leastRate
	for what, tc := range map[string]struct {
		read, written time.Duration // for what comes in a tenth of a second at the rate
		others        int           // layers
		slow          int64         // after how many reads; 0 for never
		behind        bool          // for longer than a window
	}{
		"as fast":                 {read: 100 * time.Millisecond},
		"slower":                  {read: 160 * time.Millisecond, behind: true},
		"half as fast":            {read: 201 * time.Millisecond, slow: 3, behind: true},
		"stalled":                 {read: time.Hour, slow: 1, behind: true},
		"has a third":             {read: 299 * time.Millisecond, others: 2},
		"has half of that":        {read: 401 * time.Millisecond, others: 2, behind: true},
		"has less than that":      {read: 601 * time.Millisecond, others: 2, slow: 1, behind: true},
		"CRI-O is slow":           {read: 50 * time.Millisecond, written: time.Hour},
		"CRI-O is slow, and this": {read: 300 * time.Millisecond, written: time.Hour, slow: 2, behind: true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads, slow atomic.Int64
				a := &Asker{window: 500 * time.Millisecond, fetching: make(chan struct{}, maxFetching)}
				for range tc.others + 1 {
					a.fetching <- struct{}{}
				}
				out := &checked{wanted: wanted{rate: rate}}
				r := a.timed(readerFunc(func([]byte) (int, error) {
					reads.Add(1)
					time.Sleep(tc.read)
					return rate / 10, nil
				}), out, func() { slow.CompareAndSwap(0, reads.Load()) })
				for range 100 {
					_, _ = r.Read(nil)
					time.Sleep(tc.written)
				}
				if slow.Load() != tc.slow || (out.behind > a.window) != tc.behind {
					t.Errorf("slow at read %d, want %d; behind for %s", slow.Load(), tc.slow, out.behind)
				}
			})
		})
	}
}

// A peer because of which CRI-O gives up is left alone, another one is not.
func TestGivenUp(t *testing.T) {
	for behind, window := range map[bool]time.Duration{true: time.Nanosecond, false: time.Minute} {
		c := newCluster(t, 2)
		a := c.nodes[0].asker
		content, layer := c.layer(c.nodes[1])
		ctx, cancel := context.WithCancel(t.Context())
		_, err := a.fetch(ctx, wanted{layer, size, 1 << 60, content[:HeadBytes]}, writerFunc(func(p []byte) (int, error) {
			a.window = window
			cancel()
			return 0, io.ErrClosedPipe
		}))
		if !errors.Is(err, context.Canceled) || (len(a.candidates(layer)) == 0) != behind {
			t.Errorf("behind for longer than %s: %v, left alone %v", window, err, a.pauses)
		}
	}
}

// The socket for CRI-O.
func TestLocal(t *testing.T) {
	c := newCluster(t, 2)
	content, layer := c.layer(c.nodes[1])
	path := filepath.Join(t.TempDir(), "s")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.nodes[0].asker.ServeLocal(ctx, listener) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	post := func(path string, body []byte) (int, []byte, error) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent"+path, bytes.NewReader(body))
		must(t, err)
		answer, err := client.Do(r)
		must(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return answer.StatusCode, text, err
	}
	none := "sha256:" + strings.Repeat("0", 64)
	all := strings.Repeat(layer+"\n", maxHeld) // more than net/http reads after an answer has begun
	if code, text, err := post("/held", []byte(all)); code != http.StatusOK || string(text) != all || err != nil {
		t.Errorf("held: status %d, %d bytes of %d, %v", code, len(text), len(all), err)
	}
	if code, text, err := post("/held", []byte(none+"\n"+layer+"\nx\n")); code != http.StatusOK || string(text) != layer+"\n" || err != nil {
		t.Errorf("held: %d %q %v", code, text, err)
	}
	whole := fmt.Sprintf("/layers/%s?size=%d", layer, size)
	if code, text, err := post(whole, content[:HeadBytes]); code != http.StatusOK || !bytes.Equal(text, content) || err != nil {
		t.Errorf("layer: %d, %d bytes, %v", code, len(text), err)
	}
	for what, try := range map[string]struct {
		path string
		head []byte
		code int
	}{
		"a guess":           {whole, make([]byte, HeadBytes), http.StatusNotFound},
		"too little":        {whole, content[:HeadBytes-1], http.StatusBadRequest},
		"too much":          {whole, content, http.StatusBadRequest},
		"no rate":           {whole + "&rate=x", content[:HeadBytes], http.StatusBadRequest},
		"no size":           {"/layers/" + layer, content[:HeadBytes], http.StatusBadRequest},
		"no digest":         {"/layers/x?size=1000000", content[:HeadBytes], http.StatusBadRequest},
		"nobody's":          {fmt.Sprintf("/layers/%s?size=%d", none, size), content[:HeadBytes], http.StatusNotFound},
		"another size":      {fmt.Sprintf("/layers/%s?size=%d", layer, size+1), content[:HeadBytes], http.StatusNotFound},
		"something unknown": {"/x", nil, http.StatusNotFound},
	} {
		if code, text, err := post(try.path, try.head); code != try.code || err != nil {
			t.Errorf("%s: %d %.100q %v", what, code, text, err)
		}
	}
	// What is wrong does not end as if it were right.
	c.hostile(c.nodes[1], func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.Write(make([]byte, size))
	})
	c.nodes[0].asker.pauses = map[string]pause{}
	if code, text, err := post(whole, content[:HeadBytes]); code != http.StatusOK || len(text) >= size || err == nil {
		t.Errorf("something else: %d, %d bytes, %v", code, len(text), err)
	}
	cancel()
	must(t, <-ended)
}

// Peers of the same zone are asked before all others, none of them always first.
func TestZones(t *testing.T) {
	c := newCluster(t, 7)
	_, layer := c.layer(c.nodes[1:]...)
	index, zones, first := c.nodes[0].index, []string{"a", "b", "a", "", "a", "a", "b"}, map[string]bool{}
	for n, node := range c.nodes {
		o := node.object()
		o.Spec.Peer.Zone = zones[n]
		must(t, index.Update(o))
	}
	for range 1000 {
		found := index.of(layer)
		for n, p := range found {
			if (p.zone == "a") != (n < 3) {
				t.Fatalf("place %d has %s, of zone %q", n, p.name, p.zone)
			}
		}
		first[found[0].name] = true
	}
	if len(first) != 3 {
		t.Errorf("first are %v", first)
	}
}

func TestIndex(t *testing.T) {
	c := newCluster(t, 3)
	_, layer := c.layer(c.nodes[1], c.nodes[2])
	index := c.nodes[0].index
	holders := func() string {
		var names []string
		for _, p := range index.of(layer) {
			names = append(names, p.name)
		}
		if len(names) == 2 && names[0] > names[1] {
			names[0], names[1] = names[1], names[0]
		}
		return strings.Join(names, " ")
	}
	want := func(what, names string) {
		t.Helper()
		if got := holders(); got != names {
			t.Errorf("%s: %q, want %q", what, got, names)
		}
	}
	want("at first", "n1 n2")
	c.nodes[0].layers = c.nodes[1].layers
	c.publish()
	want("this node has it as well", "n1 n2")
	must(t, index.Replace([]any{c.nodes[1].object()}, ""))
	want("n2 is gone", "n1")
	without := c.nodes[1].object()
	without.Spec.Peer = nil
	must(t, index.Update(without))
	want("n1 serves no more", "")
	if len(index.peers)+len(index.keys)+len(index.holders) > 0 {
		t.Errorf("left: %v %v %v", index.peers, index.keys, index.holders)
	}
	// Who writes the same time again is not alive.
	object := c.nodes[1].object()
	must(t, index.Add(object))
	now := time.Now()
	index.now = func() time.Time { return now.Add(29 * time.Minute) }
	must(t, index.Update(object.DeepCopy()))
	want("almost silent", "n1")
	index.now = func() time.Time { return now.Add(31 * time.Minute) }
	want("silent", "")
	must(t, index.Update(c.nodes[1].object()))
	want("renewed", "n1")
	for what, change := range map[string]func(*v1alpha1.NodeLayersSpec){
		"a name as address": func(s *v1alpha1.NodeLayersSpec) { s.Peer.Address = "metadata.internal:80" },
		"no key":            func(s *v1alpha1.NodeLayersSpec) { s.Peer.Keys = nil },
		"three keys": func(s *v1alpha1.NodeLayersSpec) {
			s.Peer.Keys = []string{s.Peer.Keys[0], s.Peer.Keys[0], s.Peer.Keys[0]}
		},
		"something else": func(s *v1alpha1.NodeLayersSpec) { s.Peer.Keys = []string{"x"} },
	} {
		object := c.nodes[1].object()
		change(&object.Spec)
		must(t, index.Update(object))
		want(what, "")
	}
	// Nobody takes over the key of another.
	must(t, index.Update(c.nodes[1].object()))
	thief := c.nodes[2].object()
	thief.Spec.Peer.Keys = c.nodes[1].identity.Keys()
	must(t, index.Update(thief))
	if node := index.nodeOf(c.nodes[1].identity.Keys()[0]); node != "n1" {
		t.Errorf("the key is of %q", node)
	}
}
