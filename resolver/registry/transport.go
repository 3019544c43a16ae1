package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	// maxBody is how many bytes of an answer are read; registries take no larger
	// manifests (distribution specification).
	maxBody = 4 << 20
	// maxRedirects bounds the redirects that are followed.
	maxRedirects = 3
	// maxRetryAfter is the longest wait that a registry can ask for.
	maxRetryAfter = time.Hour
	// maxHosts limits the number of hosts whose request rate is remembered.
	maxHosts = 1024
	// maxLabels bounds the registries in metrics; others are counted together. If the
	// policy allows any registry, whoever creates pods chooses the names.
	maxLabels = 256
)

var errTooLarge = errors.New("answer too large")

type kind int

const (
	kindPing kind = iota
	kindToken
	kindManifest
)

// exchange is one request and its redirects. It travels in the context, because
// go-containerregistry makes some of the requests itself.
type exchange struct {
	source    *source
	kind      kind
	anonymous bool
	// scheme and host are those that authorization is for.
	scheme, host  string
	authorization string

	// Host of the last hop, and what it answered. Atomic, because a ping may try two
	// schemes at once.
	last       atomic.Pointer[string]
	code       atomic.Int64
	retryAfter atomic.Int64
}

type exchangeKey struct{}

// subject names the host that was asked.
func (x *exchange) subject() string {
	name := "registry " + x.source.domain
	if x.kind == kindToken {
		name = fmt.Sprintf("token server %s of registry %s", x.host, x.source.domain)
	}
	if last := x.last.Load(); last != nil && *last != x.host {
		name += fmt.Sprintf(" (redirected to %s)", *last)
	}
	return name
}

// lastHost is the host contacted last.
func (x *exchange) lastHost() string {
	if last := x.last.Load(); last != nil && *last != x.host {
		return *last
	}
	if x.kind == kindToken {
		return x.host
	}
	return x.source.domain
}

// transport makes every request of a Client, and enforces the rules for each
// hop.
type transport struct {
	// verified accepts certificates of known CAs, unverified accepts any.
	verified, unverified *http.Transport
	dialer               *net.Dialer
	userAgent            string
	timeout              time.Duration

	limit    rate.Limit
	burst    int
	mu       sync.Mutex
	limiters *lru.Cache // host: *rate.Limiter
	labels   map[string]bool

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newTransport(config Config) (*transport, error) {
	t := &transport{
		userAgent: cmp.Or(config.UserAgent, "layer-resolver"),
		timeout:   cmp.Or(config.Timeout, 10*time.Second),
		limit:     rate.Limit(cmp.Or(config.RequestsPerSecond, 20)),
		burst:     cmp.Or(config.Burst, 40),
		limiters:  lru.New(maxHosts),
		labels:    map[string]bool{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "layerlocality_resolver_registry_requests_total",
			Help: "HTTP requests sent for a registry, redirects and requests for tokens included, by status code; error if there was no answer.",
		}, []string{"registry", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "layerlocality_resolver_registry_request_duration_seconds",
			Help:    "Time from sending an HTTP request for a registry to the headers of the answer.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		}, []string{"registry"}),
	}
	if config.Registerer != nil {
		for _, collector := range []prometheus.Collector{t.requests, t.duration} {
			if err := config.Registerer.Register(collector); err != nil {
				return nil, err
			}
		}
	}
	t.dialer = &net.Dialer{
		Timeout: t.timeout,
		// Called with the address that is contacted, so the name is not looked up
		// again after the check.
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			addr, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return config.Policy.Address(addr.Addr())
		},
	}
	t.verified = newHTTPTransport(t.dialer, t.timeout, &tls.Config{MinVersion: tls.VersionTLS12})
	t.unverified = newHTTPTransport(t.dialer, t.timeout, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // only for registries that registries.conf marks insecure
	})
	return t, nil
}

func newHTTPTransport(dialer *net.Dialer, timeout time.Duration, config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                  nil, // see the package's documentation
		DialContext:            dialer.DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    timeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// Digests are computed over the bytes as sent, and a small answer must not
		// become a large one.
		DisableCompression: true,
	}
}

