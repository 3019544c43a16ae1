package prometheus

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/cmd/layer-extender/annotate"
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

// made returns a Source.
func made(t *testing.T, c Config) *Source {
	t.Helper()
	source, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// TestRead has cores and bytes. Of several series of a node, the largest counts.
func TestRead(t *testing.T) {
	s := start(t)
	s.answers["cpu_mean"] = vector(one("n1", "1.5"), one("n2", "9"), one("n1", "1"), one("n3", "NaN"), one("n4", "-1"), one("n5", "+Inf"), `{"metric":{"instance":"n6"},"value":[1,"1"]}`)
	s.answers["cpu_deviation"] = vector(one("n1", ".25"), one("n2", "0"))
	s.answers["memory_mean"] = vector(one("n1", "400"), one("n2", "1"), one("n3", "1"), one("n4", "7"))
	s.answers["memory_deviation"] = vector(one("n1", "50"), one("n2", "NaN"), one("n4", "1"))
	s.answers["memory_forecast"] = vector(one("n1", "700"))
	c := s.config()
	c.Queries["memory-forecast"] = "memory_forecast"
	got, err := made(t, c).Read(t.Context())
	want := annotate.Uses{
		"n1": {v1.ResourceCPU: {Mean: 1500, Deviation: 250}, v1.ResourceMemory: {Mean: 400, Deviation: 50, Forecast: ptr.To(700.)}},
		"n2": {v1.ResourceCPU: {Mean: 9000}}, // without its deviation, its memory does not count as steady
		"n4": {v1.ResourceMemory: {Mean: 7, Deviation: 1}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	c.Queries["memory-deviation"], c.Queries["memory-forecast"] = "", "" // nobody asks for it: all are steady
	if got, err := made(t, c).Read(t.Context()); err != nil || !reflect.DeepEqual(got["n2"][v1.ResourceMemory], annotate.Use{Mean: 1}) {
		t.Errorf("%+v %v", got, err)
	}
}

// TestFaults: an error of one statistic is that of all, and names it.
func TestFaults(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		"server_error": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "on purpose", http.StatusInternalServerError)
		},
		"no such function": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"status":"error","errorType":"bad_data","error":"no such function"}`)
		},
		"expect { or n": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"want a vector": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
		},
		"no series has the label node": vector("null"),
		"no series has the label":      vector(),
		"set the label":                vector(`{"metric":{"instance":"n1"},"value":[1,"1"]}`),
		"16 MiB": func(w http.ResponseWriter, _ *http.Request) {
			for range 20 {
				fmt.Fprint(w, strings.Repeat(" ", 1<<20))
			}
		},
		"exceeded": func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm(); <-r.Context().Done() },
	} {
		s := start(t)
		for _, statistic := range []string{"cpu_mean", "cpu_deviation", "memory_mean", "memory_deviation"} {
			s.answers[statistic] = vector(one("n1", "1"))
		}
		s.answers["memory_mean"] = answer
		c, statistic := s.config(), "statistic memory-mean"
		if want == "exceeded" {
			c.Timeout, statistic = 50*time.Millisecond, "statistic" // a slow machine takes as long for another one
		}
		uses, err := made(t, c).Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), statistic) || uses != nil {
			t.Errorf("%v %v, want %s", uses, err, want)
		}
	}
	c := start(t).config()
	c.Address = "http://127.0.0.1:1"
	if _, err := made(t, c).Read(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("away: %v", err)
	}
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
	source := made(t, c)
	_, _ = source.Read(t.Context()) // it returns nothing
	valid = "another"
	write(valid)
	for range 2 { // the first is refused
		_, _ = source.Read(t.Context())
	}
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
	_, _ = source.Read(t.Context())
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
