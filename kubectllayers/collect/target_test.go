package collect

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func template(image string) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}}}
}

func TestTargetOf(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	client := fake.NewClientset(
		&v1.Pod{ObjectMeta: meta("one"), Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Image: "a"}}}},
		&v1.Pod{ObjectMeta: meta("both")}, &appsv1.Deployment{ObjectMeta: meta("both"), Spec: appsv1.DeploymentSpec{Template: template("b")}},
		&appsv1.DaemonSet{ObjectMeta: meta("set"), Spec: appsv1.DaemonSetSpec{Template: template("d")}})
	for argument, want := range map[string]string{"one": "pod/one a", "pods/one": "pod/one a", "po/one": "pod/one a", "Deploy/both": "deployment/both b", "deployments.apps/both": "deployment/both b", "set": "daemonset/set d", "ds/set": "daemonset/set d"} {
		got, err := TargetOf(t.Context(), client, "ns", argument)
		if err != nil || got.String()+" "+got.Pod.Spec.Containers[0].Image != want {
			t.Errorf("%s: %+v, %v", argument, got, err)
		}
	}
	for argument, want := range map[string]string{
		"both": `"both" fits pod/both and deployment/both`, "none": "there is no pod or workload", "job/set": `there is no job "set"`, "a/b/c": "is no name", "": "is no name", "service/x": "is no kind of workload",
	} {
		if got, err := TargetOf(t.Context(), client, "ns", argument); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", argument, got, err, want)
		}
	}
	// What may not be read does not hide what may, and is named if nothing is found.
	client.PrependReactor("get", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "jobs"}, "x", nil)
	})
	if _, err := TargetOf(t.Context(), client, "ns", "set"); err != nil {
		t.Error(err)
	}
	if _, err := TargetOf(t.Context(), client, "ns", "none"); err == nil || !strings.Contains(err.Error(), "you may not get pod or workload") {
		t.Error(err)
	}
}

// A pod is as the apiserver would store it, and a controller make it: what has a limit and no request
// requests that much, and a DaemonSet's pod goes to nodes that are cordoned.
func TestTargetDefaults(t *testing.T) {
	limited := template("a")
	limited.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("8Gi")}
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "x"}
	client := fake.NewClientset(&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: limited}},
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: limited}})
	const spec = `{containers: [{name: c, image: a, resources: {limits: {memory: 8Gi}}}]}`
	for name, get := range map[string]func() (*Target, error){
		"deployment": func() (*Target, error) { return TargetOf(t.Context(), client, "ns", "deployment/x") },
		"daemonset":  func() (*Target, error) { return TargetOf(t.Context(), client, "ns", "ds/x") },
		"a pod in a file": func() (*Target, error) {
			return TargetInFile(t.Context(), strings.NewReader(`{kind: Pod, spec: `+spec+`}`), "f", "ns", "", "")
		},
		"a template in a file": func() (*Target, error) {
			return TargetInFile(t.Context(), strings.NewReader(`{kind: Job, spec: {template: {spec: `+spec+`}}}`), "f", "ns", "", "")
		},
		"daemonset in a file": func() (*Target, error) {
			return TargetInFile(t.Context(), strings.NewReader(`{kind: DaemonSet, spec: {template: {spec: `+spec+`}}}`), "f", "ns", "", "")
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

// A terminal on which nobody types does not hold up who interrupts the command.
func TestTargetInFileIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	from, typed := io.Pipe()
	defer typed.Close()
	cancel()
	if got, err := TargetInFile(ctx, from, "f", "ns", "", ""); err == nil || !strings.Contains(err.Error(), "cannot read f: context canceled") {
		t.Errorf("%+v, %v", got, err)
	}
}

// Nothing else is asked of an apiserver that fails: each kind would take its time-out again.
func TestTargetOfFails(t *testing.T) {
	for resource, want := range map[string][]string{"pods": {"pods"}, "deployments": {"pods", "deployments"}} {
		client := fake.NewClientset(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "set"}})
		client.PrependReactor("get", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewTimeoutError("\x1b[2Jslow", 0)
		})
		got, err := TargetOf(t.Context(), client, "ns", "set")
		if err == nil || !strings.HasPrefix(err.Error(), `cannot get "set" in namespace "ns": `) || !strings.HasSuffix(err.Error(), "\uFFFD[2Jslow: check that the apiserver answers") {
			t.Errorf("%s: %+v, %v", resource, got, err)
		}
		var asked []string
		for _, action := range client.Actions() {
			asked = append(asked, action.GetResource().Resource)
		}
		if !slices.Equal(asked, want) {
			t.Errorf("%s fail, and %q are asked, want %q", resource, asked, want)
		}
	}
}

