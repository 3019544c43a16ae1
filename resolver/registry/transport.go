package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
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
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// Defaults of Config.
const (
	DefaultRequestsPerSecond = 20
	DefaultTimeout           = 10 * time.Second
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

var (
	errTooLarge = errors.New("answer too large")
	// errBusy: there were too many other large answers at the time.
	errBusy = errors.New("too many large answers")
)

// kind is what a request is for, as metrics name it.
type kind string

const (
	kindPing     kind = "ping" // asks how the registry authenticates
	kindToken    kind = "token"
	kindManifest kind = "manifest"
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
	// ownToken is set if authorization is a token that the credential has, and no token server gave.
	ownToken bool

	// The last hop, and what it answered. Atomic, because a ping may try two
	// schemes at once.
	last       atomic.Pointer[url.URL]
	code       atomic.Int64
	retryAfter atomic.Int64
	// unsent is set while the last request has not been sent, and not because there is no
	// connection.
	unsent atomic.Bool
}

type exchangeKey struct{}

// at reports whether a URL is on a host, given as host or host:port.
func at(u *url.URL, host string) bool { return withPort(u.Scheme, u.Host) == withPort(u.Scheme, host) }

// withPort adds the default port of a scheme to a host without a port.
func withPort(scheme, host string) string {
	host = strings.ToLower(host)
	if (&url.URL{Host: host}).Port() != "" {
		return host
	}
	if scheme == "http" {
		return host + ":80"
	}
	return host + ":443"
}

// subject names the host that was asked.
func (x *exchange) subject() string {
	name := "registry " + x.source.domain
	if x.kind == kindToken {
		name = fmt.Sprintf("token server %s of registry %s", x.host, x.source.domain)
	}
	if x.redirected() {
		name += fmt.Sprintf(" (redirected to %s)", x.last.Load().Host)
	}
	return name
}

// contact returns for whom a host is contacted.
func (x *exchange) contact(u *url.URL) policy.Contact {
	contact := policy.Contact{Registry: x.source.domain}
	own, err := x.source.registry()
	if err != nil || !at(u, own.RegistryStr()) {
		contact.Via = u.Host
	}
	return contact
}

// indirect reports whether the host contacted last is not the registry, which sent the
// request there.
func (x *exchange) indirect() bool { return x.contact(cmp.Or(x.last.Load(), x.first())).Via != "" }

// first is the host that the request was made to.
func (x *exchange) first() *url.URL { return &url.URL{Scheme: x.scheme, Host: x.host} }

// redirected reports whether the host contacted last is not the one that the request was made to.
func (x *exchange) redirected() bool {
	last := x.last.Load()
	return last != nil && !at(last, x.host)
}

// lastHost is the host contacted last.
func (x *exchange) lastHost() string {
	switch {
	case x.redirected():
		return x.last.Load().Host
	case x.kind == kindToken:
		return x.host
	}
	return x.source.domain
}

// transport makes every request of a Client, and enforces the rules for each
// hop.
type transport struct {
	*connector
	userAgent string
	timeout   time.Duration

	limit    rate.Limit
	burst    int
	mu       sync.Mutex
	limiters *lru.Cache // policy.Contact: *rate.Limiter
	labels   map[string]bool

	large *large

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newTransport(config Config) (*transport, error) {
	t := &transport{
		userAgent: cmp.Or(config.UserAgent, "layer-resolver"),
		timeout:   cmp.Or(config.Timeout, DefaultTimeout),
		limit:     rate.Limit(cmp.Or(config.RequestsPerSecond, DefaultRequestsPerSecond)),
		burst:     cmp.Or(config.Burst, 40),
		limiters:  lru.New(maxHosts),
		labels:    map[string]bool{},
		large:     newLarge(),
	}
	t.requests = prometheus.V2.NewCounterVec(prometheus.CounterVecOpts{
		CounterOpts: prometheus.CounterOpts{
			Name: "layerlocality_resolver_registry_requests_total",
			Help: "HTTP requests sent for a registry, redirects and requests for tokens included, by what they are for and status code; an unusual code is counted by its class (4xx) or as other; error if there was no answer.",
		},
		VariableLabels: prometheus.ConstrainedLabels{
			{Name: "registry", Constraint: t.label}, {Name: "request", Constraint: OneOf(string(kindPing), string(kindToken), string(kindManifest))},
			{Name: "method", Constraint: OneOf(http.MethodGet, http.MethodHead, http.MethodPost)}, {Name: "code", Constraint: codeLabel},
		},
	})
	t.duration = prometheus.V2.NewHistogramVec(prometheus.HistogramVecOpts{
		HistogramOpts: prometheus.HistogramOpts{
			Name:    "layerlocality_resolver_registry_request_duration_seconds",
			Help:    "Time from sending an HTTP request for a registry to the headers of the answer.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		},
		VariableLabels: prometheus.ConstrainedLabels{{Name: "registry", Constraint: t.label}},
	})
	if config.Registerer != nil {
		for _, collector := range []prometheus.Collector{t.requests, t.duration} {
			if err := config.Registerer.Register(collector); err != nil {
				return nil, err
			}
		}
	}
	// control checks the address that is contacted, so the name is not looked up again after
	// the check.
	control := func(allowed func(netip.Addr, policy.Contact) error) func(context.Context, string, string, syscall.RawConn) error {
		return func(ctx context.Context, _, address string, _ syscall.RawConn) error {
			addr, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			contact, _ := ctx.Value(contactKey{}).(policy.Contact)
			return allowed(addr.Addr(), contact)
		}
	}
	dialer := &net.Dialer{Timeout: t.timeout, ControlContext: control(config.Policy.Contact)}
	proxyDialer := &net.Dialer{Timeout: t.timeout, ControlContext: control(func(addr netip.Addr, _ policy.Contact) error { return config.Policy.Proxy(addr) })}
	var err error
	if t.connector, err = newConnector(config, t.timeout, dialer, proxyDialer); err != nil {
		return nil, err
	}
	return t, nil
}

// contactKey is the key of a policy.Contact in the context of a connection.
type contactKey struct{}

// within makes a request to a host. It first waits until the host may get a
// request, at most as long as the caller's context lasts. The time limit of the
// request begins after that wait.
func (t *transport) within(ctx context.Context, x *exchange, do func(context.Context) error) error {
	if err := t.wait(ctx, x, x.first()); err != nil {
		return x.failure(err)
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, exchangeKey{}, x), t.timeout)
	defer cancel()
	if err := do(ctx); err != nil {
		return x.failure(err)
	}
	return nil
}

// requestsKey is the key of what CountRequests returns.
type requestsKey struct{}

// CountRequests returns a context, and how many requests to registries were made with it.
func CountRequests(ctx context.Context) (context.Context, *atomic.Int64) {
	n := new(atomic.Int64)
	return context.WithValue(ctx, requestsKey{}, n), n
}

// wait returns when a request to the host may be sent. A host to which a registry sends
// requests has a rate of its own for that registry, or one registry could use up another's.
func (t *transport) wait(ctx context.Context, x *exchange, u *url.URL) error {
	whose := policy.Contact{Registry: policy.Canonical(u.Host)}
	if contact := x.contact(u); contact.Via != "" {
		whose = contact
	}
	t.mu.Lock()
	limiter, ok := t.limiters.Get(whose)
	if !ok {
		limiter = rate.NewLimiter(t.limit, t.burst)
		t.limiters.Add(whose, limiter)
	}
	t.mu.Unlock()
	if n, ok := ctx.Value(requestsKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
	if err := limiter.(*rate.Limiter).Wait(ctx); err != nil {
		// If the deadline would pass while waiting, the limiter at once returns its
		// own error.
		return cmp.Or(ctx.Err(), context.DeadlineExceeded)
	}
	return nil
}

// trace notes whether a request is sent.
func (x *exchange) trace() *httptrace.ClientTrace {
	x.unsent.Store(true)
	return &httptrace.ClientTrace{
		GetConn:      func(string) { x.unsent.Store(false) },
		GotConn:      func(httptrace.GotConnInfo) { x.unsent.Store(true) },
		WroteHeaders: func() { x.unsent.Store(false) },
	}
}

// other stands in metrics for all values of a label that have none of their own.
const other = "other"

// OneOf returns the constraint of a label to these values: all others are counted as other.
func OneOf(values ...string) prometheus.LabelConstraint {
	return func(value string) string {
		if slices.Contains(values, value) {
			return value
		}
		return other
	}
}

// noAnswer is the code of a request that nobody answered.
const noAnswer = "error"

// codeLabel returns a status code for metrics: itself if registries use it, else its class. Over HTTP/2
// a code can be any number.
func codeLabel(text string) string {
	if text == noAnswer {
		return text
	}
	code, err := strconv.Atoi(text)
	if err != nil {
		return other
	}
	switch code {
	case http.StatusOK, http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
		http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return text
	}
	if class := code / 100; class >= 1 && class <= 5 {
		return strconv.Itoa(class) + "xx"
	}
	return other
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
	x.last.Store(req.URL)
	contact := x.contact(req.URL)
	req = req.Clone(context.WithValue(req.Context(), contactKey{}, contact))
	req.Header.Set("User-Agent", t.userAgent)
	// Referer would show the next host the address of the last one.
	req.Header.Del("Referer")
	if x.authorization != "" && req.URL.Scheme == x.scheme && at(req.URL, x.host) {
		req.Header.Set("Authorization", x.authorization)
	}
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), x.trace()))
	begin := time.Now()
	resp, err := t.connections(req.Context()).through(x, contact).RoundTrip(req)
	code := noAnswer
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	t.requests.WithLabelValues(x.source.domain, string(x.kind), req.Method, code).Inc()
	t.duration.WithLabelValues(x.source.domain).Observe(time.Since(begin).Seconds())
	if err != nil {
		return nil, err
	}
	x.code.Store(int64(resp.StatusCode))
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		x.retryAfter.Store(int64(retryAfter(resp.Header.Get("Retry-After"), time.Now())))
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxBody, small: smallBody, reserve: func() (func(), error) {
		return t.large.reserve(req.Context(), x.source.domain)
	}}
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
	return t.wait(req.Context(), x, req.URL)
}

