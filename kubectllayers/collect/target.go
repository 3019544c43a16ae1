package collect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
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

// workloads are where NAME without a kind is looked for.
var workloads = []string{"pods", "deployments.apps", "statefulsets.apps", "daemonsets.apps", "replicasets.apps", "jobs.batch", "cronjobs.batch"}

const daemonSet = "daemonset"

// TargetOf returns what NAME or KIND/NAME stands for in a namespace: a pod, or an object of any kind with pod
// templates, of which template chooses one.
func TargetOf(getter resource.RESTClientGetter, namespace, argument, template string) (*Target, error) {
	kind, name, both := strings.Cut(argument, "/")
	named, what := []string{argument}, terminal.Line(argument, maxName)
	if !both {
		kind, name, named, what = "pods", argument, nil, "pod or workload "+what
		for _, kind := range workloads {
			named = append(named, kind+"/"+argument)
		}
	}
	if kind == "" || name == "" || len(argument) > maxName || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q is no name: want NAME or KIND/NAME, such as web-0 or deployment/web", terminal.Line(argument, maxName))
	}
	var found []*object
	forbidden := false
	for _, one := range named {
		infos, err := resource.NewBuilder(getter).Unstructured().NamespaceParam(namespace).DefaultNamespace().ResourceTypeOrNameArgs(false, one).Do().Infos()
		switch {
		case apierrors.IsForbidden(err):
			forbidden = true
		case apierrors.IsNotFound(err):
		case err != nil: // which is not about the name, so no other kind is asked
			return nil, fmt.Errorf("cannot get %s in namespace %q: %s: see kubectl api-resources, and check that the apiserver answers", what, namespace, terminal.Line(err.Error(), 300))
		default:
			for _, info := range infos {
				if raw, ok := info.Object.(*unstructured.Unstructured); ok {
					found = append(found, objectOf(raw.Object, namespace))
				}
			}
		}
	}
	switch {
	case len(found) > 1:
		return nil, fmt.Errorf("%q fits %s: name one of them", terminal.Line(argument, maxName), choices(found, (*object).String))
	case len(found) == 1 && found[0].Pod == nil && len(found[0].templates) == 0:
		return nil, fmt.Errorf("%s has no pod template: name a pod or a workload, such as deployment/web", what)
	case len(found) == 1:
		return found[0].choose(template)
	case forbidden:
		return nil, fmt.Errorf("you may not get %s in namespace %q: name a kind that you may get (KIND/NAME), or ask for the role view there", what, namespace)
	}
	return nil, fmt.Errorf("there is no %s in namespace %q: see kubectl get %s -A, or name another namespace with -n", what, namespace, terminal.Line(kind, maxKind))
}

// IsObject reports whether an argument is KIND/NAME of a kind that the cluster has. It may be the reference of an image.
func IsObject(getter resource.RESTClientGetter, argument string) bool {
	kind, name, both := strings.Cut(argument, "/")
	if !both || kind == "" || strings.ContainsAny(name, "/:@") {
		return false
	}
	mapper, err := getter.ToRESTMapper()
	if err != nil {
		return false
	}
	full, grouped := schema.ParseResourceArg(kind)
	if full == nil {
		full = &schema.GroupVersionResource{}
	}
	if _, err = mapper.KindFor(*full); err != nil {
		_, err = mapper.KindFor(grouped.WithVersion(""))
	}
	return err == nil
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

// TargetInFile reads the pod in files, in YAML or JSON: a pod, or anything with a pod template. If
// there are several, wanted (KIND/NAME) names it, and template which of its templates it is of.
func TargetInFile(getter resource.RESTClientGetter, files *resource.FilenameOptions, namespace, wanted, template string) (*Target, error) {
	infos, err := resource.NewBuilder(getter).Unstructured().Local().FilenameParam(false, files).Flatten().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("cannot read the file: %w", err)
	}
	var found []*object
	for _, info := range infos {
		if raw, ok := info.Object.(*unstructured.Unstructured); ok {
			found = append(found, objectOf(raw.Object, namespace))
		}
	}
	found = slices.DeleteFunc(found, func(o *object) bool { return o.Pod == nil && len(o.templates) == 0 })
	if wanted != "" {
		found = slices.DeleteFunc(found, func(o *object) bool { return o.Kind+"/"+o.Name != strings.ToLower(wanted) && o.Name != wanted })
		if len(found) == 0 {
			return nil, fmt.Errorf("the file has no %q with pods: see what it has with kubectl apply --dry-run=client -f", terminal.Line(wanted, maxName))
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("the file has no pod and no pod template (objects: %d): name a file that has one", len(infos))
	case 1:
		t, err := found[0].choose(template)
		if err == nil { // it is not there yet
			t.Pod.Spec.NodeName, t.Pod.Status, t.Pod.UID = "", v1.PodStatus{}, ""
			setDefaults(t.Pod)
		}
		return t, err
	}
	return nil, fmt.Errorf("the file has %d objects with pods (%s): add the one that you mean, as KIND/NAME", len(found), choices(found, (*object).String))
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

// object is an object as the apiserver or a file has it: a pod, or one that may have pod templates.
type object struct {
	Target
	templates []podtemplate.Found
}

// choose returns the pod of an object, or that of one of its templates: wanted is a name or a path.
func (o *object) choose(wanted string) (*Target, error) {
	if o.Pod != nil {
		if wanted != "" {
			return nil, fmt.Errorf("%s is a pod and has no template: leave out --pod-template", o)
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
		return nil, fmt.Errorf("%s has %d pod templates (%s): add the one that you mean, as --pod-template NAME", o, len(fit), choices(fit, label))
	case len(o.templates) > 1:
		o.Template = wanted
	}
	o.Pod = podOf(o.Kind, o.Namespace, &fit[0].Template)
	return &o.Target, nil
}

// objectOf returns what an object has of pods.
func objectOf(raw map[string]any, namespace string) *object {
	u := unstructured.Unstructured{Object: raw}
	o := &object{Target: Target{Kind: strings.ToLower(terminal.Line(u.GetKind(), maxKind)), Namespace: cmp.Or(u.GetNamespace(), namespace), Name: u.GetName()}}
	if o.Kind != "pod" {
		o.templates = podtemplate.In(raw)
		return o
	}
	pod := &v1.Pod{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(raw, pod) == nil && len(pod.Spec.Containers) > 0 {
		o.Pod = pod
	}
	return o
}
