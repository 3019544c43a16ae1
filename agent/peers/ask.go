package peers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	// maxPeers is how many peers are asked for one layer.
	maxPeers = 3
	// maxFetching is how many layers are on their way.
	maxFetching = 16
	// connectTime is what a peer has to accept a connection, answerTime to begin to send, and window is
	// over which its rate is seen: CRI-O waits for two seconds, and half of one is left for the next peer.
	connectTime, answerTime, window = 500 * time.Millisecond, 500 * time.Millisecond, 500 * time.Millisecond
	// trial is what a peer has to send before any of it is passed on: one that fails by then costs
	// nothing but time, as the next one begins anew.
	trial = 1 << 20
	// firstPause and lastPause are for how long a peer that failed is left alone: lastPause one that
	// ended after its trial. wrongPause is for one that sent something else.
	firstPause, lastPause, wrongPause = 5 * time.Second, 5 * time.Minute, time.Hour
	// maxHeld is how many layers may be asked about at once.
	maxHeld = v1alpha1.MaxLayers
)

// Asker asks peers for layers.
type Asker struct {
	identity *Identity
	index    *Index
	metrics  *metrics
	events   *Events
	connect  time.Duration
	answer   time.Duration
	window   time.Duration
	fetching chan struct{}

	mu     sync.Mutex
	pauses map[string]pause // by name of a node
}

type pause struct {
	until  time.Time
	length time.Duration
}

// NewAsker returns one.
func NewAsker(identity *Identity, index *Index, m *metrics, events *Events) *Asker {
	return &Asker{
		identity: identity, index: index, metrics: m, events: events, connect: connectTime, answer: answerTime, window: window,
		fetching: make(chan struct{}, maxFetching), pauses: map[string]pause{},
	}
}

// Handler serves CRI-O of this node: POST /held answers a list of digests with those that peers seem to
// have; POST /layers/<digest>?size=<bytes>&rate=<bytes>, with the head of the layer, answers with the layer. All
// layers on their way shall come in so many bytes a second.
func (a *Asker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /held", a.held)
	mux.HandleFunc("POST /layers/{digest}", a.layer)
	return mux
}

// ServeLocal serves it until the context is done.
func (a *Asker) ServeLocal(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: a.Handler(), ReadTimeout: handshakeTime, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.Serve(listener)
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (a *Asker) held(w http.ResponseWriter, r *http.Request) {
	// Read as a whole: once an answer has begun, net/http may throw away the rest of a question.
	question, err := io.ReadAll(io.LimitReader(r.Body, maxHeld*100))
	if err != nil {
		http.Error(w, "want digests, one a line", http.StatusBadRequest)
		return
	}
	asked := 0
	for line := range strings.Lines(string(question)) {
		if asked++; asked > maxHeld {
			return
		}
		if layer := strings.TrimSpace(line); len(a.candidates(layer)) > 0 {
			fmt.Fprintln(w, layer)
		}
	}
}

func (a *Asker) layer(w http.ResponseWriter, r *http.Request) {
	layer := r.PathValue("digest")
	size, err := strconv.ParseInt(r.FormValue("size"), 10, 64)
	rate, rateErr := strconv.ParseInt(cmp.Or(r.FormValue("rate"), "0"), 10, 64)
	head, readErr := io.ReadAll(io.LimitReader(r.Body, HeadBytes+1))
	_, known := digestOf(layer)
	if err := errors.Join(err, rateErr, readErr); err != nil || !known || !v1alpha1.IsDigest(layer) ||
		size <= HeadBytes || size > v1alpha1.MaxLayerBytes || len(head) != HeadBytes {
		http.Error(w, "want a digest of sha256, its size, its head, and perhaps a rate", http.StatusBadRequest)
		return
	}
	select {
	case a.fetching <- struct{}{}:
		defer func() { <-a.fetching }()
	default:
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	sent, err := a.fetch(r.Context(), wanted{layer, size, rate, head}, w)
	switch {
	case err == nil:
	case sent > 0:
		panic(http.ErrAbortHandler) // the end does not come
	default:
		w.Header().Del("Content-Length")
		http.Error(w, err.Error(), http.StatusNotFound)
	}
}

// candidates returns the peers to ask for a layer, in this order.
func (a *Asker) candidates(layer string) []*peer {
	now := a.index.now()
	peers := a.index.of(layer)
	a.mu.Lock()
	defer a.mu.Unlock()
	peers = slices.DeleteFunc(peers, func(p *peer) bool { return now.Before(a.pauses[p.name].until) })
	return peers[:min(len(peers), maxPeers)]
}

// wanted is a layer that CRI-O wants.
type wanted struct {
	layer string
	size  int64
	rate  int64 // bytes a second of all layers on their way, at least
	head  []byte
}

// fetch writes a layer that one peer sends: so it is known who sent something else. The end is written
// once all is known to be right.
func (a *Asker) fetch(ctx context.Context, want wanted, to io.Writer) (sent int64, err error) {
	out := &checked{wanted: want, to: to}
	for _, p := range a.candidates(want.layer) {
		out.begin()
		err = a.from(ctx, p, out)
		a.metrics.received.Add(float64(out.written))
		if ctx.Err() != nil || out.err != nil { // CRI-O wants no more
			if out.behind > a.window { // and that is why
				a.metrics.asked.WithLabelValues(slow).Inc()
				a.failed(p, lastPause)
			}
			return out.passed, errors.Join(ctx.Err(), out.err)
		}
		a.metrics.asked.WithLabelValues(resultOf(err)).Inc()
		if err == nil {
			a.succeeded(p)
			return out.passed, out.finish()
		}
		klog.FromContext(ctx).V(2).Info("A peer did not send a layer", "node", p.name, "layer", want.layer, "offset", out.written, "err", err)
		switch {
		case errors.Is(err, errAbsent), errors.Is(err, errBusy):
		case errors.Is(err, errWrong):
			a.failed(p, wrongPause)
			klog.FromContext(ctx).Error(err, "A peer is left alone", "node", p.name, "layer", want.layer, "for", wrongPause)
			go a.events.wrong(context.WithoutCancel(ctx), p.name, want.layer)
		case out.passed > 0:
			a.failed(p, lastPause)
		default:
			a.failed(p, 0)
		}
		if out.passed > 0 {
			break
		}
	}
	return out.passed, fmt.Errorf("no peer sent the layer: %w", cmp.Or(err, errNone))
}

var (
	errNone   = errors.New("none is known that has it")
	errAbsent = errors.New("it does not have the layer, or not for this node")
	errBusy   = errors.New("it is busy")
	errSlow   = errors.New("it is too slow")
	errWrong  = errors.New("it sent something else")
)

// from writes what a peer sends as a layer.
func (a *Asker) from(ctx context.Context, p *peer, out *checked) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: a.connect},
		Config:    a.identity.config(func(key string) bool { return slices.Contains(p.keys, key) && a.index.nodeOf(key) == p.name }),
	}
	limit, stop := context.WithTimeout(ctx, a.connect)
	defer stop()
	conn, err := dialer.DialContext(limit, "tcp", p.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState()
	code, err := proof(&state, out.head)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DialTLSContext:    func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: a.answer, MaxResponseHeaderBytes: 8 << 10,
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.address+"/v2/layers/blobs/"+out.layer, nil)
	if err != nil {
		return err
	}
	request.Header.Set(proofHeader, base64.StdEncoding.EncodeToString(code))
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return errAbsent
	case answer.StatusCode == http.StatusServiceUnavailable:
		return errBusy
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %s", answer.Status)
	case answer.ContentLength != out.size:
		return fmt.Errorf("it announces %d bytes instead of %d", answer.ContentLength, out.size)
	}
	_, err = io.Copy(out, a.timed(answer.Body, out, func() { cancel(errSlow) }))
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err == nil && !out.right() {
		err = errWrong
	}
	return err
}

