package collect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
)

// server is an apiserver that has some objects, and answers with a status where there is one.
type server struct {
	objects map[string]string // by path
	status  map[string]int    // by resource
	asked   []string
}

// kinds are those of workloads, by group and resource.
var kinds = map[string][]metav1.APIResource{
	"v1":                 {{Name: "pods", SingularName: "pod", ShortNames: []string{"po"}, Kind: "Pod", Namespaced: true}, {Name: "services", Kind: "Service", Namespaced: true}},
	"apps/v1":            {{Name: "deployments", SingularName: "deployment", ShortNames: []string{"deploy"}, Kind: "Deployment", Namespaced: true}, {Name: "daemonsets", SingularName: "daemonset", ShortNames: []string{"ds"}, Kind: "DaemonSet", Namespaced: true}, {Name: "statefulsets", Kind: "StatefulSet", Namespaced: true}, {Name: "replicasets", Kind: "ReplicaSet", Namespaced: true}},
	"batch/v1":           {{Name: "jobs", SingularName: "job", Kind: "Job", Namespaced: true}, {Name: "cronjobs", Kind: "CronJob", Namespaced: true}},
	"jobset.x-k8s.io/v1": {{Name: "jobsets", SingularName: "jobset", Kind: "JobSet", Namespaced: true}},
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var answer any
	switch path := strings.Trim(r.URL.Path, "/"); {
	case path == "api":
		answer = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for version := range kinds {
			if group, v, both := strings.Cut(version, "/"); both {
				of := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: v}
				list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{of}, PreferredVersion: of})
			}
		}
		answer = list
	case kinds[strings.TrimPrefix(strings.TrimPrefix(path, "apis/"), "api/")] != nil:
		version := strings.TrimPrefix(strings.TrimPrefix(path, "apis/"), "api/")
		answer = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version, APIResources: kinds[version]}
	default:
		parts := strings.Split(path, "/")
		resource := parts[len(parts)-2]
		s.asked = append(s.asked, resource)
		code := cmp.Or(s.status[resource], http.StatusNotFound)
		if text, ok := s.objects[resource+"/"+parts[len(parts)-1]]; ok && s.status[resource] == 0 {
			_, _ = io.WriteString(w, text)
			return
		}
		w.WriteHeader(code)
		reason := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden}[code]
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "\x1b[2Jslow"} //nolint:gosec // small
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// getter returns what kubectl's builder asks a server with.
func getter(t testing.TB, s *server) *genericclioptions.ConfigFlags {
	t.Helper()
	listens := httptest.NewServer(s)
	t.Cleanup(listens.Close)
	flags := genericclioptions.NewConfigFlags(true)
	folder, none := t.TempDir(), filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(none, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	flags.APIServer, flags.CacheDir, flags.KubeConfig = &listens.URL, &folder, &none
	return flags
}

func workload(kind, version, name, spec string) string {
	return fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{"namespace":"ns","name":%q},"spec":{"template":{"spec":%s}}}`, kind, version, name, spec)
}

func TestTargetOf(t *testing.T) {
	const of = `{"containers":[{"name":"c","image":%q}]}`
	s := &server{status: map[string]int{}, objects: map[string]string{
		"pods/one":         `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"ns","name":"one","uid":"u"},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"a"}]}}`,
		"pods/both":        `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"ns","name":"both"},"spec":{"containers":[{"name":"c","image":"a"}]}}`,
		"deployments/both": workload("Deployment", "apps/v1", "both", fmt.Sprintf(of, "b")), "daemonsets/set": workload("DaemonSet", "apps/v1", "set", fmt.Sprintf(of, "d")),
		"jobsets/train": workload("JobSet", "jobset.x-k8s.io/v1", "train", fmt.Sprintf(of, "t")), "services/x": `{"kind":"Service","apiVersion":"v1","metadata":{"name":"x"}}`,
	}}
	flags := getter(t, s)
	for argument, want := range map[string]string{"one": "pod/one a", "pods/one": "pod/one a", "po/one": "pod/one a", "deploy/both": "deployment/both b", "deployments.apps/both": "deployment/both b", "set": "daemonset/set d", "ds/set": "daemonset/set d", "jobset/train": "jobset/train t"} {
		got, err := TargetOf(flags, "ns", argument, "")
		if err != nil || got.String()+" "+got.Pod.Spec.Containers[0].Image != want || (got.Pod.Spec.NodeName != "") != (want == "pod/one a") {
			t.Errorf("%s: %+v, %v", argument, got, err)
		}
		if both := strings.Contains(argument, "/"); IsObject(flags, argument) != both {
			t.Errorf("%s is KIND/NAME: %t", argument, !both)
		}
	}
	for _, argument := range []string{"library/nginx", "quay.io/a/b", "pod/one:v1", "pod/one@sha256:0", "/pod", "nginx"} {
		if IsObject(flags, argument) {
			t.Errorf("%s is KIND/NAME", argument)
		}
	}
	for argument, want := range map[string]string{
		"both": "fits pod/both, deployment/both: name one", "none": `there is no pod or workload none in namespace "ns": see kubectl get pods -A`, "job/set": "there is no job/set", "a/b/c": "is no name", "": "is no name",
		"service/x": "service/x has no pod template: name a pod or a workload", "rollout/x": `the server doesn't have a resource type "rollout": see kubectl api-resources`,
	} {
		if got, err := TargetOf(flags, "ns", argument, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", argument, got, err, want)
		}
	}
	// What may not be read does not hide what may, and is named if nothing is found.
	s.status["jobs"] = http.StatusForbidden
	if _, err := TargetOf(flags, "ns", "set", ""); err != nil {
		t.Error(err)
	}
	if _, err := TargetOf(flags, "ns", "none", ""); err == nil || !strings.Contains(err.Error(), "you may not get pod or workload none") {
		t.Error(err)
	}
}

