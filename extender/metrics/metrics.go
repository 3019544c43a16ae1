// Package metrics has the metrics of layer-extender. The scheduler only logs at level 5
// that an extender failed: these are where it shows.
package metrics

import (
	"net"
	"net/http"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const namespace = "layer_extender"

func options(name, help string) *metrics.CounterOpts {
	return &metrics.CounterOpts{Namespace: namespace, Name: name, Help: help, StabilityLevel: metrics.ALPHA}
}

var (
	// Requests counts the requests of verbs by their answer.
	Requests = metrics.NewCounterVec(options("requests_total", "Requests of schedulers, by agent, verb and HTTP status."), []string{"agent", "verb", "code"})
	// Seconds is the time from the last byte of a request to the answer.
	Seconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: namespace, Name: "answer_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time from the last byte of a request to its answer, by agent and verb.",
		Buckets: metrics.ExponentialBuckets(0.00025, 2, 14),
	}, []string{"agent", "verb"})
	// WithNodes counts requests that bring whole Nodes.
	WithNodes = metrics.NewCounterVec(options("requests_with_nodes_total", "Requests that bring whole Nodes and not their names, because nodeCacheCapable is not set."), []string{"agent", "verb"})
	// Panics counts panics of agents.
	Panics = metrics.NewCounterVec(options("panics_total", "Panics while an agent worked on a request, or on its own."), []string{"agent"})
	// Unknown counts nodes that were asked for and are not known.
	Unknown = metrics.NewCounterVec(options("unknown_nodes_total", "Nodes in requests that layer-extender does not have: they get score 0."), []string{"agent"})
	// Expected counts the pods that an agent expected on a node, by what became of it.
	Expected = metrics.NewCounterVec(options("expected_pods_total",
		"Pods that were expected on the best node until their binding shows, by how it ended: they were placed there (there) or on another node (elsewhere), the scheduler asked again (again), the time was over (over)."), []string{"agent", "ended"})
	// NotExpected counts answers after which no pod is expected, because too many are or it
	// is too large.
	NotExpected = metrics.NewCounterVec(options("too_many_expected_total", "Answers that do not count as arriving because too many others do, or because the pod is too large."), []string{"agent"})
	// Connections counts connections as they open and close: see Connection.
	Connections = metrics.NewCounterVec(options("connections_total", "Connections of all clients that were opened and closed. A scheduler needs one for many requests."), []string{"state"})
)

// The values of Expected's label ended.
const (
	There     = "there"
	Elsewhere = "elsewhere"
	Again     = "again"
	Over      = "over"
)

var once sync.Once

// Register registers the metrics of the process.
func Register() {
	once.Do(func() {
		legacyregistry.MustRegister(Requests, Seconds, WithNodes, Panics, Unknown, Expected, NotExpected, Connections)
		for _, state := range []string{Opened, Closed} {
			Connections.WithLabelValues(state)
		}
	})
}

// The values of Connections' label state.
const (
	Opened = "opened"
	Closed = "closed"
)

// Connection counts connections. It is the ConnState of an http.Server, which calls it
// for each change of a connection.
func Connection(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		Connections.WithLabelValues(Opened).Inc()
	case http.StateClosed:
		Connections.WithLabelValues(Closed).Inc()
	}
}

// Start has the metrics of an agent begin at 0, so that the first of each is seen as an
// increase.
func Start(agent string) {
	for _, counter := range []*metrics.CounterVec{Panics, Unknown, NotExpected} {
		counter.WithLabelValues(agent)
	}
	for _, ended := range []string{There, Elsewhere, Again, Over} {
		Expected.WithLabelValues(agent, ended)
	}
}
