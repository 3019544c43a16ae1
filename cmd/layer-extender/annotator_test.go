package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/cmd/layer-extender/annotate"
)

// annotating returns the options of a command line.
func annotating(t *testing.T, args ...string) *annotateOptions {
	t.Helper()
	o, f := &annotateOptions{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addTo(f)
	must(t, f.Parse(args))
	return o
}

func TestAnnotateSource(t *testing.T) {
	const address = "--prometheus-address=http://localhost:9090"
	for _, c := range []struct {
		args []string
		want string // the type of the source, or the error
	}{
		{nil, "*annotate.MetricsAPI"}, {[]string{address}, "*prometheus.Source"},
		{[]string{address, "--prometheus-query=cpu-mean=a{b=\"c\"},d", "--prometheus-query=cpu-forecast=e", "--window=1m"}, "*prometheus.Source"},
		{[]string{"--prometheus-query=cpu-mean=a"}, "set --prometheus-address"}, {[]string{address, "--prometheus-query=a"}, "want NAME=QUERY"},
		{[]string{address, "--prometheus-query=cpu=a"}, "the query \"cpu\""}, {[]string{address, "--window=1s"}, "--window=1s: want 30s"}, {[]string{"--window=169h"}, "--window=169h0m0s"},
		{[]string{address, "--prometheus-node-label="}, "the label"}, {[]string{"--prometheus-address=localhost"}, "want a URL"},
	} {
		source, err := annotating(t, c.args...).source(nil)
		if got := fmt.Sprintf("%T %v", source, err); !strings.Contains(got, c.want) || (err == nil) != strings.HasPrefix(c.want, "*") {
			t.Errorf("%v: %s, want %q", c.args, got, c.want)
		}
	}
}

// TestAnnotate has nodes rated by what both sources measure, through annotations alone: n1 is full, n2 idle.
func TestAnnotate(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		values := []string{"0", "0"} // deviations
		switch query := r.FormValue("query"); {
		case r.URL.Path == "/apis/metrics.k8s.io/v1beta1/nodes":
			fmt.Fprint(w, `{"kind":"NodeMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[
				{"metadata":{"name":"n1"},"timestamp":"2026-01-02T03:04:05Z","window":"20s","usage":{"cpu":"3960123456n","memory":"1044480Ki"}},
				{"metadata":{"name":"n2"},"timestamp":"2026-01-02T03:04:05Z","window":"20s","usage":{"cpu":"41u","memory":"1Mi"}}]}`)
			return
		case strings.HasPrefix(query, "rate("):
			values = []string{"3.96", "0.01"}
		case strings.HasPrefix(query, "avg_over_time("):
			values = []string{"1069547520", "1048576"}
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"node":"n1"},"value":[1,%q]},{"metric":{"node":"n2"},"value":[1,%q]}]}}`, values[0], values[1])
	}))
	defer server.Close()
	metrics, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	must(t, err)
	for name, args := range map[string][]string{"Prometheus": {"--prometheus-address=" + server.URL}, "metrics.k8s.io": nil} {
		client := fake.NewClientset(nodeWith("n1", "1Gi", nil), nodeWith("n2", "1Gi", nil))
		source, err := annotating(t, args...).source(metrics.RESTClient())
		must(t, err)
		written, err := annotate.New(client, source, clock.RealClock{}).Update(t.Context())
		if must(t, err); written != 2 {
			t.Errorf("%s: %d nodes are written", name, written)
		}
		nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		must(t, err)
		var objects []runtime.Object
		for i := range nodes.Items {
			objects = append(objects, &nodes.Items[i])
		}
		url, pod := serve(t, settings{}, objects...), podWith("p", "", "1m", "")
		var filtered extenderv1.ExtenderFilterResult
		if ask(t, url, "predicates/safe-overload", pod, &filtered, "n1", "n2"); !slices.Equal(*filtered.NodeNames, []string{"n2"}) {
			t.Errorf("%s: %+v, want n2 alone", name, filtered)
		}
		for agent, want := range map[string][]int64{"safe-overload": {0, 10}, "safe-balance": {5, 10}} {
			if got := scores(t, url, agent, pod, "n1", "n2"); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %v, want %v; annotations %v", name, agent, got, want, nodes.Items[0].Annotations)
			}
		}
	}
}

// TestAnnotateRuns has the program ask for nodes, and end with its context.
func TestAnnotateRuns(t *testing.T) {
	o := annotating(t, "--kubeconfig=no-such-file")
	if err := o.run(t.Context()); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("%v", err)
	}
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		http.Error(w, "on purpose", http.StatusInternalServerError)
	}))
	defer server.Close()
	o = annotating(t, "--kubeconfig="+emptyCluster(t), "--prometheus-address="+server.URL)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx) }()
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Error("Prometheus is not asked")
	}
	cancel()
	must(t, <-ended)
}
