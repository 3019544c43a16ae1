// Package prometheus has what nodes use from a Prometheus server that scrapes the resource
// metrics of kubelets (/metrics/resource). It asks once a minute for each statistic of all
// nodes, never for a single pod.
package prometheus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/usage"
)

const (
	// Interval is how often Prometheus is asked.
	Interval = time.Minute
	// MaxAge is how long an answer counts if no other comes.
	MaxAge = 5 * time.Minute
	// defaultTimeout is how long an answer may take.
	defaultTimeout = 10 * time.Second
	// maxAnswer is how many bytes an answer may have: 300 for each of 50,000 nodes.
	maxAnswer = 16 << 20
)

// The windows over which statistics may be computed.
const (
	MinWindow = 30 * time.Second
	MaxWindow = 7 * 24 * time.Hour
)

// Queries are the default queries by statistic: cores and bytes that are used. In them,
// $window is the window, $rate a third and $step a fifteenth of it. What was not measured in
// the last two minutes has no statistics: kubelets state when they measured, so Prometheus
// does not notice by itself that one is away. The deviation of CPU is that of its rate: that
// of the counter grows with time.
func Queries() map[string]string {
	return map[string]string{
		"cpu-mean":         `rate(node_cpu_usage_seconds_total[$window]) and (time() - timestamp(node_cpu_usage_seconds_total) < 120)`,
		"cpu-deviation":    `stddev_over_time(rate(node_cpu_usage_seconds_total[$rate])[$window:$step])`,
		"memory-mean":      `avg_over_time(node_memory_working_set_bytes[$window]) and (time() - timestamp(node_memory_working_set_bytes) < 120)`,
		"memory-deviation": `stddev_over_time(node_memory_working_set_bytes[$window])`,
		"cpu-forecast":     "",
		"memory-forecast":  "",
	}
}

// Config has what to ask, and whom.
type Config struct {
	// Address is the URL of Prometheus.
	Address string
	// Window is the time over which statistics are computed.
	Window time.Duration
	// NodeLabel is the label of a series with the name of the node.
	NodeLabel string
	// Queries replace those of Queries.
	Queries map[string]string
	// TokenFile has the bearer token to send, CAFile the authorities of the server's
	// certificate; empty: none, those of the system.
	TokenFile, CAFile string
	// Timeout is how long an answer may take; 0 means ten seconds.
	Timeout time.Duration
	// Clock is for when to ask and how old answers are; nil means the real one.
	Clock clock.WithTicker
}

// Source is a usage.Source.
type Source struct {
	client  prometheusv1.API
	queries map[string]string
	label   model.LabelName
	timeout time.Duration
	clock   clock.WithTicker
	// known has the last answers, by statistic.
	known map[string]*atomic.Pointer[answer]
	// answers counts those that were taken over.
	answers atomic.Uint64
	// failed has the statistics whose last query failed. Only Update uses it.
	failed map[string]bool
}

// answer is what a query found, by node.
type answer struct {
	at     time.Time
	values map[string]float64
}

var register sync.Once

var queries = metrics.NewCounterVec(&metrics.CounterOpts{
	Namespace: "layer_extender", Name: "prometheus_queries_total", StabilityLevel: metrics.ALPHA,
	Help: "Queries to Prometheus, by statistic and by what came: values of nodes (success), no series with the label of nodes (empty), an error (error).",
}, []string{"statistic", "result"})

