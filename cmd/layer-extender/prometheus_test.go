package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/cmd/layer-extender/prometheus"
	"github.com/layer-locality/layer-locality/scheduler/safe"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// answering answers each query with series: labels, and a value.
func answering(series ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, strings.Join(series, ","))
	}
}

// n1 and n2 use one core and one byte, steadily.
var n1, n2 = `{"metric":{"node":"n1"},"value":[1,"1"]}`, `{"metric":{"node":"n2"},"value":[1,"1"]}`

// sourceOf returns a source that asks a server.
func sourceOf(t *testing.T, server *httptest.Server, change func(*prometheus.Config)) *prometheus.Source {
	t.Helper()
	config := prometheus.Config{Address: server.URL, Window: defaultWindow, NodeLabel: defaultLabel, Timeout: time.Minute}
	change(&config)
	source, err := prometheus.New(config)
	must(t, err)
	return source
}

// counted returns a counter by the values of a label.
func counted(t *testing.T, name, by string, where map[string]string) map[string]float64 {
	t.Helper()
	values, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, name, where, by)
	must(t, err)
	return values
}

// rated asks both agents of Safe for n1 and n2, and returns how many of them pass, and their
// scores.
func rated(t *testing.T, url string) (passed int, points []int64) {
	t.Helper()
	pod := podWith("p", "", "100m", "")
	var filtered extenderv1.ExtenderFilterResult
	ask(t, url, "predicates/safe-overload", pod, &filtered, "n1", "n2")
	return len(*filtered.NodeNames), append(scores(t, url, "safe-overload", pod, "n1", "n2"), scores(t, url, "safe-balance", pod, "n1", "n2")...)
}

// TestPrometheusFaults has a Prometheus without answers on what nodes use: they pass the filter,
// get no points and are counted, and the log has each problem once, whoever of both agents is
// asked, and however often.
func TestPrometheusFaults(t *testing.T) {
	const rounds = 3
	for name, c := range map[string]struct {
		answer http.HandlerFunc // nil: nobody listens
		result string           // of each query, as counted
		reason usage.Problem    // why nodes are rated without statistics
		log    string           // why queries fail; empty: they do not
	}{
		"away":           {nil, "error", usage.Unavailable, "connection refused"},
		"hanging":        {func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm(); <-r.Context().Done() }, "error", usage.Unavailable, "exceeded"},
		"other metrics":  {answering(`{"metric":{"__name__":"up","job":"n1"},"value":[1,"1"]}`), "empty", usage.Missing, "no series has the label node"},
		"names of other": {answering(`{"metric":{"node":"10.0.0.1:10250"},"value":[1,"1"]}`), "success", usage.Missing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.answer)
			defer server.Close()
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			source := sourceOf(t, server, func(config *prometheus.Config) {
				switch name {
				case "away":
					config.Address = "http://127.0.0.1:1"
				case "hanging":
					config.Timeout = 20 * time.Millisecond
				}
			})
			url := serve(t, settings{source: source, logger: logger}, nodeWith("n1", "1Gi", nil), nodeWith("n2", "1Gi", nil))
			queries := func() float64 {
				n := 0.
				for _, of := range counted(t, "layer_extender_prometheus_queries_total", "statistic", map[string]string{"result": c.result}) {
					n += of
				}
				return n
			}
			nodes := func() float64 {
				return counted(t, "scheduler_nodes_without_statistics_total", "reason", map[string]string{"plugin": safe.Name})[string(c.reason)]
			}
			asked, without := queries(), nodes()
			for range rounds {
				source.Update(klog.NewContext(t.Context(), logger))
				if passed, points := rated(t, url); passed != 2 || !slices.Equal(points, []int64{0, 0, 0, 0}) {
					t.Errorf("%d of 2 nodes pass, scores %v", passed, points)
				}
			}
			// Means and deviations of CPU and memory.
			if got := queries() - asked; got != 4*rounds {
				t.Errorf("%v queries are counted as %s, want %d", got, c.result, 4*rounds)
			}
			// Each node: CPU and memory, by the filter and by both scores.
			if got := nodes() - without; got != 2*6*rounds {
				t.Errorf("counted %v times as %s, want %d", got, c.reason, 2*6*rounds)
			}
			text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			failed := map[bool]int{true: 4}[c.log != ""] // one line for each query
			if lines := strings.Count(text, "Prometheus does not return"); lines != failed || !strings.Contains(text, c.log) {
				t.Errorf("%d lines about queries, want %d, and %q:\n%.3000s", lines, failed, c.log, text)
			}
			if lines := strings.Count(text, "rated without statistics"); lines != 2 { // the means of CPU and memory
				t.Errorf("%d lines about nodes, want 2:\n%.3000s", lines, text)
			}
		})
	}
}

// TestPrometheusTooOld: an answer counts for five minutes, and no longer, also if nobody asks
// Prometheus then because the last question is not answered.
func TestPrometheusTooOld(t *testing.T) {
	server := httptest.NewServer(answering(n1, n2))
	defer server.Close()
	clock := clocktesting.NewFakeClock(time.Now())
	source := sourceOf(t, server, func(config *prometheus.Config) {
		config.Clock = clock
		config.Queries = map[string]string{"cpu-deviation": "", "memory-deviation": ""} // steady
	})
	url := serve(t, settings{source: source}, nodeWith("n1", "1Gi", nil), nodeWith("n2", "1Gi", nil))
	source.Update(t.Context())
	passed, first := rated(t, url)
	if passed != 2 || slices.Min(first) == 0 {
		t.Fatalf("%d of 2 nodes pass, scores %v", passed, first)
	}
	clock.Step(prometheus.MaxAge)
	if _, points := rated(t, url); !slices.Equal(points, first) {
		t.Errorf("after %s: %v, want %v", prometheus.MaxAge, points, first)
	}
	clock.Step(1)
	if passed, points := rated(t, url); passed != 2 || slices.Max(points) != 0 {
		t.Errorf("after more than %s: %d of 2 nodes pass, scores %v", prometheus.MaxAge, passed, points)
	}
	source.Update(t.Context())
	if _, points := rated(t, url); !slices.Equal(points, first) {
		t.Errorf("after another answer: %v, want %v", points, first)
	}
}

// TestPrometheusIsAskedRarely: once a minute for each statistic, however many pods and nodes
// there are.
func TestPrometheusIsAskedRarely(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.FormValue("query")]++
		mu.Unlock()
		answering(n1, n2)(w, r)
	}))
	defer server.Close()
	clock := clocktesting.NewFakeClock(time.Now())
	source := sourceOf(t, server, func(config *prometheus.Config) {
		config.Clock = clock
		config.Queries = map[string]string{}
		for statistic := range prometheus.Queries() {
			config.Queries[statistic] = statistic
		}
	})
	url := serve(t, settings{source: source}, nodeWith("n1", "1Gi", nil), nodeWith("n2", "1Gi", nil))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx) })
	statistics := slices.Sorted(maps.Keys(prometheus.Queries())) // as they are asked for
	const rounds = 3
	for round := range rounds {
		if round > 0 {
			clock.Step(prometheus.Interval - 1) // too early
			rated(t, url)
			clock.Step(1)
		}
		eventually(t, fmt.Sprintf("round %d comes", round), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return asked[statistics[len(statistics)-1]] > round
		})
		for range 10 {
			rated(t, url)
		}
	}
	cancel()
	running.Wait()
	for _, statistic := range statistics {
		if asked[statistic] != rounds || len(asked) != len(statistics) {
			t.Errorf("asked %d times for %s, want %d: %v", asked[statistic], statistic, rounds, asked)
		}
	}
}