// label returns the name of a registry in metrics.
func (t *transport) label(registry string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.labels[registry] {
		if len(t.labels) == maxLabels {
			return other
		}
		t.labels[registry] = true
	}
	return registry
}

// boundedBody fails if an answer is longer than allowed. What is longer than most waits
// until it may be read.
type boundedBody struct {
	io.ReadCloser
	left int
	// small is how much more may be read without a reservation.
	small   int
	reserve func() (release func(), err error)
	release func()
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.small == 0 && b.release == nil && b.reserve != nil {
		release, err := b.reserve()
		if err != nil {
			return 0, errors.Join(errBusy, err)
		}
		b.release = release
	}
	// One byte more than allowed shows that there is more.
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	if b.release == nil && b.reserve != nil && len(p) > b.small {
		p = p[:b.small]
	}
	n, err := b.ReadCloser.Read(p)
	b.small -= min(n, b.small)
	if n > b.left {
		n, err = b.left, errTooLarge
	}
	b.left -= n
	return n, err
}

// Close ends the reservation: what was read has been used, or soon is.
func (b *boundedBody) Close() error {
	if b.release != nil {
		b.release()
		b.release = func() {}
	}
	return b.ReadCloser.Close()
}

// unixTime is the smallest number of seconds that counts as a point in time, and not as a wait: as a wait, it would be
// thirty years.
const unixTime = 1_000_000_000

// retryAfter returns the wait that a Retry-After header asks for: seconds or a date, as RFC 9110 has them, seconds since
// 1970 (Docker Hub), or a duration such as 441.9µs (ghcr.io).
func retryAfter(header string, now time.Time) time.Duration {
	header = strings.TrimSpace(header)
	var after time.Duration
	if seconds, err := strconv.ParseFloat(header, 64); !math.IsNaN(seconds) && (err == nil || errors.Is(err, strconv.ErrRange)) {
		if seconds >= unixTime {
			seconds -= float64(now.Unix())
		}
		after = time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
	} else if date, err := http.ParseTime(header); err == nil {
		after = date.Sub(now)
	} else if wait, err := time.ParseDuration(header); err == nil {
		after = wait
	}
	return max(0, min(after, maxRetryAfter))
}