// New returns a Source without statistics.
func New(c Config) (*Source, error) {
	address, err := url.Parse(c.Address)
	if err != nil || address.Scheme != "http" && address.Scheme != "https" || address.Host == "" {
		return nil, fmt.Errorf("the address of Prometheus, %q: want a URL such as http://prometheus.monitoring:9090", c.Address)
	}
	if c.Window < MinWindow || c.Window > MaxWindow {
		return nil, fmt.Errorf("the window %s: want %s to %s", c.Window, MinWindow, MaxWindow)
	}
	if !model.LegacyValidation.IsValidLabelName(c.NodeLabel) {
		return nil, fmt.Errorf("the label %q: want the name of a label, such as node", c.NodeLabel)
	}
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	settings := &rest.Config{Host: c.Address, TLSClientConfig: rest.TLSClientConfig{CAFile: c.CAFile}, Timeout: c.Timeout}
	if c.TokenFile != "" {
		// It reads the file again after a minute, and after an answer that the token is not valid.
		token := transport.NewCachedFileTokenSource(c.TokenFile)
		if _, err := token.Token(); err != nil {
			return nil, err
		}
		settings.WrapTransport = transport.ResettableTokenSourceWrapTransport(token)
	}
	client, err := rest.HTTPClientFor(settings)
	if err != nil {
		return nil, err
	}
	client.Transport = bounded{client.Transport}
	// The token is for the address, and not for whatever host that names.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	asked, err := api.NewClient(api.Config{Address: c.Address, Client: client})
	if err != nil {
		return nil, err
	}
	register.Do(func() { legacyregistry.MustRegister(queries) })
	s := &Source{
		client: prometheusv1.NewAPI(asked), queries: map[string]string{}, label: model.LabelName(c.NodeLabel), timeout: c.Timeout, clock: c.Clock,
		known: map[string]*atomic.Pointer[answer]{}, failed: map[string]bool{},
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	defaults := Queries()
	for name := range c.Queries {
		if _, ok := defaults[name]; !ok {
			return nil, fmt.Errorf("the query %q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(defaults)), ", "))
		}
	}
	maps.Copy(defaults, c.Queries)
	for name, query := range defaults {
		if query != "" {
			s.queries[name] = expand(query, c.Window)
			s.known[name] = &atomic.Pointer[answer]{}
			for _, result := range []string{success, empty, failure} { // begin at 0
				queries.WithLabelValues(name, result)
			}
		}
	}
	for _, name := range []string{"cpu-mean", "memory-mean"} {
		if s.queries[name] == "" {
			return nil, fmt.Errorf("the query %q is empty: without a mean there are no statistics", name)
		}
	}
	return s, nil
}

// expand puts times into a query.
func expand(query string, window time.Duration) string {
	in := func(d time.Duration) string {
		return model.Duration(max(d, time.Second).Truncate(time.Second)).String()
	}
	return strings.NewReplacer("$window", in(window), "$rate", in(window/3), "$step", in(window/15)).Replace(query)
}

// The results of queries, as the metric has them.
const (
	success = "success"
	empty   = "empty"
	failure = "error"
)

// Run asks from time to time, until the context is done.
func (s *Source) Run(ctx context.Context) {
	tick := s.clock.NewTicker(Interval)
	defer tick.Stop()
	for {
		s.Update(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
	}
}

// Update asks for every statistic once. What fails is logged when it begins to fail.
func (s *Source) Update(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(s.queries)) {
		values, err := s.ask(ctx, s.queries[name])
		result := success
		switch {
		case err != nil:
			result = failure
		case len(values) == 0:
			result = empty
			err = fmt.Errorf("no series has the label %s: set the label, or the query of this statistic", s.label)
		}
		if result != failure { // after an error, the last answer counts until it is too old
			s.known[name].Store(&answer{at: s.clock.Now(), values: values})
			s.answers.Add(1)
		}
		queries.WithLabelValues(name, result).Inc()
		if err != nil && !s.failed[name] && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Prometheus does not return what nodes use: they get no points, and pods go to them", "statistic", name, "query", s.queries[name])
		} else if err == nil && s.failed[name] {
			klog.FromContext(ctx).Info("Prometheus returns again what nodes use", "statistic", name, "nodes", len(values))
		}
		s.failed[name] = err != nil
	}
}

// Version implements usage.Source: it is another one after each answer, and when one becomes too
// old, whether or not anybody asks then.
func (s *Source) Version() uint64 {
	old := uint64(0)
	for _, known := range s.known {
		if s.current(known) == nil {
			old++
		}
	}
	return s.answers.Load()*uint64(len(s.known)+1) + old
}

// current returns the last answer; nil if there is none, or if it is too old.
func (s *Source) current(known *atomic.Pointer[answer]) *answer {
	last := known.Load()
	if last == nil || s.clock.Since(last.at) > MaxAge {
		return nil
	}
	return last
}

// ask returns what a query finds now, by node. Of several series of a node, the largest value
// counts: the more is used, the more careful Safe is.
func (s *Source) ask(ctx context.Context, query string) (map[string]float64, error) {
	value, _, err := s.client.Query(ctx, query, time.Time{}, prometheusv1.WithTimeout(s.timeout))
	if err != nil {
		return nil, err
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("the query gives a %s: want a vector, with a series for each node", value.Type())
	}
	values := map[string]float64{}
	for _, sample := range vector {
		if sample == nil {
			continue // null in an answer
		}
		node, v := string(sample.Metric[s.label]), float64(sample.Value)
		if node == "" || sample.Histogram != nil {
			continue
		}
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			v = math.NaN() // noted, so that it is known to be wrong
		}
		if known, again := values[node]; again && (math.IsNaN(known) || v <= known) {
			continue
		}
		values[node] = v
	}
	return values, nil
}

