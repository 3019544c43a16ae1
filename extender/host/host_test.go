package host_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics/testutil"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/host"
	"github.com/layer-locality/layer-locality/extender/internal/fixture"
	"github.com/layer-locality/layer-locality/extender/metrics"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	kinds := []agent.Kind{{Name: "one", Aliases: []string{"first"}}, {Name: "two"}}
	for text, want := range map[string]string{"one": "one", "first,one": "one", "two,first": "two,one", "three": "error", "": "error"} {
		chosen, err := host.Choose(kinds, strings.FieldsFunc(text, func(r rune) bool { return r == ',' }))
		var names []string
		for _, kind := range chosen {
			names = append(names, kind.Name)
		}
		got := strings.Join(names, ",")
		if err != nil {
			got = "error"
			if !strings.Contains(err.Error(), "one, first, two") {
				t.Errorf("%q: %v", text, err)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestPaths asks for everything that is served.
func TestPaths(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	objects, _ := fixture.Nodes(2)
	plugin := fixture.New()
	plugin.Unsynced.Store(true)
	h, err := host.New(ctx, host.Config{
		Client: fake.NewClientset(objects...), Kinds: []agent.Kind{plugin.Kind("fixture")}, MaxScore: 10,
		Debug: map[string]http.Handler{"/debug/fixture": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "inside") })},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Start(ctx)
	t.Cleanup(func() {
		cancel()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	secret := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Secret") == "" {
				http.Error(w, "who are you", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	server := httptest.NewServer(h.Handler(secret))
	defer server.Close()
	ask := func(method, path, secret string) (int, string) {
		request, err := http.NewRequestWithContext(ctx, method, server.URL+path, strings.NewReader(`{"Pod":{},"NodeNames":["n1"]}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Secret", secret)
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	const verb = "/scheduler/priorities/fixture"
	if code, _ := ask("GET", "/readyz", ""); code != 503 {
		t.Errorf("readyz before it knows the nodes: %d", code)
	}
	if code, _ := ask("POST", verb, "x"); code != 503 {
		t.Errorf("a verb before it knows the nodes: %d", code)
	}
	plugin.Unsynced.Store(false)
	fixture.Eventually(t, "it is ready", h.HasSynced)
	for _, c := range []struct {
		method, path string
		open         bool
		code         int
		want         string
	}{
		{"GET", "/livez", true, 200, "ok"},
		{"GET", "/readyz", true, 200, "ok"},
		{"GET", "/version", true, 200, "gitVersion"},
		{"GET", "/metrics", false, 200, "layer_extender_panics_total"},
		{"GET", "/debug/fixture", false, 200, "inside"},
		{"POST", verb, false, 200, `[{"Host":"n1","Score":0}]`},
		{"GET", verb, false, 405, "only POST"},
		{"POST", "/scheduler/priorities/x", false, 404, "priorities/fixture"},
		{"POST", "/livez", true, 405, ""},
		{"GET", "/", true, 404, ""},
	} {
		if code, body := ask(c.method, c.path, "x"); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, body)
		}
		if code, _ := ask(c.method, c.path, ""); (code == 401) == c.open {
			t.Errorf("%s %s without a certificate: %d", c.method, c.path, code)
		}
	}
	// Three of the requests without a certificate were for verbs.
	refused := 0.0
	for _, agent := range []string{"fixture", "unknown"} {
		n, err := testutil.GetCounterMetricValue(metrics.Requests.WithLabelValues(agent, "priorities", "401"))
		if err != nil {
			t.Fatal(err)
		}
		refused += n
	}
	if refused != 3 {
		t.Errorf("%g requests without a certificate are counted", refused)
	}
}
