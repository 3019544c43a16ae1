// Package monitoring reads what deploy/monitoring ships and docs/monitoring.md says, and asks a
// Prometheus, for tests that show that the two fit.
package monitoring

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Folder has the files, from the root of the repository.
const Folder = "deploy/monitoring"

// Documented returns the metrics of docs/monitoring.md whose names begin with a prefix, sorted.
func Documented(root, prefix string) (names []string, err error) {
	text, err := os.ReadFile(filepath.Join(root, "docs/monitoring.md"))
	if err != nil {
		return nil, err
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `("+prefix+"[a-z_]+)` \\|").FindAllSubmatch(text, -1) {
		names = append(names, string(row[1]))
	}
	slices.Sort(names)
	return names, nil
}

// Rule is an alert.
type Rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// Rules returns the alerts of rules.yaml, and its text.
func Rules(root string) (rules []Rule, text []byte, err error) {
	if text, err = os.ReadFile(filepath.Join(root, Folder, "rules.yaml")); err != nil {
		return nil, nil, err
	}
	var file struct{ Groups []struct{ Rules []Rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, nil, err
	}
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules, text, nil
}

var (
	waits  = regexp.MustCompile(`(?m)^( *for: )\d+[smh]$`)
	ranges = regexp.MustCompile(`\[\d+[smh]\]`)
)

// Sooner returns the text of rules with other times, and nothing else changed: each alert fires once
// its cause has been there for wait, and looks back for window.
func Sooner(text []byte, wait, window string) []byte {
	return ranges.ReplaceAll(waits.ReplaceAll(text, []byte("${1}"+wait)), []byte("["+window+"]"))
}

// Monitor is a PodMonitor or a ServiceMonitor of monitors.yaml.
type Monitor struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		JobLabel string
		Selector struct{ MatchLabels map[string]string }
		// PodMetricsEndpoints are those of a PodMonitor, Endpoints those of a ServiceMonitor.
		PodMetricsEndpoints, Endpoints []Endpoint
	}
}

// Endpoint is what is scraped of each pod that is selected.
type Endpoint struct {
	Port, Scheme    string
	BearerTokenFile string
	Authorization   *struct{ Credentials struct{ Name, Key string } }
	TLSConfig       struct{ InsecureSkipVerify bool }
	Relabelings     []struct {
		SourceLabels []string
		TargetLabel  string
	}
}

// Monitors returns the monitors of monitors.yaml. A field that is not known is an error.
func Monitors(root string) (all []Monitor, err error) {
	text, err := os.ReadFile(filepath.Join(root, Folder, "monitors.yaml"))
	if err != nil {
		return nil, err
	}
	decoder := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := decoder.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		m := struct {
			APIVersion string
			Monitor    `json:",inline"`
		}{}
		if err := yaml.UnmarshalStrict(document, &m); err != nil {
			return nil, fmt.Errorf("monitors.yaml: %w", err)
		}
		all = append(all, m.Monitor)
	}
}

var notInLabels = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// ScrapeConfig returns what Prometheus Operator makes of a PodMonitor: the configuration of a
// Prometheus that finds the pods by apiserver, the settings of kubernetes_sd_configs, and shows
// them a token if the monitor names one.
func (m *Monitor) ScrapeConfig(apiserver map[string]any, token string) (map[string]any, error) {
	if m.Kind != "PodMonitor" || len(m.Spec.PodMetricsEndpoints) != 1 {
		return nil, fmt.Errorf("%s %s: want a PodMonitor with one endpoint", m.Kind, m.Metadata.Name)
	}
	discovery := map[string]any{"role": "pod", "namespaces": map[string]any{"names": []string{m.Metadata.Namespace}}}
	for field, value := range apiserver {
		discovery[field] = value
	}
	label := func(name string) string {
		return "__meta_kubernetes_pod_label_" + notInLabels.ReplaceAllString(name, "_")
	}
	keep := func(source, value string) map[string]any {
		return map[string]any{"action": "keep", "source_labels": []string{source}, "regex": regexp.QuoteMeta(value)}
	}
	endpoint := m.Spec.PodMetricsEndpoints[0]
	relabel := []any{keep("__meta_kubernetes_pod_container_port_name", endpoint.Port)}
	for name, value := range m.Spec.Selector.MatchLabels {
		relabel = append(relabel, keep(label(name), value))
	}
	relabel = append(relabel,
		map[string]any{"action": "drop", "source_labels": []string{"__meta_kubernetes_pod_phase"}, "regex": "(Failed|Succeeded)"},
		map[string]any{"source_labels": []string{"__meta_kubernetes_pod_name"}, "target_label": "pod"},
		map[string]any{"source_labels": []string{label(m.Spec.JobLabel)}, "regex": "(.+)", "target_label": "job"})
	for _, r := range endpoint.Relabelings {
		relabel = append(relabel, map[string]any{"source_labels": r.SourceLabels, "target_label": r.TargetLabel})
	}
	config := map[string]any{
		"job_name": "podMonitor/" + m.Metadata.Namespace + "/" + m.Metadata.Name, "kubernetes_sd_configs": []any{discovery}, "relabel_configs": relabel,
		"tls_config": map[string]any{"insecure_skip_verify": endpoint.TLSConfig.InsecureSkipVerify},
	}
	if endpoint.Scheme != "" {
		config["scheme"] = endpoint.Scheme
	}
	if endpoint.Authorization != nil {
		config["authorization"] = map[string]any{"credentials": token}
	}
	return config, nil
}
