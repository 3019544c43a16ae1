package annotate

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestMetricsAPI has samples of a metrics-server become means and deviations of a window.
func TestMetricsAPI(t *testing.T) {
	var answer string // empty: no such API
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer == "" || r.URL.Path != "/apis/metrics.k8s.io/v1beta1/nodes" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	source := NewMetricsAPI(client.RESTClient(), 3*time.Minute)
	if _, err := source.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "metrics-server") {
		t.Errorf("no such API: %v", err)
	}
	answer = "{"
	if _, err := source.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "metrics.k8s.io") {
		t.Errorf("no JSON: %v", err)
	}
	item := func(name string, second int, usage string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"timestamp":"2026-01-02T03:04:%02dZ","window":"10s","usage":{%s}}`, name, second, usage)
	}
	for i, c := range []struct {
		items       []string
		cpu, memory Use // of n1
		nodes       int
	}{
		{[]string{item("n1", 1, `"cpu":"1","memory":"1Ki"`), item("n2", 1, `"cpu":"1"`)}, Use{Mean: 1000}, Use{Mean: 1024}, 2},
		{[]string{item("n1", 1, `"cpu":"9","memory":"9Ki"`)}, Use{Mean: 1000}, Use{Mean: 1024}, 1}, // not a new sample
		{[]string{item("n1", 2, `"cpu":"3000000000n","memory":"3Ki"`)}, Use{Mean: 2000, Deviation: 1000}, Use{Mean: 2048, Deviation: 1024}, 1},
		{[]string{item("n1", 3, `"cpu":"2"`)}, Use{Mean: 2000, Deviation: math.Sqrt(2e6 / 3)}, Use{Mean: 2048, Deviation: 1024}, 1},
		{[]string{item("n1", 4, `"cpu":"4","memory":"3Ki"`)}, Use{Mean: 3000, Deviation: math.Sqrt(2e6 / 3)}, Use{Mean: 3072}, 1}, // the first is too old
		{nil, Use{}, Use{}, 0},
		{[]string{item("n1", 5, `"memory":"1Ki"`)}, Use{}, Use{Mean: 1024}, 1}, // it begins anew
	} {
		answer = `{"items":[` + strings.Join(c.items, ",") + `]}`
		uses, err := source.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		near := func(a, b Use) bool { return math.Abs(a.Mean-b.Mean) < 1e-6 && math.Abs(a.Deviation-b.Deviation) < 1e-6 }
		cpu, memory := uses["n1"][v1.ResourceCPU], uses["n1"][v1.ResourceMemory]
		if !near(cpu, c.cpu) || !near(memory, c.memory) || len(uses) != c.nodes {
			t.Errorf("%d: %+v, want %+v, %+v of %d nodes", i, uses, c.cpu, c.memory, c.nodes)
		}
		if _, ok := uses["n1"][v1.ResourceCPU]; ok != (c.cpu != Use{}) {
			t.Errorf("%d: statistics of CPU: %t", i, ok)
		}
	}
}