func TestTargetInFile(t *testing.T) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: other}, spec: {nodeName: n1, containers: [{name: c, image: a}]}}`
	got, err := TargetInFile(t.Context(), strings.NewReader(pod), "f", "ns", "", "")
	if err != nil || got.String() != "pod/p" || got.Namespace != "other" || got.Pod.Spec.NodeName != "" {
		t.Errorf("%+v, %v", got, err)
	}
	rollout := `{"kind":"List","items":[{"kind":"List","items":[{"kind":"Rollout","metadata":{"name":"r"},"spec":{"template":{"spec":{"containers":[{"image":"b"}]}}}}]}]}`
	if got, err = TargetInFile(t.Context(), strings.NewReader(rollout), "f", "ns", "", ""); err != nil || got.String() != "rollout/r" || got.Namespace != "ns" || got.Pod.Spec.Containers[0].Image != "b" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err = TargetInFile(t.Context(), strings.NewReader(pod+"\n---\n"+rollout), "f", "ns", "", ""); err == nil || !strings.Contains(err.Error(), "2 objects with pods (pod/p, rollout/r)") {
		t.Error(err)
	}
	if got, err = TargetInFile(t.Context(), strings.NewReader(pod+"\n---\n"+rollout), "f", "ns", "rollout/r", ""); err != nil || got.Name != "r" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err = TargetInFile(t.Context(), strings.NewReader(pod), "f", "ns", "pod/q", ""); err == nil || !strings.Contains(err.Error(), `has no "pod/q" with pods`) {
		t.Error(err)
	}
	if _, err = TargetInFile(t.Context(), strings.NewReader(strings.Repeat("---\na: b\n", maxObjects+1)), "f", "ns", "", ""); err == nil || !strings.Contains(err.Error(), "more than 10000 objects") {
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
		"not said":       {two, "", "jobset/x has 2 pod templates (driver, workers): add the one that you mean, as --template NAME"},
		"another":        {two, "\x1b[2J", "jobset/x has no pod template \"\uFFFD[2J\": it has driver, workers"},
		"the same names": {same, "w", "jobset/x has 2 pod templates (spec.replicatedJobs[0].template.spec.template, spec.replicatedJobs[1].template.spec.template): add the one"},
		"a pod":          {"{kind: Pod, metadata: {name: x}, spec: {containers: [{image: a}]}}", "w", "pod/x is a pod and has no template"},
		"none":           {"{kind: SparkApplication, metadata: {name: x}, spec: {driver: {image: a}}}", "", "f has 1 objects, none of them a pod or with a pod template"},
	} {
		found, err := TargetInFile(t.Context(), strings.NewReader(c.object), "f", "ns", "", c.template)
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
		got, err := TargetInFile(t.Context(), strings.NewReader(text), "f", "ns", wanted, "")
		if err != nil {
			got, err = TargetInFile(t.Context(), strings.NewReader(text), "f", "ns", "", wanted)
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
		if err != nil && (len(err.Error()) > 5000 || strings.ContainsRune(err.Error(), '\x1b')) {
			t.Errorf("%q", err)
		}
	})
}