// file returns the options of -f with a file of a text.
func file(t testing.TB, text string) *resource.FilenameOptions {
	t.Helper()
	name := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &resource.FilenameOptions{Filenames: []string{name}}
}

// nowhere is a cluster that a file does not need.
var nowhere = genericclioptions.NewConfigFlags(true)

// A pod is as the apiserver would store it, and a controller make it: what has a limit and no request
// requests that much, and a DaemonSet's pod goes to nodes that are cordoned.
func TestTargetDefaults(t *testing.T) {
	const spec = `{"containers":[{"name":"c","image":"a","resources":{"limits":{"memory":"8Gi"}}}]}`
	flags := getter(t, &server{objects: map[string]string{"deployments/x": workload("Deployment", "apps/v1", "x", spec), "daemonsets/x": workload("DaemonSet", "apps/v1", "x", spec)}})
	for name, get := range map[string]func() (*Target, error){
		"deployment": func() (*Target, error) { return TargetOf(flags, "ns", "deployment/x", "") },
		"daemonset":  func() (*Target, error) { return TargetOf(flags, "ns", "ds/x", "") },
		"a pod in a file": func() (*Target, error) {
			return TargetInFile(nowhere, file(t, `{kind: Pod, spec: `+spec+`}`), "ns", "", "")
		},
		"a template in a file": func() (*Target, error) {
			return TargetInFile(nowhere, file(t, `{kind: Job, spec: {template: {spec: `+spec+`}}}`), "ns", "", "")
		},
		"daemonset in a file": func() (*Target, error) {
			return TargetInFile(nowhere, file(t, `{kind: DaemonSet, spec: {template: {spec: `+spec+`}}}`), "ns", "", "")
		},
	} {
		got, err := get()
		if err != nil {
			t.Fatal(err)
		}
		if requests := got.Pod.Spec.Containers[0].Resources.Requests; requests.Memory().String() != "8Gi" {
			t.Errorf("%s: requests %v", name, requests)
		}
		goes := slices.ContainsFunc(got.Pod.Spec.Tolerations, func(t v1.Toleration) bool { return t.Key == v1.TaintNodeUnschedulable })
		if goes != strings.HasPrefix(name, "daemonset") {
			t.Errorf("%s: tolerations %v", name, got.Pod.Spec.Tolerations)
		}
	}
}

// Nothing else is asked of an apiserver that fails: each kind would take its time-out again.
func TestTargetOfFails(t *testing.T) {
	for resource, want := range map[string][]string{"pods": {"pods"}, "deployments": {"pods", "deployments"}} {
		s := &server{status: map[string]int{resource: http.StatusInternalServerError}}
		got, err := TargetOf(getter(t, s), "ns", "set", "")
		if err == nil || !strings.HasPrefix(err.Error(), `cannot get pod or workload set in namespace "ns": `) || strings.ContainsRune(err.Error(), '\x1b') || !strings.HasSuffix(err.Error(), "check that the apiserver answers") {
			t.Errorf("%s: %+v, %v", resource, got, err)
		}
		s.asked = slices.DeleteFunc(s.asked, func(r string) bool { return r == "namespaces" }) // whether it is there, after nothing was found
		if !slices.Equal(s.asked, want) {
			t.Errorf("%s fail, and %q are asked, want %q", resource, s.asked, want)
		}
	}
}

