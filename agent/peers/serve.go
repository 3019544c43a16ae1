package peers

import (
	"context"
	"crypto/hmac"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	// proofHeader has the proof that the head of the layer is known.
	proofHeader = "Layer-Proof"

	// maxSending is how many layers are sent at a time, maxOfNode how many of them to one node, and
	// maxConnections how many connections there are.
	maxSending, maxOfNode, maxConnections = 8, 3, 64
	// handshakeTime is what a peer has to connect and to ask.
	handshakeTime = 5 * time.Second
	// leastRate, in bytes a second, is where a connection is given up.
	leastRate = 2 << 20
	// LeastBytes a second let all that are sent at a time reach leastRate.
	LeastBytes = maxSending * leastRate
)

// Server serves the layers in a folder to peers.
type Server struct {
	identity *Identity
	index    *Index
	folder   *os.Root
	rate     *rate.Limiter
	metrics  *metrics
	patience time.Duration // with who connects

	mu      sync.Mutex
	sending map[string]int // by node
	all     int
}

// NewServer returns a server of the layers in a folder that sends no more bytes a second.
func NewServer(identity *Identity, index *Index, folder string, bytes int, m *metrics) (*Server, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	return &Server{
		identity: identity, index: index, folder: root, rate: rate.NewLimiter(rate.Limit(bytes), max(bytes/4, maxRead)), metrics: m,
		patience: handshakeTime, sending: map[string]int{},
	}, nil
}

// Serve serves until the context is done.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	config := s.identity.config(func(key string) bool { return s.index.nodeOf(key) != "" })
	config.NextProtos = []string{"http/1.1"}
	server := &http.Server{
		Handler: s, TLSConfig: config, ReadHeaderTimeout: s.patience, ReadTimeout: s.patience, IdleTimeout: s.patience,
		MaxHeaderBytes: 8 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: log.New(quiet{}, "", 0), DisableGeneralOptionsHandler: true, //nolint:forbidigo // it prints nothing
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.ServeTLS(&bounded{Listener: listener, places: make(chan struct{}, maxConnections)}, "", "")
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeHTTP answers GET and HEAD of /v2/<name>/blobs/<digest>, whatever the name. A layer that is not
// there and one that the peer may not have look the same.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result := s.serve(w, r)
	s.metrics.served.WithLabelValues(result).Inc()
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) (result string) {
	path, isBlob := strings.CutPrefix(r.URL.Path, "/v2/")
	at := strings.LastIndex(path, "/blobs/")
	if !isBlob || at < 1 || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return invalid
	}
	layer := path[at+len("/blobs/"):]
	// Asked again: a connection may last longer than the NodeLayers.
	node := s.index.nodeOf(fingerprint(r.TLS.PeerCertificates[0]))
	if encoded, ok := strings.CutPrefix(layer, "sha256:"); !ok || !v1alpha1.IsDigest(layer) || node == "" {
		http.NotFound(w, r)
		return invalid
	} else if !s.begin(node) {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return busy
	} else {
		defer s.end(node)
		return s.send(w, r, layer, encoded)
	}
}

func (s *Server) send(w http.ResponseWriter, r *http.Request, layer, name string) (result string) {
	file, size, err := s.open(name)
	if err != nil {
		http.NotFound(w, r)
		return absent
	}
	defer file.Close()
	if !known(r.TLS, r.Header.Get(proofHeader), file, size) {
		http.NotFound(w, r)
		return unproven
	}
	limit := s.patience + time.Duration(size/leastRate)*time.Second
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Docker-Content-Digest", layer)
	content := &limited{file: file, ctx: r.Context(), rate: s.rate, sent: s.metrics.sent.Add}
	http.ServeContent(w, r, "", time.Time{}, content)
	if content.err != nil {
		return failed
	}
	return done
}

// open opens a layer. It may be deleted while it is sent.
func (s *Server) open(name string) (file *os.File, size int64, err error) {
	if file, err = s.folder.Open(name); err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("no regular file")
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// known reports whether who asks on a connection knows the head of the layer.
func known(state *tls.ConnectionState, text string, file io.ReaderAt, size int64) bool {
	shown, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	head := make([]byte, min(size, HeadBytes))
	if n, err := file.ReadAt(head, 0); n < len(head) && err != nil {
		return false
	}
	want, err := proof(state, head)
	return err == nil && hmac.Equal(shown, want)
}

func (s *Server) begin(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxSending || s.sending[node] >= maxOfNode {
		return false
	}
	s.all++
	s.sending[node]++
	return true
}

func (s *Server) end(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.sending[node]--; s.sending[node] == 0 {
		delete(s.sending, node)
	}
}

// quiet logs what anybody can bring about who reaches the port.
type quiet struct{}

func (quiet) Write(line []byte) (int, error) {
	klog.V(3).Info(strings.TrimSpace(string(line)))
	return len(line), nil
}

// maxRead is what is sent at a time.
const maxRead = 32 << 10

// limited reads a file as fast as all that is sent may be.
type limited struct {
	file io.ReadSeeker
	ctx  context.Context
	rate *rate.Limiter
	sent func(float64)
	err  error
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.file.Read(p[:min(len(p), maxRead)])
	if n > 0 {
		if waited := l.rate.WaitN(l.ctx, n); waited != nil {
			l.err = waited
			return 0, waited
		}
		l.sent(float64(n))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		l.err = err
	}
	return n, err
}

func (l *limited) Seek(offset int64, whence int) (int64, error) { return l.file.Seek(offset, whence) }

// bounded accepts as many connections as there are places.
type bounded struct {
	net.Listener
	places chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	b.places <- struct{}{}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &placed{Conn: conn, free: sync.OnceFunc(func() { <-b.places })}, nil
}

type placed struct {
	net.Conn
	free func()
}

func (p *placed) Close() error {
	p.free()
	return p.Conn.Close()
}
