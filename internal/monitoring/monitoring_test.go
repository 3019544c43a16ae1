package monitoring

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/extender/metrics"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

const root = "../.."

var must = testkit.Must

// Of the shipped rules, nothing but times is changed.
func TestSooner(t *testing.T) {
	shipped, text, err := Rules(root)
	must(t, err)
	var file struct{ Groups []struct{ Rules []Rule } }
	must(t, yaml.Unmarshal(Sooner(text, "3s", "20s"), &file))
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) != len(shipped) || len(shipped) == 0 {
		t.Fatalf("%d rules of %d", len(file.Groups[0].Rules), len(shipped))
	}
	window := regexp.MustCompile(`\[[^]]*\]`)
	for i, sooner := range file.Groups[0].Rules {
		want := shipped[i]
		want.For, want.Expr = "3s", window.ReplaceAllString(want.Expr, "[20s]")
		if !reflect.DeepEqual(sooner, want) || shipped[i].For == "3s" {
			t.Errorf("%+v\nis now %+v", shipped[i], sooner)
		}
	}
}

// Pods are chosen by the labels and the port of a monitor, and get the job and the instance that it
// sets; what has no token is scraped without one.
func TestScrapeConfig(t *testing.T) {
	monitors, _, err := Operator(root, "base")
	must(t, err)
	var got []string
	for _, m := range monitors {
		config, err := m.ScrapeConfig("http://a/pods", "a token")
		if err != nil {
			got = append(got, err.Error())
			continue
		}
		text, err := yaml.Marshal(config)
		must(t, err)
		got = append(got, string(text))
	}
	keeps := func(source, value string) string {
		return "- action: keep\n  regex: " + value + "\n  source_labels:\n  - __meta_kubernetes_pod_" + source + "\n"
	}
	for i, want := range [][]string{
		{
			"http_sd_configs:\n- refresh_interval: 2s\n  url: http://a/pods\n",
			keeps("container_port_name", "metrics"), keeps("label_app_kubernetes_io_name", "layer-agent"),
			"- regex: (.+)\n  source_labels:\n  - __meta_kubernetes_pod_label_app_kubernetes_io_name\n  target_label: job\n",
			"- source_labels:\n  - __meta_kubernetes_pod_node_name\n  target_label: instance\n",
		},
		{keeps("container_port_name", "https"), keeps("label_app_kubernetes_io_name", "layer-locality-scheduler"), "scheme: https\n", "authorization:\n  credentials: a token\n", "insecure_skip_verify: true\n"},
		{"ServiceMonitor layer-resolver: want a PodMonitor"}, {"ServiceMonitor layer-prefetcher: want a PodMonitor"},
	} {
		for _, part := range want {
			if !strings.Contains(got[i], part) {
				t.Errorf("%s\nhas not\n%s", got[i], part)
			}
		}
	}
	if strings.Contains(got[0], "token") || strings.Contains(got[0], "scheme") || len(got) != 4 {
		t.Errorf("%q", got)
	}
}

// rightsOf are those with which a monitor of a namespace is scraped.
const rightsOf = `
- apiVersion: v1
  kind: ServiceAccount
  metadata: {name: %[1]s-metrics, namespace: %[2]s}
  automountServiceAccountToken: false
- apiVersion: v1
  kind: Secret
  metadata: {name: %[1]s-metrics, namespace: %[2]s, annotations: {kubernetes.io/service-account.name: %[1]s-metrics}}
  type: kubernetes.io/service-account-token
- apiVersion: rbac.authorization.k8s.io/v1
  kind: ClusterRoleBinding
  metadata: {name: %[1]s-metrics}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s-metrics-reader}
  subjects: [{kind: ServiceAccount, name: %[1]s-metrics, namespace: %[2]s}]
`

