package peers

import (
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of requests of peers, and of requests to them.
const (
	done     = "sent"
	failed   = "failed"
	absent   = "absent"
	unproven = "unproven"
	busy     = "busy"
	slow     = "slow"
	invalid  = "invalid"
	wrong    = "wrong"
)

type metrics struct {
	sent, received prometheus.Counter
	served, asked  *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *metrics {
	const namespace, subsystem = "layerlocality", "peers"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	vector := func(name, help string, results ...string) *prometheus.CounterVec {
		v := prometheus.V2.NewCounterVec(prometheus.CounterVecOpts{
			CounterOpts: prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help},
			VariableLabels: prometheus.ConstrainedLabels{{Name: "result", Constraint: func(value string) string {
				if slices.Contains(results, value) {
					return value
				}
				return failed
			}}},
		})
		for _, result := range results {
			v.WithLabelValues(result)
		}
		return v
	}
	m := &metrics{
		sent:     counter("sent_bytes_total", "Bytes of layers that were sent to other nodes."),
		received: counter("received_bytes_total", "Bytes of layers that came from other nodes."),
		served:   vector("served_total", "Requests of other nodes.", done, failed, absent, unproven, busy, invalid),
		asked:    vector("asked_total", "Requests to other nodes.", done, failed, absent, busy, slow, wrong),
	}
	registry.MustRegister(m.sent, m.received, m.served, m.asked)
	return m
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return done
	case errors.Is(err, errAbsent):
		return absent
	case errors.Is(err, errBusy):
		return busy
	case errors.Is(err, errSlow):
		return slow
	case errors.Is(err, errWrong):
		return wrong
	}
	return failed
}
