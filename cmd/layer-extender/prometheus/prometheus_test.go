package prometheus

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// server answers queries by what they begin with. A real Prometheus does not fail on demand;
// lab/test/agents has one.
type server struct {
	*httptest.Server
	answers map[string]http.HandlerFunc
}

// vector answers with series: labels in JSON, and a value.
func vector(series ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, strings.Join(series, ","))
	}
}

func one(node, value string) string {
	return fmt.Sprintf(`{"metric":{"node":%q},"value":[1,%q]}`, node, value)
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{answers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		w.Header().Set("Content-Type", "application/json")
		for begin, answer := range s.answers {
			if strings.HasPrefix(query, begin) {
				answer(w, r)
				return
			}
		}
		vector()(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) config() Config {
	return Config{Address: s.URL, Window: 15 * time.Minute, NodeLabel: "node", Timeout: time.Minute, Queries: map[string]string{
		"cpu-mean": "cpu_mean", "cpu-deviation": "cpu_deviation", "memory-mean": "memory_mean", "memory-deviation": "memory_deviation",
	}}
}

func node(name string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("1000"),
	}}}
}

// made returns a Source whose log is kept.
func made(t *testing.T, c Config) (*Source, context.Context, func() string) {
	t.Helper()
	source, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return source, klog.NewContext(t.Context(), logger), func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
}

// TestStatistics has cores and bytes that are used become what is free.
func TestStatistics(t *testing.T) {
	s, clock := start(t), clocktesting.NewFakeClock(time.Now())
	s.answers["cpu_mean"] = vector(one("n1", "1.5"), one("n2", "9"), one("n1", "1"), one("n3", "NaN"), one("n4", "-1"), one("n5", "+Inf"), `{"metric":{"instance":"n6"},"value":[1,"1"]}`)
	s.answers["cpu_deviation"] = vector(one("n1", ".25"), one("n2", "0"))
	s.answers["memory_mean"] = vector(one("n1", "400"), one("n2", "1"), one("n3", "1"))
	s.answers["memory_deviation"] = vector(one("n1", "50"), one("n2", "NaN"))
	c := s.config()
	c.Clock, c.Queries["memory-forecast"] = clock, "memory_forecast"
	s.answers["memory_forecast"] = vector(one("n1", "700"))
	source, ctx, _ := made(t, c)
	if got := source.Of(node("n1"), v1.ResourceCPU); got.Problem != usage.Unavailable {
		t.Errorf("before the first answer: %+v", got)
	}
	source.Update(ctx)
	for _, c := range []struct {
		node     string
		resource v1.ResourceName
		want     usage.Statistics
	}{
		{"n1", v1.ResourceCPU, usage.Statistics{Free: 2500, Deviation: 250}},
		{"n1", v1.ResourceMemory, usage.Statistics{Free: 600, Deviation: 50, Forecast: 300, Forecasts: true}},
		{"n2", v1.ResourceCPU, usage.Statistics{}}, // more is used than there is
		{"n2", v1.ResourceMemory, usage.Statistics{Problem: usage.Invalid, Of: "memory-deviation"}},
		{"n3", v1.ResourceCPU, usage.Statistics{Problem: usage.Invalid, Of: "cpu-mean"}},
		{"n4", v1.ResourceCPU, usage.Statistics{Problem: usage.Invalid, Of: "cpu-mean"}},
		{"n5", v1.ResourceCPU, usage.Statistics{Problem: usage.Invalid, Of: "cpu-mean"}},
		{"n6", v1.ResourceCPU, usage.Statistics{Problem: usage.Missing, Of: "cpu-mean"}},
		{"n3", v1.ResourceMemory, usage.Statistics{Problem: usage.Missing, Of: "memory-deviation"}},
	} {
		if got := source.Of(node(c.node), c.resource); got != c.want {
			t.Errorf("%s %s: %+v, want %+v", c.node, c.resource, got, c.want)
		}
	}
	version := source.Version()
	clock.Step(MaxAge)
	if got := source.Of(node("n1"), v1.ResourceCPU); got.Problem != usage.None {
		t.Errorf("after %s: %+v", MaxAge, got)
	}
	if got := source.Version(); got != version {
		t.Errorf("version %d, after %s %d", version, MaxAge, got)
	}
	clock.Step(1)
	if got := source.Of(node("n1"), v1.ResourceCPU); got.Problem != usage.Unavailable || source.Version() == version {
		t.Errorf("after more than %s: %+v, version %d as before: %t", MaxAge, got, version, source.Version() == version)
	}
}

// TestNoDeviation: without the deviation, the use of a node does not count as steady, unless no
// deviation is asked for.
func TestNoDeviation(t *testing.T) {
	for query, want := range map[string]usage.Statistics{
		"cpu_deviation": {Problem: usage.Missing, Of: "cpu-deviation"}, // its answer is empty
		"":              {Free: 3000},
	} {
		s := start(t)
		s.answers["cpu_mean"] = vector(one("n1", "1"))
		c := s.config()
		c.Queries["cpu-deviation"] = query
		source, ctx, _ := made(t, c)
		source.Update(ctx)
		if got := source.Of(node("n1"), v1.ResourceCPU); got != want {
			t.Errorf("query %q: %+v, want %+v", query, got, want)
		}
	}
}

