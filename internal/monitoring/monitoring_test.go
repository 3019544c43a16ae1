package monitoring

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const root = "../.."

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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
// says; what has no token is scraped without one.
func TestScrapeConfig(t *testing.T) {
	monitors, err := Monitors(root)
	must(t, err)
	var got []string
	for _, m := range monitors {
		config, err := m.ScrapeConfig(map[string]any{"api_server": "https://a"}, "a token")
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
			"api_server: https://a\n  namespaces:\n    names:\n    - kube-system\n  role: pod\n",
			keeps("container_port_name", "metrics"), keeps("label_app_kubernetes_io_name", "layer-agent"),
			"- regex: (.+)\n  source_labels:\n  - __meta_kubernetes_pod_label_app_kubernetes_io_name\n  target_label: job\n",
			"- source_labels:\n  - __meta_kubernetes_pod_node_name\n  target_label: instance\n",
		},
		{keeps("container_port_name", "https"), keeps("label_app_kubernetes_io_name", "layer-locality-scheduler"), "scheme: https\n", "authorization:\n  credentials: a token\n", "insecure_skip_verify: true\n"},
		{"ServiceMonitor layer-resolver: want a PodMonitor"},
	} {
		for _, part := range want {
			if !strings.Contains(got[i], part) {
				t.Errorf("%s\nhas not\n%s", got[i], part)
			}
		}
	}
	if strings.Contains(got[0], "token") || strings.Contains(got[0], "scheme") || len(got) != 3 {
		t.Errorf("%q", got)
	}
}

// What is no number is no data, and what is no answer is an error.
func TestServer(t *testing.T) {
	answers := map[string]string{
		"1": `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"2.5"]},{"metric":{},"value":[1,"NaN"]}]}}`,
		`group by (__name__) ({__name__=~"p_.*"})`: `{"status":"success","data":{"result":[
			{"metric":{"__name__":"p_t_sum"},"value":[1,"1"]},{"metric":{"__name__":"p_t_bucket"},"value":[1,"1"]},{"metric":{"__name__":"p_t_count"},"value":[1,"1"]},
			{"metric":{"__name__":"p_count"},"value":[1,"1"]}]}}`,
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
	names, err := server.Metrics(t.Context(), "p_")
	if err != nil || !slices.Equal(names, []string{"p_count", "p_t"}) {
		t.Errorf("%q, %v", names, err)
	}
	for health, good := range map[string]bool{"ok": true, "err": false, "unknown": false} {
		rules = `{"status":"success","data":{"groups":[{"rules":[{"name":"A","type":"alerting","health":"` + health + `"}]}]}}`
		if names, err := server.Evaluates(t.Context()); (err == nil) != good || good && !slices.Equal(names, []string{"A"}) {
			t.Errorf("%s: %q, %v", health, names, err)
		}
	}
}
