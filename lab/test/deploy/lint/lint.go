// Package lint has the rules that every pod in deploy/ keeps, whether kustomize, the chart or a file has
// it: our own and those of an apiserver; and the exceptions, each with its reason.
package lint

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// Exceptions are the problems that may be, and why.
var Exceptions = map[string]string{
	"Pod kube-scheduler: no NetworkPolicy":                                                                      "it has the network of its node, which no NetworkPolicy confines",
	"Pod kube-scheduler: nodes of other systems":                                                                "a kubelet runs it, not a scheduler",
	"Pod kube-scheduler/kube-scheduler: may be root":                                                            "kubeadm's scheduler.conf is for root alone",
	"Pod kube-scheduler/kube-scheduler: no request of memory":                                                   "as kubeadm has it",
	"Pod kube-scheduler/kube-scheduler: no limit of memory":                                                     "a scheduler that is ended holds up every pod",
	"Deployment layer-locality-scheduler/kube-scheduler: no limit of memory":                                    "a scheduler that is ended holds up every pod",
	"Deployment layer-locality-scheduler/kube-scheduler: image registry.k8s.io/kube-scheduler without a digest": "of Kubernetes, for the side-car",
	"DaemonSet layer-extender: no NetworkPolicy":                                                                "it has the network of its node, which no NetworkPolicy confines",
	"DaemonSet layer-agent/read: may be root":                                                                   "CRI-O's list of images is for root alone",
	"DaemonSet layer-agent/peers: may be root":                                                                  "the layers that CRI-O keeps are for root alone",
	"DaemonSet layer-agent-cri-o/read: may be root":                                                             "CRI-O's list of images is for root alone",
}

// priorities are the priority classes of workloads. Who waits for no pod of ours has none.
var priorities = map[string]string{
	"Pod kube-scheduler":                  "system-node-critical", // as kubeadm has it
	"Deployment layer-locality-scheduler": "system-cluster-critical",
	"DaemonSet layer-extender":            "system-cluster-critical", // the cluster's scheduler waits for it
	"Deployment layer-annotator":          "",
	"Deployment layer-resolver":           "",
	"Deployment layer-prefetcher":         "",
	"DaemonSet layer-agent":               "",
	"DaemonSet layer-agent-containerd":    "",
	"DaemonSet layer-agent-cri-o":         "",
}

// Registry and digest are those of all images after Pin.
const (
	Registry = "registry.example.com:5000/our-images"
	digest   = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// Pin copies deploy/ to a folder, and has deploy/images/pin.sh name all images by digest there.
func Pin(deploy, to string) error {
	if err := os.CopyFS(to, os.DirFS(deploy)); err != nil {
		return err
	}
	var built strings.Builder
	for _, component := range []string{"kube-apiserver", "kube-scheduler", "layer-agent", "layer-extender", "layer-prefetcher", "layer-resolver"} {
		fmt.Fprintf(&built, "%s/%s:v1.2.3_layerlocality.4@%s\n", Registry, component, digest)
	}
	command := exec.Command(filepath.Join(deploy, "images", "pin.sh"), to)
	command.Stdin = strings.NewReader(built.String())
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("pin.sh: %w: %s", err, out)
	}
	return nil
}

// Pods returns what is wrong with the pods of objects, exceptions included. Their images are those of Pin;
// root is the folder of this repository.
func Pods(root string, objects []*unstructured.Unstructured) (problems []string, err error) {
	var policies []networkingv1.NetworkPolicy
	for _, object := range objects {
		if object.GetKind() == "NetworkPolicy" {
			var policy networkingv1.NetworkPolicy
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &policy, true); err != nil {
				return nil, err
			}
			policies = append(policies, policy)
		}
	}
	for _, object := range objects {
		template, found, err := templateOf(object)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if found {
			w := workload{root: root, name: object.GetKind() + " " + object.GetName(), namespace: object.GetNamespace(), template: template, policies: policies}
			problems = append(problems, w.lint()...)
		}
	}
	return problems, nil
}

// templateOf returns the pods of an object, wherever it has them.
func templateOf(object *unstructured.Unstructured) (template corev1.PodTemplateSpec, found bool, err error) {
	content := object.Object
	if object.GetKind() != "Pod" {
		for _, path := range [][]string{{"spec", "template"}, {"spec", "jobTemplate", "spec", "template"}} {
			if content, found, err = unstructured.NestedMap(object.Object, path...); found || err != nil {
				break
			}
		}
		if !found || err != nil {
			return template, false, err
		}
	}
	part := map[string]any{"metadata": content["metadata"], "spec": content["spec"]}
	return template, true, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(part, &template, true)
}

type workload struct {
	root, name, namespace string
	template              corev1.PodTemplateSpec
	policies              []networkingv1.NetworkPolicy
}

