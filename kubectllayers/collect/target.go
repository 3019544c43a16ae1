package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	daemonutil "k8s.io/kubernetes/pkg/controller/daemon/util"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/imageref/podtemplate"
	"github.com/layer-locality/layer-locality/terminal"
)

// Target is the pod that a question is about: one of a name, what a workload makes pods of, one in a
// file, or one made of images.
type Target struct {
	Kind, Namespace, Name string
	// Template is which of the object's pod templates Pod is of; empty if it has only one.
	Template string
	// Pod is the pod as the apiserver has it if Kind is pod; otherwise one without name and
	// node.
	Pod *v1.Pod
}

// String returns KIND/NAME, and the template in brackets.
func (t *Target) String() string {
	name := t.Kind + "/" + terminal.Line(t.Name, maxName)
	if t.Template != "" {
		name += " (" + terminal.Line(t.Template, maxName) + ")"
	}
	return name
}

// What names of objects and of kinds have at most.
const (
	maxName = 253
	maxKind = 63
)

// kind is a kind of workload that Kubernetes has.
type kind struct {
	name  string
	short []string
	get   func(context.Context, kubernetes.Interface, string, string) (*v1.PodTemplateSpec, error)
}

const daemonSet = "daemonset"

var kinds = []kind{
	{"deployment", []string{"deploy"}, func(ctx context.Context, c kubernetes.Interface, namespace, name string) (*v1.PodTemplateSpec, error) {
		o, err := c.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		return &o.Spec.Template, err
	}},
	{"statefulset", []string{"sts"}, func(ctx context.Context, c kubernetes.Interface, namespace, name string) (*v1.PodTemplateSpec, error) {
		o, err := c.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{})
		return &o.Spec.Template, err
	}},
	{daemonSet, []string{"ds"}, func(ctx context.Context, c kubernetes.Interface, namespace, name string) (*v1.PodTemplateSpec, error) {
		o, err := c.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		return &o.Spec.Template, err
	}},
	{"replicaset", []string{"rs"}, func(ctx context.Context, c kubernetes.Interface, namespace, name string) (*v1.PodTemplateSpec, error) {
		o, err := c.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		return &o.Spec.Template, err
	}},
	{"job", nil, func(ctx context.Context, c kubernetes.Interface, namespace, name string) (*v1.PodTemplateSpec, error) {
		o, err := c.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
		return &o.Spec.Template, err
	}},
	{"cronjob", []string{"cj"}, func(ctx context.Context, c kubernetes.Interface, namespace, name string) (*v1.PodTemplateSpec, error) {
		o, err := c.BatchV1().CronJobs(namespace).Get(ctx, name, metav1.GetOptions{})
		return &o.Spec.JobTemplate.Spec.Template, err
	}},
}

// WorkloadKinds returns the kinds of workloads that TargetOf gets, besides pod.
func WorkloadKinds() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// KindAliases returns the other names of a kind.
func KindAliases(name string) []string {
	for _, k := range kinds {
		if k.name == name {
			return append([]string{k.name + "s"}, k.short...)
		}
	}
	return nil
}

func (k *kind) is(name string) bool {
	name = strings.ToLower(name)
	name, _, _ = strings.Cut(name, ".") // deployments.apps
	return name == k.name || name == k.name+"s" || slices.Contains(k.short, name)
}

func isPod(name string) bool {
	return slices.Contains([]string{"pod", "pods", "po"}, strings.ToLower(name))
}

