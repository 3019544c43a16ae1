//go:build integration

package kubectl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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

	"github.com/layer-locality/layer-locality/internal/monitoring"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/dashboards"
)

var ours = regexp.MustCompile(`\b(scheduler_layerlocality|layerlocality_resolver|layerlocality_agent|layerlocality_prefetch)_[a-z_]+`)

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

// The page of metrics has those that the scheduler serves; lab/test/monitoring compares it with the
// others. A Prometheus scrapes the scheduler: every expression of the alerts and of the dashboards
// is one that it takes, what is about the scheduler has data, and savings asks it.
func TestMonitoring(t *testing.T) {
	token := metricsToken(t)
	text, err := get(t.Context(), schedulerURL+"/metrics", token)
	must(t, err)
	var serves []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (scheduler_layerlocality_[a-z_]+) `).FindAllStringSubmatch(text, -1) {
		serves = append(serves, m[1])
	}
	slices.Sort(serves)
	documented, err := monitoring.Documented(root, "scheduler_layerlocality_")
	must(t, err)
	if !slices.Equal(serves, documented) || len(serves) == 0 {
		t.Errorf("docs/monitoring.md has %q, the scheduler %q", documented, serves)
	}

	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("there is no Prometheus here: scripts/install-deps.sh prometheus")
	}
	server := prometheus(t, token)
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
	must(t, poll.Until(t.Context(), time.Second, time.Minute, func(context.Context) error {
		answers(t, &savings, "savings", "--prometheus", string(server), "--since", "10m")
		for _, p := range savings.Profiles {
			if p.Profile == "layer-locality" && p.Pods >= 2 && p.MeanMissingBytes > 0 {
				return nil
			}
		}
		return fmt.Errorf("%+v", savings)
	}))
	rules, _, err := monitoring.Rules(root)
	must(t, err)
	var alerts []string
	for _, r := range rules {
		alerts = append(alerts, r.Alert)
		_, err := server.Query(t.Context(), r.Expr)
		must(t, err)
	}
	// It evaluates the shipped file, and no alert is in error.
	if evaluates, err := server.Evaluates(t.Context()); err != nil || !slices.Equal(evaluates, alerts) {
		t.Errorf("%v: it evaluates %q, shipped are %q", err, evaluates, alerts)
	}
	panels(t, server)
}

// panels runs the queries of all panels and variables of the dashboards. Those about the scheduler
// have data, but for those of which it measures some pods only.
func panels(t *testing.T, server monitoring.Server) {
	t.Helper()
	all, err := dashboards.Read(root)
	must(t, err)
	queries, err := dashboards.Queries(all)
	must(t, err)
	// Metrics of our other programs have no prefix of Kubernetes before layerlocality_.
	elsewhere := regexp.MustCompile(`\blayerlocality_|job="layer-|scheduler_plugin_execution_duration_seconds`)
	for _, q := range queries {
		samples, err := server.Query(t.Context(), dashboards.Filled(q.Expr, "1m"))
		if err == nil && len(samples) == 0 && !elsewhere.MatchString(q.Expr) {
			err = errors.New("no data")
		}
		if err != nil {
			t.Errorf("%s: %s: %v", q.Where, q.Expr, err)
		}
	}
}

// prometheus runs a Prometheus that scrapes the scheduler every second, with the alerts.
func prometheus(t *testing.T, token string) (server monitoring.Server) {
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
	server = monitoring.Server("http://" + host)
	must(t, poll.Until(t.Context(), 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
		samples, err := server.Query(ctx, `scheduler_layerlocality_index_size{of="layer_nodes"}`)
		if err == nil && len(samples) == 0 {
			err = errors.New("the scheduler has not been scraped")
		}
		return err
	}))
	return server
}

// shipped reads a file of deploy/monitoring.
func shipped(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, monitoring.Folder, file))
	must(t, err)
	must(t, yaml.Unmarshal(text, into))
}

// Alerts use documented metrics, have a severity, a time and a section of troubleshooting; the
// operator's file has the same; and promtool has each fire and end.
func TestAlerts(t *testing.T) {
	var plain, operators map[string]any
	shipped(t, "rules.yaml", &plain)
	shipped(t, "base/prometheusrule.yaml", &operators)
	spec, _ := operators["spec"].(map[string]any)
	if !reflect.DeepEqual(plain["groups"], spec["groups"]) {
		t.Error("prometheusrule.yaml has other groups than rules.yaml: copy them")
	}
	known, err := monitoring.Documented(root, "")
	must(t, err)
	trouble, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	must(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/monitoring.md"))
	must(t, err)
	all, _, err := monitoring.Rules(root)
	must(t, err)
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
	var file struct{ Tests []promtoolTest }
	shipped(t, "rules_test.yaml", &file)
	for _, r := range all {
		if !slices.ContainsFunc(file.Tests, func(test promtoolTest) bool { return test.complete(t, r) }) {
			t.Errorf("%s: rules_test.yaml does not have it silent until its time is nearly over, then fire, and be silent again", r.Alert)
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
}

// promtoolTest is a test of promtool: what it expects of alerts, by time.
type promtoolTest struct {
	Evaluations []struct {
		At       string `json:"eval_time"`
		Alert    string `json:"alertname"`
		Expected []any  `json:"exp_alerts"`
	} `json:"alert_rule_test"`
}

// complete reports whether an alert is silent in the last minute of its time or later, then fires, and
// ends.
func (p *promtoolTest) complete(t *testing.T, r monitoring.Rule) bool {
	t.Helper()
	wait, err := time.ParseDuration(r.For)
	must(t, err)
	phase := 0
	for _, e := range p.Evaluations {
		at, err := time.ParseDuration(e.At)
		must(t, err)
		if e.Alert == r.Alert && at >= wait-time.Minute && (len(e.Expected) > 0) == (phase == 1) && phase < 3 {
			phase++
		}
	}
	return phase == 3
}