// of returns the value of a statistic of a node.
func (s *Source) of(name, node string) (value float64, problem usage.Problem) {
	known := s.known[name]
	if known == nil {
		return 0, usage.Missing // there is no such query
	}
	last := s.current(known)
	if last == nil {
		return 0, usage.Unavailable
	}
	value, ok := last.values[node]
	switch {
	case !ok:
		return 0, usage.Missing
	case math.IsNaN(value):
		return 0, usage.Invalid
	}
	return value, usage.None
}

// statistics are the names of the statistics of a resource.
type statistics struct {
	mean, deviation, forecast string
	unit                      float64 // how many of usage's units are one of Prometheus'
}

var ofResource = map[v1.ResourceName]statistics{
	v1.ResourceCPU:    {"cpu-mean", "cpu-deviation", "cpu-forecast", 1000},
	v1.ResourceMemory: {"memory-mean", "memory-deviation", "memory-forecast", 1},
}

// Of implements usage.Source. What is free is what the node has less what is used.
func (s *Source) Of(node *v1.Node, resource v1.ResourceName) usage.Statistics {
	name, capacity := ofResource[resource], usage.Capacity(node, resource)
	mean, problem := s.of(name.mean, node.Name)
	if problem != usage.None {
		return usage.Statistics{Problem: problem, Of: name.mean}
	}
	known := usage.Statistics{Free: max(capacity-mean*name.unit, 0)}
	if s.known[name.deviation] != nil { // without a query, all are steady
		deviation, problem := s.of(name.deviation, node.Name)
		if problem != usage.None {
			return usage.Statistics{Problem: problem, Of: name.deviation}
		}
		known.Deviation = deviation * name.unit
	}
	forecast, problem := s.of(name.forecast, node.Name)
	if problem == usage.Invalid {
		return usage.Statistics{Problem: problem, Of: name.forecast}
	}
	if problem == usage.None {
		known.Forecast, known.Forecasts = max(capacity-forecast*name.unit, 0), true
	}
	return known
}

// bounded refuses answers that are too large.
type bounded struct{ next http.RoundTripper }

var errLarge = errors.New("the answer has more than 16 MiB: have the query give one series for each node")

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err == nil {
		response.Body = &limited{ReadCloser: response.Body, left: maxAnswer}
	}
	return response, err
}

type limited struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if l.left -= n; l.left < 0 {
		return 0, errLarge
	}
	return n, err
}