// What is scraped with HTTPS has a certificate that nobody signed, so it never gets the token of Prometheus:
// it gets that of an account in the namespace of the monitor, which may read metrics and has no other binding.
func TestRights(t *testing.T) {
	for _, overlay := range []string{"base", "okd"} {
		monitors, rights, err := Operator(root, overlay)
		must(t, err)
		var got, want []map[string]any
		for _, object := range rights {
			got = append(got, object.Object)
		}
		for _, m := range monitors {
			endpoint, err := m.Endpoint()
			must(t, err)
			if endpoint.Scheme != "https" {
				if endpoint.Authorization != nil {
					t.Errorf("%s: %s: everybody can read what is sent there", overlay, m.Metadata.Name)
				}
				continue
			}
			authorization := Authorization{Type: "Bearer"}
			authorization.Credentials.Name, authorization.Credentials.Key = m.Metadata.Name+"-metrics", "token"
			if a := endpoint.Authorization; a == nil || *a != authorization {
				t.Errorf("%s: %s: %+v, want %+v", overlay, m.Metadata.Name, a, authorization)
			}
			var its []map[string]any
			must(t, yaml.Unmarshal(fmt.Appendf(nil, rightsOf, m.Metadata.Name, m.Metadata.Namespace), &its))
			want = append(want, its...)
		}
		for _, objects := range [][]map[string]any{got, want} {
			slices.SortFunc(objects, func(a, b map[string]any) int {
				return strings.Compare(fmt.Sprint(a["kind"], a["metadata"]), fmt.Sprint(b["kind"], b["metadata"]))
			})
		}
		if !reflect.DeepEqual(got, want) || len(want) != 9 {
			t.Errorf("%s: the rights are\n%v\nwant\n%v", overlay, got, want)
		}
	}
}

// Each port of a pod with an address is found, under the labels that rules of relabelling look for.
func TestDiscover(t *testing.T) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app.kubernetes.io/name": "layer-agent"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "read"}, {Name: "publish", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9450}}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3"},
	}
	starting := *pod.DeepCopy()
	starting.Status = corev1.PodStatus{Phase: corev1.PodPending}
	want := []Targets{{[]string{"10.1.2.3:9450"}, map[string]string{
		"__meta_kubernetes_pod_name": "p", "__meta_kubernetes_pod_node_name": "n1", "__meta_kubernetes_pod_phase": "Running",
		"__meta_kubernetes_pod_container_port_name": "metrics", "__meta_kubernetes_pod_label_app_kubernetes_io_name": "layer-agent",
	}}}
	if got := Discover([]corev1.Pod{pod, starting}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := Discover(nil); got == nil {
		t.Error("no targets are null in JSON, which Prometheus does not take")
	}
}

// Every label of every metric of ours has a set of values or a bound, and nothing else has.
func TestBounds(t *testing.T) {
	bounds, err := Bounds(root)
	must(t, err)
	want, got := map[string][]string{}, map[string][]string{}
	for _, prefix := range ours {
		metrics, err := DocumentedLabels(root, prefix)
		must(t, err)
		if len(metrics) == 0 {
			t.Errorf("no metrics %s", prefix)
		}
		for metric, labels := range metrics {
			if len(labels) > 0 {
				want[metric] = labels
			}
		}
	}
	for metric, labels := range bounds {
		got[metric] = slices.Sorted(maps.Keys(labels))
		for label, bound := range labels {
			if len(bound.Values)+bound.Others == 0 && !bound.Configured {
				t.Errorf("%s, label %s: neither values nor a bound", metric, label)
			}
		}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("values are stated of\n%q\nthe metrics and their labels are\n%q", got, want)
	}
}

