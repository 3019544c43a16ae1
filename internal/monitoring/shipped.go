// Package monitoring reads what deploy/monitoring ships and docs/monitoring.md documents, and asks
// a Prometheus, for tests that show that the two fit.
package monitoring

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/kustomize"
)

// Folder has the files, from the root of the repository.
const Folder = "deploy/monitoring"

// ours are what names of our metrics begin with.
var ours = []string{"scheduler_layerlocality_", "scheduler_qosaware_", "scheduler_nodes_without_statistics_", "layerlocality_", "layer_extender_"}

// Documented returns the metrics of docs/monitoring.md whose names begin with a prefix, sorted.
func Documented(root, prefix string) (names []string, err error) {
	metrics, err := DocumentedLabels(root, prefix)
	return slices.Sorted(maps.Keys(metrics)), err
}

// rows returns the labels of these metrics as the tables have them, one metric after the other: name, or name: values.
func rows(root, prefix string) (names []string, labels [][]string, err error) {
	text, err := os.ReadFile(filepath.Join(root, "docs/monitoring.md"))
	if err != nil {
		return nil, nil, err
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `("+prefix+"[a-z_]+)` \\| ?([^|]*?) ?\\|").FindAllSubmatch(text, -1) {
		names = append(names, string(row[1]))
		labels = append(labels, strings.FieldsFunc(string(row[2]), func(r rune) bool { return r == ';' }))
	}
	return names, labels, nil
}

// DocumentedLabels returns these metrics with the names of their labels, sorted.
func DocumentedLabels(root, prefix string) (map[string][]string, error) {
	names, labels, err := rows(root, prefix)
	metrics := map[string][]string{}
	for i, name := range names {
		metrics[name] = []string{}
		for _, label := range labels[i] {
			label, _, _ = strings.Cut(label, ":")
			metrics[name] = append(metrics[name], strings.TrimSpace(label))
		}
		slices.Sort(metrics[name])
	}
	return metrics, err
}

// Bound is which values a label can have.
type Bound struct {
	Values []string
	// Others is how many more there can be. Configured means that whoever configures the program names them.
	Others     int
	Configured bool
}

// Allows reports whether a label may have all these values.
func (b Bound) Allows(values map[string]bool) bool {
	others := 0
	for value := range values {
		if !slices.Contains(b.Values, value) {
			others++
		}
	}
	return b.Configured || others <= b.Others
}

// Bounds returns the bounds of the values of labels in docs/monitoring.md, by metric and label. A label without values
// has those of the row above it that names them.
func Bounds(root string) (map[string]map[string]Bound, error) {
	names, labels, err := rows(root, "(?:"+strings.Join(ours, "|")+")")
	if err != nil {
		return nil, err
	}
	bounds, last := map[string]map[string]Bound{}, map[string]Bound{}
	for i, name := range names {
		if len(labels[i]) > 0 {
			bounds[name] = map[string]Bound{}
		}
		for _, label := range labels[i] {
			label, values, named := strings.Cut(strings.TrimSpace(label), ": ")
			if !named {
				bounds[name][label] = last[label]
				continue
			}
			var bound Bound
			for value := range strings.SplitSeq(values, ", ") {
				if most, found := strings.CutPrefix(value, "at most "); found {
					if bound.Others, err = strconv.Atoi(most); err != nil {
						return nil, fmt.Errorf("%s, label %s: %w", name, label, err)
					}
				} else if value == "those of the configuration" {
					bound.Configured = true
				} else {
					bound.Values = append(bound.Values, value)
				}
			}
			bounds[name][label], last[label] = bound, bound
		}
	}
	return bounds, nil
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

// Monitor is a PodMonitor or a ServiceMonitor.
type Monitor struct {
	APIVersion, Kind string
	Metadata         struct{ Name, Namespace string }
	Spec             struct {
		JobLabel string
		Selector struct{ MatchLabels map[string]string }
		// PodMetricsEndpoints are those of a PodMonitor, Endpoints those of a ServiceMonitor.
		PodMetricsEndpoints, Endpoints []Endpoint
	}
}

// Endpoint is what is scraped of each pod that is selected.
type Endpoint struct {
	Port, Scheme  string
	Authorization *Authorization
	TLSConfig     struct{ InsecureSkipVerify bool }
	Relabelings   []struct {
		SourceLabels []string
		TargetLabel  string
	}
}

// Authorization names the Secret, in the namespace of the monitor, whose token pods get to see.
type Authorization struct {
	Type        string
	Credentials struct{ Name, Key string }
}

// Endpoint returns what a monitor scrapes, which is one thing.
func (m *Monitor) Endpoint() (Endpoint, error) {
	all := slices.Concat(m.Spec.PodMetricsEndpoints, m.Spec.Endpoints)
	if len(all) != 1 {
		return Endpoint{}, fmt.Errorf("%s %s: want one endpoint, not %d", m.Kind, m.Metadata.Name, len(all))
	}
	return all[0], nil
}

// Operator returns what an overlay of the folder has for Prometheus Operator: monitors, in which a field
// that is not known is an error, and the rights with which they are scraped.
func Operator(root, overlay string) (monitors []Monitor, rights []*unstructured.Unstructured, err error) {
	objects, err := kustomize.Build(filepath.Join(root, Folder, overlay), nil)
	if err != nil {
		return nil, nil, err
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "PodMonitor", "ServiceMonitor":
			text, err := object.MarshalJSON()
			if err != nil {
				return nil, nil, err
			}
			var m Monitor
			if err := yaml.UnmarshalStrict(text, &m); err != nil {
				return nil, nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
			}
			monitors = append(monitors, m)
		case "PrometheusRule":
		default:
			rights = append(rights, object)
		}
	}
	return monitors, rights, nil
}

