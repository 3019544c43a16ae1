package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/layer-locality/layer-locality/internal/monitoring"
)

// TestMonitors: what deploy/monitoring has Prometheus Operator scrape is in the shipped manifests: pods
// and a Service with these labels, in these namespaces, and ports of these names. The jobs get the names
// that alerts and dashboards look for.
func TestMonitors(t *testing.T) {
	agents := func(overlay string) []runtime.Object {
		objects, _ := buildAgent(t, overlay)
		return objects
	}
	jobs := []string{"layer-agent", "layer-locality-scheduler", "layer-prefetcher", "layer-resolver"}
	for overlay, installations := range map[string]map[string][][]runtime.Object{
		"base": {
			jobs[0]: {agents("containerd"), agents("cri-o"), agents("k3s"), agents("mixed")},
			jobs[1]: {build(t, "second-scheduler"), build(t, "default-scheduler")},
			jobs[2]: {build(t, "../prefetcher")},
			jobs[3]: {buildResolver(t)},
		},
		"okd": {jobs[0]: {agents("okd")}, jobs[1]: {build(t, "okd")}, jobs[2]: {build(t, "../prefetcher")}, jobs[3]: {buildResolver(t, "openshift")}},
	} {
		monitors, _, err := monitoring.Operator("../../../..", overlay)
		must(t, err)
		var names []string
		for _, m := range monitors {
			names = append(names, m.Metadata.Name)
			selector := labels.SelectorFromSet(m.Spec.Selector.MatchLabels)
			if selector.Empty() {
				t.Errorf("%s %s: want a selector", m.Kind, m.Metadata.Name)
			}
			endpoint, err := m.Endpoint()
			must(t, err)
			find := podsOf
			if m.Kind == "ServiceMonitor" {
				find = serviceOf
			}
			for i, objects := range installations[m.Metadata.Name] {
				found, ports := find(objects, m.Metadata.Namespace, selector)
				if !slices.Contains(ports, endpoint.Port) {
					t.Errorf("%s: %s %s: installation %d has the ports %q, not %s", overlay, m.Kind, m.Metadata.Name, i, ports, endpoint.Port)
				}
				if job := found[m.Spec.JobLabel]; job != m.Metadata.Name {
					t.Errorf("%s: %s %s: the label %s of installation %d is %q", overlay, m.Kind, m.Metadata.Name, m.Spec.JobLabel, i, job)
				}
			}
		}
		if slices.Sort(names); !slices.Equal(names, jobs) {
			t.Errorf("%s: there are monitors of %q", overlay, names)
		}
	}
	files, err := filepath.Glob(filepath.Join(deployed, "monitoring", "grafana", "*.json"))
	must(t, err)
	job := regexp.MustCompile(`\bjob=\\?"([^"\\]+)\\?"`)
	seen := map[string]bool{"layer-prefetcher": true} // its alerts know it by its metrics
	for _, file := range append(files, filepath.Join(deployed, "monitoring", "rules.yaml")) {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range job.FindAllSubmatch(text, -1) {
			if seen[string(m[1])] = true; !slices.Contains(jobs, string(m[1])) {
				t.Errorf("%s: no monitor makes the job %s", file, m[1])
			}
		}
	}
	if len(seen) != len(jobs) {
		t.Errorf("alerts and dashboards use the jobs %v", seen)
	}
}

// podsOf returns the labels of pods that workloads in a namespace make, if a selector finds them, and
// the names of their ports.
func podsOf(objects []runtime.Object, namespace string, selector labels.Selector) (found map[string]string, ports []string) {
	add := func(meta metav1.ObjectMeta, template *corev1.PodTemplateSpec) {
		if meta.Namespace != namespace || !selector.Matches(labels.Set(template.Labels)) {
			return
		}
		found = template.Labels
		for _, container := range template.Spec.Containers {
			for _, port := range container.Ports {
				ports = append(ports, port.Name)
			}
		}
	}
	for _, object := range objects {
		switch object := object.(type) {
		case *appsv1.Deployment:
			add(object.ObjectMeta, &object.Spec.Template)
		case *appsv1.DaemonSet:
			add(object.ObjectMeta, &object.Spec.Template)
		}
	}
	return found, ports
}

// serviceOf returns the labels of the Service that a selector finds, and the names of those of its
// ports that lead to one of its pods.
func serviceOf(objects []runtime.Object, namespace string, selector labels.Selector) (found map[string]string, ports []string) {
	for _, object := range objects {
		service, ok := object.(*corev1.Service)
		if !ok || service.Namespace != namespace || !selector.Matches(labels.Set(service.Labels)) {
			continue
		}
		found = service.Labels
		_, targets := podsOf(objects, namespace, labels.SelectorFromSet(service.Spec.Selector))
		for _, port := range service.Spec.Ports {
			if slices.Contains(targets, port.TargetPort.StrVal) {
				ports = append(ports, port.Name)
			}
		}
	}
	return found, ports
}