// A metric without a constraint, or with more values than it may have, is found.
func TestCheckBounds(t *testing.T) {
	vector := func(name string, label prometheus.ConstrainedLabel) *Registered {
		r := &Registered{}
		r.MustRegister(prometheus.V2.NewCounterVec(prometheus.CounterVecOpts{CounterOpts: prometheus.CounterOpts{Name: name}, VariableLabels: prometheus.ConstrainedLabels{label}}))
		return r
	}
	const why = "layerlocality_agent_writes_total"
	two := func(value string) string {
		if value == "change" || value == "renewal" {
			return value
		}
		return "other"
	}
	for want, r := range map[string]*Registered{
		"can have any value":  vector(why, prometheus.ConstrainedLabel{Name: "why"}),
		"it has 20003 values": vector(why, prometheus.ConstrainedLabel{Name: "why", Constraint: func(value string) string { return value }}),
		"it has 1 values":     vector(why, prometheus.ConstrainedLabel{Name: "why", Constraint: func(string) string { return "new" }}),
		"allows {Values:[] ":  vector("layerlocality_new_total", prometheus.ConstrainedLabel{Name: "why", Constraint: two}),
	} {
		if err := r.CheckBounds(root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := vector(why, prometheus.ConstrainedLabel{Name: "why", Constraint: two}).CheckBounds(root); err != nil {
		t.Error(err)
	}
}

// The page of all metrics has those of layer-extender with their labels, and no others.
func TestExtenderIsDocumented(t *testing.T) {
	metrics.Register()
	registered := &Registered{}
	registered.MustRegister(metrics.Requests, metrics.Seconds, metrics.WithNodes, metrics.Panics, metrics.Unknown, metrics.Expected, metrics.NotExpected, metrics.Connections)
	documented, err := DocumentedLabels(root, "layer_extender_")
	must(t, err)
	delete(documented, "layer_extender_prometheus_queries_total") // of another package
	if !maps.EqualFunc(registered.labels, documented, slices.Equal) {
		t.Errorf("registered are %q\ndocs/monitoring.md has %q", registered.labels, documented)
	}
}

// What is no number is no data, and what is no answer is an error.
func TestServer(t *testing.T) {
	answers := map[string]string{
		"1":  `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"2.5"]},{"metric":{},"value":[1,"NaN"]}]}}`,
		"up": `{"status":"success","data":{"result":[{"metric":{"__name__":"up","job":"j","instance":"i","pod":"p"},"value":[1,"1"]},{"metric":{"__name__":"up","job":"k","instance":"i"},"value":[1,"1"]}]}}`,
		`{__name__=~"p_.*"}`: `{"status":"success","data":{"result":[
			{"metric":{"__name__":"p_t_sum","job":"j","pod":"p"},"value":[1,"1"]},{"metric":{"__name__":"p_t_bucket","job":"j","le":"1","of":"x"},"value":[1,"1"]},{"metric":{"__name__":"p_t_count","job":"j","instance":"i"},"value":[1,"1"]},
			{"metric":{"__name__":"p_count","job":"k","why":"a","pod":"b"},"value":[1,"1"]},{"metric":{"__name__":"p_count","job":"k","why":"c"},"value":[1,"1"]}]}}`,
	}
	rules := ""
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := rules
		if r.URL.Path == "/api/v1/query" {
			text = answers[r.FormValue("query")]
		}
		if text == "" {
			w.WriteHeader(http.StatusBadRequest)
			text = `{"status":"error","error":"no such thing"}`
		}
		_, _ = w.Write([]byte(text))
	}))
	defer web.Close()
	server := Server(web.URL)
	samples, err := server.Query(t.Context(), "1")
	if want := []Sample{{map[string]string{"a": "b"}, 2.5}}; err != nil || !reflect.DeepEqual(samples, want) {
		t.Errorf("%v, %v", samples, err)
	}
	if _, err := server.Query(t.Context(), "2"); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Error(err)
	}
	metrics, err := server.Metrics(t.Context(), "p_")
	if err != nil || !reflect.DeepEqual(metrics, map[string][]string{"p_count": {"pod", "why"}, "p_t": {"of"}}) {
		t.Errorf("%q, %v", metrics, err)
	}
	for health, good := range map[string]bool{"ok": true, "err": false, "unknown": false} {
		rules = `{"status":"success","data":{"groups":[{"rules":[{"name":"A","type":"alerting","health":"` + health + `"}]}]}}`
		if names, err := server.Evaluates(t.Context()); (err == nil) != good || good && !slices.Equal(names, []string{"A"}) {
			t.Errorf("%s: %q, %v", health, names, err)
		}
	}
}