func TestTargetInFile(t *testing.T) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: other, uid: u}, spec: {nodeName: n1, containers: [{name: c, image: a}]}, status: {phase: Failed}}`
	got, err := TargetInFile(nowhere, file(t, pod), "ns", "", "")
	if err != nil || got.String() != "pod/p" || got.Namespace != "other" || got.Pod.Spec.NodeName != "" || got.Pod.UID != "" || got.Pod.Status.Phase != "" {
		t.Errorf("%+v, %v", got, err)
	}
	rollout := `{"kind":"List","apiVersion":"v1","items":[{"kind":"Rollout","apiVersion":"a/v1","metadata":{"name":"r"},"spec":{"template":{"spec":{"containers":[{"image":"b"}]}}}}]}`
	if got, err = TargetInFile(nowhere, file(t, rollout), "ns", "", ""); err != nil || got.String() != "rollout/r" || got.Namespace != "ns" || got.Pod.Spec.Containers[0].Image != "b" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err = TargetInFile(nowhere, file(t, pod+"\n---\n"+rollout), "ns", "", ""); err == nil || !strings.Contains(err.Error(), "2 objects with pods (pod/p, rollout/r)") {
		t.Error(err)
	}
	if got, err = TargetInFile(nowhere, file(t, pod+"\n---\n"+rollout), "ns", "rollout/r", ""); err != nil || got.Name != "r" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err = TargetInFile(nowhere, file(t, pod), "ns", "pod/q", ""); err == nil || !strings.Contains(err.Error(), `has no "pod/q" with pods`) {
		t.Error(err)
	}
}

// Kinds of batch and machine learning have a template for each of several roles. What one is meant is asked
// for, and said in the answer.
func TestTargetOfTemplates(t *testing.T) {
	pod := func(image string) string {
		return "{metadata: {labels: {of: " + image + "}}, spec: {nodeName: n1, containers: [{name: c, image: " + image + ", resources: {limits: {memory: 8Gi}}}]}}"
	}
	job := func(name, image string) string {
		return "{name: " + name + ", template: {spec: {template: " + pod(image) + "}}}"
	}
	const head = "{kind: JobSet, metadata: {name: x}, spec: {replicatedJobs: ["
	one, two, same := head+job("driver", "a")+"]}}", head+job("driver", "a")+", "+job("workers", "b")+"]}}", head+job("w", "a")+", "+job("w", "b")+"]}}"
	for name, c := range map[string]struct{ object, template, want string }{
		"one":            {one, "", "jobset/x a"},
		"one, named":     {one, "driver", "jobset/x a"},
		"by name":        {two, "workers", "jobset/x (workers) b"},
		"by path":        {two, "spec.replicatedJobs[0].template.spec.template", "jobset/x (spec.replicatedJobs[0].template.spec.template) a"},
		"a Ray cluster":  {"{kind: RayCluster, metadata: {name: x}, spec: {headGroupSpec: {template: " + pod("a") + "}, workerGroupSpecs: [{groupName: gpu, template: " + pod("b") + "}]}}", "gpu", "raycluster/x (gpu) b"},
		"not said":       {two, "", "jobset/x has 2 pod templates (driver, workers): add the one that you mean, as --pod-template NAME"},
		"another":        {two, "\x1b[2J", "jobset/x has no pod template \"\uFFFD[2J\": it has driver, workers"},
		"the same names": {same, "w", "jobset/x has 2 pod templates (spec.replicatedJobs[0].template.spec.template, spec.replicatedJobs[1].template.spec.template): add the one"},
		"a pod":          {"{kind: Pod, metadata: {name: x}, spec: {containers: [{image: a}]}}", "w", "pod/x is a pod and has no template"},
		"none":           {"{kind: SparkApplication, metadata: {name: x}, spec: {driver: {image: a}}}", "", "the file has no pod and no pod template (objects: 1)"},
	} {
		found, err := TargetInFile(nowhere, file(t, c.object), "ns", "", c.template)
		if err != nil {
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", name, err, c.want)
			}
			continue
		}
		container := found.Pod.Spec.Containers[0]
		if got := found.String() + " " + container.Image; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		// As the apiserver would store it.
		if found.Pod.Spec.NodeName != "" || found.Pod.Labels["of"] != container.Image || container.Resources.Requests.Memory().String() != "8Gi" {
			t.Errorf("%s: %+v", name, found.Pod)
		}
	}
}

func FuzzTargetInFile(f *testing.F) {
	f.Add(`{kind: Pod, spec: {containers: [{image: a}]}}`, "")
	f.Add("kind: List\nitems:\n- {kind: X, spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: a}]}}}}}}", "x/")
	f.Add(`{"kind":"List","items":[1,null,{"items":{}}]}`, "")
	f.Add(`{"kind":"\u001b]0;x`+strings.Repeat("y", 100)+`","spec":{"template":{"spec":{"containers":[{"image":"b"}]}}}}`, "")
	f.Add(`{kind: X, spec: {"a\u001b": {spec: {containers: [{image: a}]}}, b: {spec: {containers: [{image: a}]}}}}`, "a\x1b")
	f.Fuzz(func(t *testing.T, text, wanted string) {
		got, err := TargetInFile(nowhere, file(t, text), "ns", wanted, "")
		if err != nil {
			got, err = TargetInFile(nowhere, file(t, text), "ns", "", wanted)
		}
		if (got == nil) == (err == nil) {
			t.Errorf("%+v, %v", got, err)
		}
		if got != nil && len(got.Pod.Spec.Containers) == 0 {
			t.Error("a pod without containers")
		}
		if got != nil && (utf8.RuneCountInString(got.String()) > 2*maxName+maxKind+4 || strings.ContainsFunc(got.String(), unicode.IsControl)) {
			t.Errorf("%q", got)
		}
	})
}