// TargetOf returns what NAME or KIND/NAME stands for in a namespace.
func TargetOf(ctx context.Context, client kubernetes.Interface, namespace, argument string) (*Target, error) {
	wanted, name, both := strings.Cut(argument, "/")
	if !both {
		wanted, name = "", argument
	}
	if name == "" || len(name) > maxName || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q is no name: want NAME or KIND/NAME, such as web-0 or deployment/web", terminal.Line(argument, maxName))
	}
	if wanted != "" && !isPod(wanted) && !slices.ContainsFunc(kinds, func(k kind) bool { return k.is(wanted) }) {
		return nil, fmt.Errorf("%q is no kind of workload: want pod, %s; for other kinds save the object in a file and use -f", terminal.Line(wanted, maxName), strings.Join(WorkloadKinds(), ", "))
	}
	var found []*Target
	forbidden := false
	// take notes what a kind has. After an error that is not about the name, no other kind is asked.
	take := func(kind string, pod *v1.Pod, err error) error {
		switch {
		case err == nil:
			found = append(found, &Target{Kind: kind, Namespace: namespace, Name: name, Pod: pod})
		case apierrors.IsForbidden(err):
			forbidden = true
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("cannot get %q in namespace %q: %s: check that the apiserver answers", terminal.Line(argument, maxName), namespace, terminal.Line(err.Error(), 300))
		}
		return nil
	}
	if wanted == "" || isPod(wanted) {
		pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err := take("pod", pod, err); err != nil {
			return nil, err
		}
	}
	for i := range kinds {
		k := &kinds[i]
		if wanted != "" && !k.is(wanted) {
			continue
		}
		template, err := k.get(ctx, client, namespace, name)
		if err := take(k.name, podOf(k.name, namespace, template), err); err != nil {
			return nil, err
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var all []string
		for _, t := range found {
			all = append(all, t.String())
		}
		return nil, fmt.Errorf("%q fits %s: name one of them", terminal.Line(name, maxName), strings.Join(all, " and "))
	case forbidden:
		return nil, fmt.Errorf("you may not get %s %q in namespace %q: name a kind that you may get (KIND/NAME), or ask for the role view there", kindOr(wanted, "pod or workload"), terminal.Line(name, maxName), namespace)
	}
	return nil, fmt.Errorf("there is no %s %q in namespace %q: see kubectl get %s -A, or name another namespace with -n", kindOr(wanted, "pod or workload"), terminal.Line(name, maxName), namespace, kindOr(wanted, "pods"))
}

func kindOr(kind, other string) string {
	if kind == "" {
		return other
	}
	return strings.ToLower(kind)
}

// podOf returns the pod that a kind of workload would make of its template, as the apiserver would store it.
func podOf(kind, namespace string, template *v1.PodTemplateSpec) *v1.Pod {
	if template == nil {
		return nil
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec}
	pod.Spec.NodeName = ""
	if kind == daemonSet {
		daemonutil.AddOrUpdateDaemonPodTolerations(&pod.Spec)
	}
	setDefaults(pod)
	return pod
}

// setDefaults sets what the apiserver sets in pods only, not in templates: requests where there are only limits.
func setDefaults(pod *v1.Pod) { corev1.SetDefaults_Pod(pod) }

// TargetOfImages returns a pod made of images. Each must be a valid reference.
func TargetOfImages(namespace string, references []string) (*Target, error) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
	for _, reference := range references {
		if _, err := imageref.Parse(reference); err != nil {
			return nil, fmt.Errorf("%q is no image reference: want REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@DIGEST", terminal.Line(reference, 200))
		}
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint("c", len(pod.Spec.Containers)), Image: reference})
	}
	name := strings.Join(references, ",")
	return &Target{Kind: "image", Namespace: namespace, Name: name, Pod: pod}, nil
}

// What a file holds at most.
const (
	maxFile    = 4 << 20
	maxObjects = 10_000
)