// within makes a request to a host. It first waits until the host may get a
// request, at most as long as the caller's context lasts. The time limit of the
// request begins after that wait.
func (t *transport) within(ctx context.Context, x *exchange, do func(context.Context) error) error {
	if err := t.wait(ctx, x.host); err != nil {
		return x.failure(err)
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, exchangeKey{}, x), t.timeout)
	defer cancel()
	if err := do(ctx); err != nil {
		return x.failure(err)
	}
	return nil
}

// wait returns when a request to the host may be sent.
func (t *transport) wait(ctx context.Context, host string) error {
	t.mu.Lock()
	limiter, ok := t.limiters.Get(host)
	if !ok {
		limiter = rate.NewLimiter(t.limit, t.burst)
		t.limiters.Add(host, limiter)
	}
	t.mu.Unlock()
	if err := limiter.(*rate.Limiter).Wait(ctx); err != nil {
		// If the deadline would pass while waiting, the limiter at once returns its
		// own error.
		return cmp.Or(ctx.Err(), context.DeadlineExceeded)
	}
	return nil
}

// RoundTrip makes one hop of a request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x := req.Context().Value(exchangeKey{}).(*exchange)
	if err := t.permit(x, req); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	host := req.URL.Host
	x.last.Store(&host)
	req = req.Clone(req.Context())
	req.Header.Set("User-Agent", t.userAgent)
	// Referer would tell the next host the address of the last one.
	req.Header.Del("Referer")
	if x.authorization != "" && req.URL.Scheme == x.scheme && req.URL.Host == x.host {
		req.Header.Set("Authorization", x.authorization)
	}
	base := t.verified
	if x.source.insecure {
		base = t.unverified
	}

	begin := time.Now()
	resp, err := base.RoundTrip(req)
	registry, code := t.label(x.source.domain), "error"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	t.requests.WithLabelValues(registry, req.Method, code).Inc()
	t.duration.WithLabelValues(registry).Observe(time.Since(begin).Seconds())
	if err != nil {
		return nil, err
	}
	x.code.Store(int64(resp.StatusCode))
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		x.retryAfter.Store(int64(retryAfter(resp.Header.Get("Retry-After"), time.Now())))
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxBody}
	return resp, nil
}

// permit returns why a hop may not be made, or nil if it may. A redirect waits
// until its host may get a request.
func (t *transport) permit(x *exchange, req *http.Request) error {
	if req.URL.Scheme != "https" && !x.source.insecure {
		return &refusal{v1alpha1.ReasonDenied, "would be asked by plain HTTP: set insecure in registries.conf if that is meant to be"}
	}
	if req.Response == nil {
		return nil
	}
	hops := 0
	for hop := req; hop.Response != nil; hop = hop.Response.Request {
		hops++
	}
	switch {
	case hops > maxRedirects:
		return &refusal{v1alpha1.ReasonUnavailable, fmt.Sprintf("redirected more than %d times", maxRedirects)}
	case req.Response.Request.URL.Scheme == "https" && req.URL.Scheme != "https":
		return &refusal{v1alpha1.ReasonDenied, "redirected from HTTPS to plain HTTP"}
	case req.Body != nil && req.Body != http.NoBody:
		// The body is a credential.
		return &refusal{v1alpha1.ReasonDenied, "redirected a request with a credential"}
	}
	return t.wait(req.Context(), req.URL.Host)
}

// label returns the name of a registry in metrics.
func (t *transport) label(registry string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.labels[registry] {
		if len(t.labels) == maxLabels {
			return "other"
		}
		t.labels[registry] = true
	}
	return registry
}

// boundedBody fails if an answer is longer than allowed.
type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	// One byte more than allowed shows that there is more.
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if n > b.left {
		n, err = b.left, errTooLarge
	}
	b.left -= n
	return n, err
}

// retryAfter returns the time that a Retry-After header asks for: seconds or a
// date.
func retryAfter(header string, now time.Time) time.Duration {
	header = strings.TrimSpace(header)
	var after time.Duration
	if seconds, err := strconv.ParseUint(header, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		after = time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	} else if date, err := http.ParseTime(header); err == nil {
		after = date.Sub(now)
	}
	return max(0, min(after, maxRetryAfter))
}
