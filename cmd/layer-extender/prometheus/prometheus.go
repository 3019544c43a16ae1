// Package prometheus has what nodes use from a Prometheus server that scrapes the resource
// metrics of kubelets (/metrics/resource).
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
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/layer-locality/layer-locality/cmd/layer-extender/annotate"
)

const (
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
}

// Source is an annotate.Source.
type Source struct {
	client  prometheusv1.API
	queries map[string]string // by statistic
	label   model.LabelName
	timeout time.Duration
}

// New returns a Source. It asks nothing yet.
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
	s := &Source{client: prometheusv1.NewAPI(asked), queries: map[string]string{}, label: model.LabelName(c.NodeLabel), timeout: c.Timeout}
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

// Read implements annotate.Source. An error names the statistic and its query. A resource of a node is
// left out unless all that is asked for of it is there: without its deviation, it does not count as steady.
func (s *Source) Read(ctx context.Context) (annotate.Uses, error) {
	answers := map[string]map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(s.queries)) {
		values, err := s.ask(ctx, s.queries[name])
		if err == nil && len(values) == 0 {
			err = fmt.Errorf("no series has the label %s: set the label, or the query of this statistic", s.label)
		}
		if err != nil {
			return nil, fmt.Errorf("statistic %s of Prometheus, query %s: %w", name, s.queries[name], err)
		}
		answers[name] = values
	}
	uses := annotate.Uses{}
	for resource, is := range ofResource {
		for node, mean := range answers[is.mean] {
			// What nobody asks for is 0; of what is asked for, no value is not a number, as a wrong one is.
			of := func(name string) float64 {
				value, ok := answers[name][node]
				if !ok && s.queries[name] != "" {
					return math.NaN()
				}
				return value * is.unit
			}
			use := annotate.Use{Mean: mean * is.unit, Deviation: of(is.deviation)}
			if s.queries[is.forecast] != "" {
				if forecast := of(is.forecast); !math.IsNaN(forecast) {
					use.Forecast = &forecast
				}
			}
			if math.IsNaN(use.Mean) || math.IsNaN(use.Deviation) {
				continue
			}
			if uses[node] == nil {
				uses[node] = map[v1.ResourceName]annotate.Use{}
			}
			uses[node][resource] = use
		}
	}
	return uses, nil
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
			v = math.NaN() // not one of several series
		}
		if known, again := values[node]; again && (math.IsNaN(known) || v <= known) {
			continue
		}
		values[node] = v
	}
	return values, nil
}

// statistics are the names of the statistics of a resource.
type statistics struct {
	mean, deviation, forecast string
	unit                      float64 // how many of annotate's units are one of Prometheus'
}

var ofResource = map[v1.ResourceName]statistics{
	v1.ResourceCPU:    {"cpu-mean", "cpu-deviation", "cpu-forecast", 1000},
	v1.ResourceMemory: {"memory-mean", "memory-deviation", "memory-forecast", 1},
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