var notInLabels = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// The labels that kubernetes_sd_configs give pods, of those that monitors need.
const (
	podName  = "__meta_kubernetes_pod_name"
	podNode  = "__meta_kubernetes_pod_node_name"
	podPhase = "__meta_kubernetes_pod_phase"
	podPort  = "__meta_kubernetes_pod_container_port_name"
)

func podLabel(name string) string {
	return "__meta_kubernetes_pod_label_" + notInLabels.ReplaceAllString(name, "_")
}

// Targets is an entry of the answer to a Prometheus with http_sd_configs.
type Targets struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Discover returns the ports of pods with the labels that kubernetes_sd_configs would give them, for
// a Prometheus without: Debian builds it so.
func Discover(pods []corev1.Pod) []Targets {
	found := []Targets{} // an answer without targets is a list, too
	for i := range pods {
		pod := &pods[i]
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				if pod.Status.PodIP == "" {
					continue
				}
				labels := map[string]string{podName: pod.Name, podNode: pod.Spec.NodeName, podPhase: string(pod.Status.Phase), podPort: port.Name}
				for name, value := range pod.Labels {
					labels[podLabel(name)] = value
				}
				found = append(found, Targets{[]string{net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))}, labels})
			}
		}
	}
	return found
}

// ScrapeConfig returns what Prometheus Operator makes of a PodMonitor: the configuration of a
// Prometheus that gets the pods of its namespace from a URL, as Discover finds them, and shows them
// a token if the monitor names one.
func (m *Monitor) ScrapeConfig(url, token string) (map[string]any, error) {
	if m.Kind != "PodMonitor" {
		return nil, fmt.Errorf("%s %s: want a PodMonitor", m.Kind, m.Metadata.Name)
	}
	endpoint, err := m.Endpoint()
	if err != nil {
		return nil, err
	}
	keep := func(source, value string) map[string]any {
		return map[string]any{"action": "keep", "source_labels": []string{source}, "regex": regexp.QuoteMeta(value)}
	}
	relabel := []any{keep(podPort, endpoint.Port)}
	for name, value := range m.Spec.Selector.MatchLabels {
		relabel = append(relabel, keep(podLabel(name), value))
	}
	relabel = append(relabel,
		map[string]any{"action": "drop", "source_labels": []string{podPhase}, "regex": "(Failed|Succeeded)"},
		map[string]any{"source_labels": []string{podName}, "target_label": "pod"},
		map[string]any{"source_labels": []string{podLabel(m.Spec.JobLabel)}, "regex": "(.+)", "target_label": "job"})
	for _, r := range endpoint.Relabelings {
		relabel = append(relabel, map[string]any{"source_labels": r.SourceLabels, "target_label": r.TargetLabel})
	}
	config := map[string]any{
		"job_name": "podMonitor/" + m.Metadata.Namespace + "/" + m.Metadata.Name, "relabel_configs": relabel,
		"http_sd_configs": []any{map[string]any{"url": url, "refresh_interval": "2s"}},
		"tls_config":      map[string]any{"insecure_skip_verify": endpoint.TLSConfig.InsecureSkipVerify},
	}
	if endpoint.Scheme != "" {
		config["scheme"] = endpoint.Scheme
	}
	if endpoint.Authorization != nil {
		config["authorization"] = map[string]any{"credentials": token}
	}
	return config, nil
}