// TestFaults: an error is counted each time and logged when it begins, and the last answer
// counts meanwhile.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		result string
		log    string
	}{
		"error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "on purpose", http.StatusInternalServerError)
		}, failure, "server_error"},
		"bad query": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"status":"error","errorType":"bad_data","error":"no such function"}`)
		}, failure, "no such function"},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, failure, "Prometheus does not return"},
		"a matrix": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
		}, failure, "want a vector"},
		"null":        {vector("null"), empty, "no series has the label node"},
		"nothing":     {vector(), empty, "no series has the label node"},
		"other label": {vector(`{"metric":{"instance":"n1"},"value":[1,"1"]}`), empty, "set the label"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for range 20 {
				fmt.Fprint(w, strings.Repeat(" ", 1<<20))
			}
		}, failure, "16 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			for _, statistic := range []string{"cpu_mean", "cpu_deviation", "memory_mean", "memory_deviation"} {
				s.answers[statistic] = vector(one("n1", "1"))
			}
			source, ctx, log := made(t, s.config())
			source.Update(ctx)
			s.answers["cpu_mean"] = c.answer
			count := func() float64 {
				value, err := testutil.GetCounterMetricValue(queries.WithLabelValues("cpu-mean", c.result))
				if err != nil {
					t.Fatal(err)
				}
				return value
			}
			before := count()
			for range 3 {
				source.Update(ctx)
			}
			if got := count() - before; got != 3 {
				t.Errorf("counted %v times", got)
			}
			if text := log(); !strings.Contains(text, c.log) || strings.Count(text, "Prometheus does not return") != 1 {
				t.Errorf("log: %.2000s", text)
			}
			want := usage.None // the last answer
			if c.result == empty {
				want = usage.Missing
			}
			if got := source.Of(node("n1"), v1.ResourceCPU); got.Problem != want {
				t.Errorf("%+v, want %q", got, want)
			}
			s.answers["cpu_mean"] = vector(one("n1", "1"))
			if source.Update(ctx); !strings.Contains(log(), "returns again") {
				t.Errorf("log: %.2000s", log())
			}
		})
	}
}

// TestAway has a server that does not answer, and nobody listen.
func TestAway(t *testing.T) {
	s := start(t)
	s.answers["cpu_mean"] = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	c := s.config()
	c.Timeout = 50 * time.Millisecond
	source, ctx, log := made(t, c)
	source.Update(ctx)
	if !strings.Contains(log(), "exceeded") {
		t.Errorf("log: %.2000s", log())
	}
	s.Close()
	source.Update(ctx)
	if got := source.Of(node("n1"), v1.ResourceCPU); got.Problem != usage.Unavailable {
		t.Errorf("%+v", got)
	}
}

// TestRun asks at once, and ends with its context.
func TestRun(t *testing.T) {
	s := start(t)
	s.answers["cpu_mean"], s.answers["cpu_deviation"] = vector(one("n1", "1")), vector(one("n1", "0"))
	source, ctx, _ := made(t, s.config())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { source.Run(ctx); close(done) }()
	for end := time.Now().Add(time.Minute); source.Of(node("n1"), v1.ResourceCPU).Problem != usage.None; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is known")
		}
	}
	cancel()
	<-done
}

// TestToken: the token is sent, and read again when it is not valid any more.
func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret")
	s, valid, seen := start(t), "secret", []string{}
	s.answers["cpu_"] = func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		if seen[len(seen)-1] != "Bearer "+valid {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		vector()(w, r)
	}
	c := s.config()
	c.TokenFile = file
	source, ctx, _ := made(t, c)
	source.Update(ctx)
	valid = "another"
	write(valid)
	source.Update(ctx)
	if want := []string{"Bearer secret", "Bearer another"}; !slices.Equal(slices.Compact(seen), want) {
		t.Errorf("sent %q, want %q", seen, want)
	}
	c.TokenFile = "no-such-file"
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), c.TokenFile) {
		t.Errorf("without the file: %v", err)
	}
	// Whatever the address answers, nobody else gets the token.
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server is asked, with %q", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	s.answers["cpu_"] = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}
	source.Update(ctx)
}

func TestNew(t *testing.T) {
	valid := func(change func(*Config)) Config {
		c := Config{Address: "http://localhost:9090", Window: 15 * time.Minute, NodeLabel: "node"}
		change(&c)
		return c
	}
	for want, c := range map[string]Config{
		"":                              valid(func(*Config) {}),
		"want a URL":                    valid(func(c *Config) { c.Address = "localhost:9090" }),
		`Prometheus, "ftp://a"`:         valid(func(c *Config) { c.Address = "ftp://a" }),
		"want 30s to 168h0m0s":          valid(func(c *Config) { c.Window = time.Second }),
		"the window 169h":               valid(func(c *Config) { c.Window = 169 * time.Hour }),
		`the label "no-label"`:          valid(func(c *Config) { c.NodeLabel = "no-label" }),
		`the query "cpu"`:               valid(func(c *Config) { c.Queries = map[string]string{"cpu": "x"} }),
		`the query "cpu-mean" is empty`: valid(func(c *Config) { c.Queries = map[string]string{"cpu-mean": ""} }),
		"no-such-file":                  valid(func(c *Config) { c.Address = "https://localhost:9090"; c.CAFile = "no-such-file" }),
	} {
		_, err := New(c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

func TestExpand(t *testing.T) {
	if got, want := expand("a[$window] b[$window:$step] c[$rate]", 15*time.Minute), "a[15m] b[15m:1m] c[5m]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := expand("[$window:$step] [$rate]", 40*time.Second), "[40s:2s] [13s]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
