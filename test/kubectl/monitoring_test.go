//go:build integration

package kubectl

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/dashboards"
	"github.com/layer-locality/layer-locality/internal/poll"
)

var ours = regexp.MustCompile(`\b(scheduler_layerlocality|layerlocality_resolver|layerlocality_agent)_[a-z_]+`)

// documented returns the metrics of docs/monitoring.md that begin with a prefix.
func documented(t *testing.T, prefix string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/monitoring.md"))
	must(t, err)
	for _, row := range regexp.MustCompile("(?m)^\\| `("+prefix+"[a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		names = append(names, row[1])
	}
	slices.Sort(names)
	return names
}

func same(t *testing.T, what string, documented, there []string) {
	t.Helper()
	slices.Sort(there)
	if there = slices.Compact(there); !slices.Equal(documented, there) || len(there) == 0 {
		t.Errorf("docs/monitoring.md has of %s %q\nthere are %q", what, documented, there)
	}
}

// metricsToken returns a token that may read metrics, of a service account made for that.
func metricsToken(t *testing.T) string {
	t.Helper()
	const name = "prometheus"
	must(t, objects.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}))
	must(t, objects.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}))
	bind(t, name, "ClusterRole", name, "", "system:serviceaccount:default:"+name)
	token, err := core.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return token.Status.Token
}

// get asks a server for a text.
func get(ctx context.Context, address, token string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // a scheduler's own certificate
	response, err := insecure.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// The page of metrics has those that the scheduler serves, and those in the source of the others.
// A Prometheus scrapes the scheduler: every expression of the alerts and of the dashboards is one
// that it takes, what is about the scheduler has data, and savings asks it.
func TestMonitoring(t *testing.T) {
	token := metricsToken(t)
	text, err := get(t.Context(), schedulerURL+"/metrics", token)
	must(t, err)
	var serves []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (scheduler_layerlocality_[a-z_]+) `).FindAllStringSubmatch(text, -1) {
		serves = append(serves, m[1])
	}
	same(t, "the scheduler", documented(t, "scheduler_layerlocality_"), serves)
	same(t, "layer-resolver", documented(t, "layerlocality_resolver_"), source(t, "resolver", `"(layerlocality_resolver_[a-z_]+)"`, ""))
	same(t, "layer-agent", documented(t, "layerlocality_agent_"), source(t, "agent/publish/metrics.go", `(?:gauge\(|Name: )"([a-z_]+)"`, "layerlocality_agent_"))

	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("there is no Prometheus here: scripts/install-deps.sh prometheus")
	}
	address := prometheus(t, token)
	for i := range 3 {
		placed(t, pod(t, fmt.Sprint("counted-", i), "layer-locality", "registry.example.com/team/app-7:v1"))
		time.Sleep(2 * time.Second) // between two scrapes, so that counters increase
	}
	var savings struct {
		Profiles []struct {
			Profile          string
			Pods             int
			MeanMissingBytes float64
		}
	}
	must(t, poll.Until(t.Context(), time.Second, 30*time.Second, func(context.Context) error {
		answers(t, &savings, "savings", "--prometheus", address, "--since", "1m")
		for _, p := range savings.Profiles {
			if p.Profile == "layer-locality" && p.Pods >= 2 && p.MeanMissingBytes > 0 {
				return nil
			}
		}
		return fmt.Errorf("%+v", savings)
	}))
	for _, expr := range expressions(t) {
		if _, err := query(t.Context(), address, expr); err != nil {
			t.Error(err)
		}
	}
	panels(t, address)
	// It evaluates the shipped file, and no alert is in error.
	body, err := get(t.Context(), address+"/api/v1/rules", "")
	if err != nil || strings.Count(body, `"type":"alerting"`) != 8 || strings.Contains(body, `"health":"err"`) {
		t.Errorf("%v %s", err, body)
	}
}

// query returns how many series a Prometheus answers with.
func query(ctx context.Context, address, expr string) (series int, err error) {
	body, err := get(ctx, address+"/api/v1/query?"+url.Values{"query": {expr}}.Encode(), "")
	if err != nil {
		return 0, fmt.Errorf("%s: %w", expr, err)
	}
	var answer struct {
		Status string
		Data   struct{ Result []json.RawMessage }
	}
	if json.Unmarshal([]byte(body), &answer) != nil || answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", expr, body)
	}
	return len(answer.Data.Result), nil
}

// panels runs the queries of all panels and variables of the dashboards. Those about what is
// scraped here have data: all that LayerLocality counts, and what else the scheduler does.
func panels(t *testing.T, address string) {
	t.Helper()
	all, err := dashboards.Read(root)
	must(t, err)
	there := map[string]bool{}
	run := func(where, expr string) {
		t.Helper()
		n, err := query(t.Context(), address, dashboards.Filled(expr, "1m"))
		if err != nil {
			t.Errorf("%s: %v", where, err)
			return
		}
		// What only agents or the resolver would have is chosen by their job. The scheduler
		// measures some pods only.
		expected := !strings.Contains(expr, `job="`) && !strings.Contains(expr, "scheduler_plugin_execution_duration_seconds")
		for _, series := range dashboards.Selected(expr) {
			if _, asked := there[series]; !asked {
				found, err := query(t.Context(), address, series)
				must(t, err)
				there[series] = found > 0 || strings.HasPrefix(series, "scheduler_layerlocality_")
			}
			expected = expected && there[series]
		}
		if n == 0 && expected {
			t.Errorf("%s: no data: %s", where, expr)
		}
	}
	values := regexp.MustCompile(`label_values\((.*), [a-z]+\)`)
	for _, d := range all {
		for _, v := range d.Templating.List {
			if m := values.FindStringSubmatch(string(v.Query)); m != nil {
				// It is a text in JSON.
				run(d.File+": "+v.Name, strings.ReplaceAll(m[1], `\"`, `"`))
			} else if v.Type == "query" {
				t.Errorf("%s: %s: %s", d.File, v.Name, v.Query)
			}
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				run(d.File+": "+p.Title, target.Expr)
			}
		}
	}
}