// timed reads what a peer sends, and calls slow once it waited for a window in which less came than half of
// the peer's share. While CRI-O is slow to take it, nobody waits for the peer.
func (a *Asker) timed(from io.Reader, out *checked, slow func()) io.Reader {
	var (
		waited time.Duration
		came   int64
	)
	timer := time.AfterFunc(math.MaxInt64, slow)
	return readerFunc(func(b []byte) (int, error) {
		began := time.Now()
		timer.Reset(a.window - waited)
		n, err := from.Read(b)
		timer.Stop()
		passed := time.Since(began)
		share := float64(max(out.rate, leastRate)) / float64(max(1, len(a.fetching))) // of each layer that is on its way
		out.behind = max(0, out.behind+passed-time.Duration(float64(n)/share*float64(time.Second)))
		waited += passed
		// Half, as some may be slow while others are fast.
		if came += int64(n); float64(came) >= share/2*a.window.Seconds() {
			waited, came = 0, 0
		}
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// checked passes on what a peer sends, but for the end, and nothing before it has sent enough.
type checked struct {
	wanted

	to      io.Writer
	sum     hash.Hash
	written int64  // by this peer
	held    []byte // of that, what is not passed on
	passed  int64
	err     error         // of to
	behind  time.Duration // this peer, what it was ahead does not count
}

// begin forgets what another peer sent.
func (c *checked) begin() { c.sum, c.written, c.held, c.behind = sha256.New(), 0, c.held[:0], 0 }

func (c *checked) Write(p []byte) (int, error) {
	if int64(len(p)) > c.size-c.written {
		return 0, errors.New("it sends more than the layer")
	}
	c.sum.Write(p)
	c.written += int64(len(p))
	c.held = append(c.held, p...)
	if c.written <= trial || c.written == c.size {
		return len(p), nil
	}
	return len(p), c.finish()
}

// right reports whether all of the layer came.
func (c *checked) right() bool { return "sha256:"+hex.EncodeToString(c.sum.Sum(nil)) == c.layer }

// finish passes on what is held.
func (c *checked) finish() error {
	n, err := c.to.Write(c.held)
	c.passed += int64(n)
	c.held, c.err = c.held[:0], err
	return err
}

// failed leaves a peer alone, for twice as long each time in a row, at least as long as least, and as an
// earlier failure said.
func (a *Asker) failed(p *peer, least time.Duration) {
	now := a.index.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, old := range a.pauses { // nodes come and go
		if now.Sub(old.until) > lastPause {
			delete(a.pauses, name)
		}
	}
	old := a.pauses[p.name]
	length := min(max(2*old.length, firstPause), lastPause)
	until := now.Add(max(length, least))
	if old.until.After(until) {
		until = old.until
	}
	a.pauses[p.name] = pause{until, length}
}

func (a *Asker) succeeded(p *peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.index.now().Before(a.pauses[p.name].until) {
		delete(a.pauses, p.name)
	}
}