func (w *workload) lint() (problems []string) {
	pod := &w.template.Spec
	no := func(format string, args ...any) {
		problems = append(problems, w.name+": "+fmt.Sprintf(format, args...))
	}
	if pod.NodeSelector[corev1.LabelOSStable] != "linux" {
		no("nodes of other systems")
	}
	if want, known := priorities[w.name]; !known || pod.PriorityClassName != want {
		no("priority class %q", pod.PriorityClassName)
	}
	for _, err := range invalid(&w.template) {
		no("%v", err)
	}
	confining := slices.IndexFunc(w.policies, w.confines)
	if pod.HostNetwork || confining < 0 {
		no("no NetworkPolicy")
	}
	if pod.HostPID || pod.HostIPC {
		no("processes of its node")
	}
	if s := pod.SecurityContext; s == nil || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		no("any system call")
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, port := range container.Ports {
			if confining >= 0 && !opens(w.policies[confining], int(port.ContainerPort)) {
				no("its NetworkPolicy closes port %d", port.ContainerPort)
			}
		}
		for _, problem := range w.container(&container) {
			problems = append(problems, w.name+"/"+container.Name+": "+problem)
		}
	}
	return problems
}

// invalid returns why an apiserver refuses the pods.
func invalid(template *corev1.PodTemplateSpec) field.ErrorList {
	with := &corev1.PodTemplate{Template: *template.DeepCopy()}
	corev1defaults.SetObjectDefaults_PodTemplate(with)
	var internal core.PodTemplateSpec
	if err := corev1defaults.Convert_v1_PodTemplateSpec_To_core_PodTemplateSpec(&with.Template, &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validation.ValidatePodTemplateSpec(&internal, field.NewPath("template"), validation.PodValidationOptions{})
}

// confines reports whether a policy restricts what may reach the pods, and what they may reach.
func (w *workload) confines(policy networkingv1.NetworkPolicy) bool {
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(w.template.Labels)) && policy.Namespace == w.namespace &&
		slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) && slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) &&
		!slices.ContainsFunc(policy.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool { return len(rule.Ports) == 0 && len(rule.To) == 0 }) &&
		!slices.ContainsFunc(policy.Spec.Ingress, func(rule networkingv1.NetworkPolicyIngressRule) bool { return len(rule.Ports) == 0 })
}

// opens reports whether a policy lets in who asks a port, from everywhere: probes come from nodes.
func opens(policy networkingv1.NetworkPolicy, port int) bool {
	return slices.ContainsFunc(policy.Spec.Ingress, func(rule networkingv1.NetworkPolicyIngressRule) bool {
		// To all, or to the pods of its own kind.
		open := len(rule.From) == 0 || reflect.DeepEqual(rule.From, []networkingv1.NetworkPolicyPeer{{PodSelector: &policy.Spec.PodSelector}})
		return open && slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port != nil && p.Port.IntValue() == port })
	})
}

var name = regexp.MustCompile(`^(.*/([^/:@]+))(:[^/@]+)?(@.*)?$`)

func (w *workload) container(c *corev1.Container) (problems []string) {
	no := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	image := name.FindStringSubmatch(c.Image)
	switch {
	case image == nil || image[4] != "@"+digest:
		repository, _, _ := strings.Cut(c.Image, "@")
		if image != nil {
			repository = image[1]
		}
		no("image %s without a digest", repository)
	case image[1] != Registry+"/"+image[2]:
		no("image %s of another registry", image[1])
	}
	limit := c.Resources.Limits.Memory()
	if limit.IsZero() {
		no("no limit of memory")
	} else if image != nil && !follows(w.root, image[2]) {
		no("GOMEMLIMIT does not follow the limit of memory")
	}
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if request := c.Resources.Requests[resource]; request.IsZero() {
			no("no request of %s", resource)
		}
	}
	if !c.Resources.Limits.Cpu().IsZero() {
		no("a limit of CPU") // whoever waits for it waits longer
	}
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" }) {
		no("GOMEMLIMIT is fixed")
	}
	var pod corev1.PodSecurityContext
	if w.template.Spec.SecurityContext != nil {
		pod = *w.template.Spec.SecurityContext
	}
	s := c.SecurityContext
	if s == nil {
		s = &corev1.SecurityContext{}
	}
	nonRoot, user := pod.RunAsNonRoot, pod.RunAsUser
	if s.RunAsNonRoot != nil {
		nonRoot = s.RunAsNonRoot
	}
	if s.RunAsUser != nil {
		user = s.RunAsUser
	}
	if nonRoot == nil || !*nonRoot || user != nil && *user == 0 {
		no("may be root")
	}
	if s.Privileged != nil && *s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		no("may get more privileges")
	}
	if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		no("its files may be written")
	}
	if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
		no("has capabilities")
	}
	if s.SeccompProfile != nil && s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		no("any system call")
	}
	return problems
}

// follows reports whether a program of this repository has Go keep to a part of the limit of memory.
func follows(root, program string) bool {
	files, err := filepath.Glob(filepath.Join(root, "cmd", program, "*.go"))
	return err == nil && slices.ContainsFunc(files, func(file string) bool {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil || strings.HasSuffix(file, "_test.go") {
			return false
		}
		for _, spec := range parsed.Imports {
			if spec.Path.Value == `"github.com/layer-locality/layer-locality/memlimit"` {
				return true
			}
		}
		return false
	})
}