// source returns what a pattern finds in Go source, with a prefix.
func source(t *testing.T, folder, pattern, prefix string) (names []string) {
	t.Helper()
	must(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			names = append(names, prefix+string(m[1]))
		}
		return err
	}))
	return names
}

// prometheus runs a Prometheus that scrapes the scheduler every second, with the alerts.
func prometheus(t *testing.T, token string) (address string) {
	t.Helper()
	folder := t.TempDir()
	rules, err := filepath.Abs(filepath.Join(root, "deploy/monitoring/rules.yaml"))
	must(t, err)
	config := fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: layer-locality-scheduler
  scheme: https
  authorization: {credentials: %s}
  tls_config: {insecure_skip_verify: true}
  static_configs: [{targets: [%s]}]
`, rules, token, strings.TrimPrefix(schedulerURL, "https://"))
	file := filepath.Join(folder, "prometheus.yml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	host := listener.Addr().String()
	must(t, listener.Close())
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+host)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address = "http://" + host
	must(t, poll.Until(t.Context(), 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
		body, err := get(ctx, address+"/api/v1/query?query=scheduler_layerlocality_index_size", "")
		if err == nil && !strings.Contains(body, "layer_nodes") {
			err = errors.New(body)
		}
		return err
	}))
	return address
}

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// groups returns the rules of a file, and what of it has them.
func groups(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/monitoring", file))
	must(t, err)
	must(t, yaml.Unmarshal(text, into))
}

func rules(t *testing.T) []rule {
	t.Helper()
	var plain struct{ Groups []struct{ Rules []rule } }
	groups(t, "rules.yaml", &plain)
	return plain.Groups[0].Rules
}

// expressions returns those of the alerts.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	for _, r := range rules(t) {
		all = append(all, r.Expr)
	}
	return all
}

// Alerts use documented metrics, have a severity, a time and a section of troubleshooting; the
// operator's file has the same; and promtool has each fire and end.
func TestAlerts(t *testing.T) {
	var plain, operators map[string]any
	groups(t, "rules.yaml", &plain)
	groups(t, "prometheusrule.yaml", &operators)
	spec, _ := operators["spec"].(map[string]any)
	if !reflect.DeepEqual(plain["groups"], spec["groups"]) {
		t.Error("prometheusrule.yaml has other groups than rules.yaml: copy them")
	}
	known := documented(t, "")
	trouble, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	must(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/monitoring.md"))
	must(t, err)
	all := rules(t)
	if len(all) != 8 {
		t.Errorf("%d alerts", len(all))
	}
	for _, r := range all {
		for _, name := range ours.FindAllString(r.Expr, -1) {
			if !slices.Contains(known, name) {
				t.Errorf("%s: there is no metric %s", r.Alert, name)
			}
		}
		anchor := "troubleshooting.md#" + strings.ToLower(r.Alert)
		if r.For == "" || !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) || r.Annotations["summary"] == "" ||
			r.Annotations["runbook"] != "docs/"+anchor || !strings.Contains(string(trouble), "\n### "+r.Alert+"\n") || !strings.Contains(string(page), anchor+") | "+r.Labels["severity"]) {
			t.Errorf("%+v: severity, for, summary, a section of troubleshooting and a row of docs/monitoring.md", r)
		}
	}
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("there is no promtool here: scripts/install-deps.sh prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = filepath.Join(root, "deploy/monitoring")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	tests, err := os.ReadFile(filepath.Join(root, "deploy/monitoring/rules_test.yaml"))
	must(t, err)
	for _, r := range all {
		if n := strings.Count(string(tests), "alertname: "+r.Alert); n < 2 {
			t.Errorf("%s: %d evaluations in rules_test.yaml", r.Alert, n)
		}
	}
}