// TargetInFile reads the pod in a file, in YAML or JSON: a pod, or anything with a pod template. If
// there are several, wanted (KIND/NAME) names it, and template which of its templates it is of.
func TargetInFile(ctx context.Context, from io.Reader, file, namespace, wanted, template string) (*Target, error) {
	file = terminal.Line(file, 200)
	data, err := readAll(ctx, io.LimitReader(from, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %s", file, terminal.Line(err.Error(), 300))
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s has more than %d MiB: save the one object that you mean in a file of its own", file, maxFile>>20)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var found []*inFile
	objects := 0
	for {
		var raw map[string]any
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s is neither YAML nor JSON of Kubernetes objects: %s", file, terminal.Line(err.Error(), 300))
		}
		for _, object := range flatten(raw, 0) {
			if objects++; objects > maxObjects {
				return nil, fmt.Errorf("%s has more than %d objects: save the one that you mean in a file of its own", file, maxObjects)
			}
			if t := fromObject(object, namespace); t != nil {
				found = append(found, t)
			}
		}
	}
	if wanted != "" {
		found = slices.DeleteFunc(found, func(t *inFile) bool { return t.Kind+"/"+t.Name != strings.ToLower(wanted) && t.Name != wanted })
		if len(found) == 0 {
			return nil, fmt.Errorf("%s has no %q with pods: see what it has with kubectl apply --dry-run=client -f", file, terminal.Line(wanted, maxName))
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%s has %d objects, none of them a pod or with a pod template: name a file that has one", file, objects)
	case 1:
		return found[0].choose(template)
	}
	return nil, fmt.Errorf("%s has %d objects with pods (%s): add the one that you mean, as KIND/NAME", file, len(found), choices(found, (*inFile).String))
}

// choices returns the first ones of what there is to choose from.
func choices[T any](all []T, name func(T) string) string {
	var names []string
	for _, one := range all[:min(5, len(all))] {
		names = append(names, terminal.Line(name(one), maxName))
	}
	if len(all) > len(names) {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

// inFile is an object in a file: a pod, or one with pod templates.
type inFile struct {
	Target
	templates []podtemplate.Found
}

// choose returns the pod of an object, or that of one of its templates: wanted is a name or a path.
func (o *inFile) choose(wanted string) (*Target, error) {
	if o.Pod != nil {
		if wanted != "" {
			return nil, fmt.Errorf("%s is a pod and has no template: leave out --template", o)
		}
		return &o.Target, nil
	}
	var fit []podtemplate.Found
	names := map[string]bool{}
	for _, f := range o.templates {
		if wanted == "" || f.Name == wanted || f.Path == wanted {
			fit = append(fit, f)
		}
		names[f.Name] = true
	}
	label := func(f podtemplate.Found) string {
		if len(names) < len(o.templates) { // some have the same
			return f.Path
		}
		return f.Name
	}
	switch {
	case len(fit) == 0:
		return nil, fmt.Errorf("%s has no pod template %q: it has %s", o, terminal.Line(wanted, maxName), choices(o.templates, label))
	case len(fit) > 1:
		return nil, fmt.Errorf("%s has %d pod templates (%s): add the one that you mean, as --template NAME", o, len(fit), choices(fit, label))
	case len(o.templates) > 1:
		o.Template = wanted
	}
	o.Pod = podOf(o.Kind, o.Namespace, &fit[0].Template)
	return &o.Target, nil
}

// readAll reads all. A terminal or a pipe may never end, so it does not outlive the context; what waits for
// more of it then ends with the program.
func readAll(ctx context.Context, from io.Reader) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(from)
		done <- result{data, err}
	}()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case r := <-done:
		return r.data, r.err
	}
}

// flatten returns an object, or the objects of a list.
func flatten(raw map[string]any, depth int) []map[string]any {
	items, ok := raw["items"].([]any)
	if kind, _ := raw["kind"].(string); !ok || !strings.HasSuffix(kind, "List") || depth > 2 {
		if len(raw) == 0 {
			return nil
		}
		return []map[string]any{raw}
	}
	var all []map[string]any
	for _, item := range items {
		if object, ok := item.(map[string]any); ok {
			all = append(all, flatten(object, depth+1)...)
		}
	}
	return all
}

// fromObject returns an object with pods; nil if it has none.
func fromObject(raw map[string]any, namespace string) *inFile {
	kindName, _, _ := unstructured.NestedString(raw, "kind")
	name, _, _ := unstructured.NestedString(raw, "metadata", "name")
	o := &inFile{Target: Target{Kind: strings.ToLower(terminal.Line(kindName, maxKind)), Namespace: namespace, Name: name}}
	if n, _, _ := unstructured.NestedString(raw, "metadata", "namespace"); n != "" {
		o.Namespace = n
	}
	if o.Kind == "pod" {
		pod := &v1.Pod{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(raw, pod) != nil || len(pod.Spec.Containers) == 0 {
			return nil
		}
		pod.Spec.NodeName, pod.Status = "", v1.PodStatus{} // it is not there yet
		pod.UID = ""
		setDefaults(pod)
		o.Pod = pod
		return o
	}
	if o.templates = podtemplate.In(raw); len(o.templates) == 0 {
		return nil
	}
	return o
}
