package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	admissionvalidation "k8s.io/kubernetes/pkg/apis/admissionregistration/validation"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	argsvalidation "github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
	"github.com/layer-locality/layer-locality/scheduler/qosaware"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// TestQosAware checks what the variant adds to second-scheduler: a configuration that
// kube-scheduler accepts, and no more rights than it needs.
func TestQosAware(t *testing.T) {
	objects := build(t, "qosaware")
	loaded := load(t, one[*corev1.ConfigMap](t, objects).Data["config.yaml"])
	profile(t, loaded, variants["second-scheduler"].scheduler)
	if e := loaded.LeaderElection; e.ResourceNamespace != namespace || e.ResourceName != variants["second-scheduler"].lease {
		t.Errorf("leader election %+v", e)
	}
	var names []string
	for _, plugin := range loaded.Profiles[0].Plugins.MultiPoint.Enabled {
		names = append(names, plugin.Name)
	}
	if !slices.Contains(names, qosaware.Name) || slices.Contains(names, "PrioritySort") || slices.Contains(names, "DefaultPreemption") {
		t.Errorf("enabled: %q", names)
	}
	state := ""
	for _, plugin := range loaded.Profiles[0].PluginConfig {
		if args, ok := plugin.Args.(*config.QosAwareArgs); ok {
			must(t, argsvalidation.QosAwareArgs(args))
			state = args.StateConfigMap
		}
	}

	const role = name + "-qosaware"
	if got, want := atoms(named[*rbacv1.ClusterRole](t, objects, role).Rules), []string{
		"/pods:get", "apps/deployments:list", "apps/deployments:watch", "batch/jobs:list", "batch/jobs:watch",
	}; !slices.Equal(got, want) {
		t.Errorf("rights %q, want %q", got, want)
	}
	if got, want := atoms(named[*rbacv1.Role](t, objects, role).Rules), []string{
		"/configmaps:create", "/configmaps[" + state + "]:get", "/configmaps[" + state + "]:update",
	}; !slices.Equal(got, want) {
		t.Errorf("rights in %s %q, want %q", namespace, got, want)
	}
	if got := named[*rbacv1.ClusterRole](t, objects, role+"-reader").Rules[0].NonResourceURLs; !slices.Equal(got, []string{qosaware.DebugPath}) {
		t.Errorf("readers may read %q", got)
	}
	for _, binding := range []struct {
		to       rbacv1.RoleRef
		subjects []rbacv1.Subject
	}{
		{named[*rbacv1.ClusterRoleBinding](t, objects, role).RoleRef, named[*rbacv1.ClusterRoleBinding](t, objects, role).Subjects},
		{named[*rbacv1.RoleBinding](t, objects, role).RoleRef, named[*rbacv1.RoleBinding](t, objects, role).Subjects},
	} {
		if binding.to.Name != role || !slices.Equal(binding.subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: namespace}}) {
			t.Errorf("%+v is bound to %v", binding.to, binding.subjects)
		}
	}
}

// TestQosAwareStaticPod checks what a cluster's own kube-scheduler gets: the configuration of static-pod with the
// plugins of the variant, and the same roles.
func TestQosAwareStaticPod(t *testing.T) {
	shipped := func(file string) *kubescheduler.KubeSchedulerConfiguration {
		text, err := os.ReadFile(filepath.Join(deployed, "scheduler", file))
		must(t, err)
		return load(t, string(text))
	}
	got, want := shipped("static-pod/qosaware.yaml"), shipped("static-pod/config.yaml")
	want.Profiles[0].Plugins, want.Profiles[0].PluginConfig = shipped("qosaware/config.yaml").Profiles[0].Plugins, got.Profiles[0].PluginConfig
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config.yaml with the plugins of qosaware (-) and qosaware.yaml (+):\n%s", diff)
	}
	const role = name + "-qosaware"
	objects := decode(t, scenario.PromisingRights())
	bound := named[*rbacv1.ClusterRoleBinding](t, objects, "layer-locality-kube-scheduler-qosaware")
	boundIn := named[*rbacv1.RoleBinding](t, objects, bound.Name)
	if boundIn.Namespace != namespace || bound.RoleRef.Name != role || boundIn.RoleRef.Name != role || bound.RoleRef.Kind != "ClusterRole" || boundIn.RoleRef.Kind != "Role" {
		t.Errorf("%+v and in %s %+v are bound", bound.RoleRef, boundIn.Namespace, boundIn.RoleRef)
	}
	for _, subjects := range [][]rbacv1.Subject{bound.Subjects, boundIn.Subjects} {
		if !slices.Equal(subjects, []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "system:kube-scheduler"}}) {
			t.Errorf("subjects %v", subjects)
		}
	}
}

// TestSLOPolicyIsValid checks that an apiserver accepts the policy, with expressions that
// compile.
func TestSLOPolicyIsValid(t *testing.T) {
	objects := build(t, "qosaware")
	policy := one[*admissionv1.ValidatingAdmissionPolicy](t, objects)
	binding := one[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects)
	if binding.Spec.PolicyName != policy.Name {
		t.Errorf("the binding is of %s, the policy is %s", binding.Spec.PolicyName, policy.Name)
	}
	legacyscheme.Scheme.Default(policy)
	var internal admissionregistration.ValidatingAdmissionPolicy
	must(t, legacyscheme.Scheme.Convert(policy, &internal, nil))
	if errs := admissionvalidation.ValidateValidatingAdmissionPolicy(&internal); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

// TestSLOPolicyDecides checks which pods the code of an apiserver admits with the policy.
func TestSLOPolicyDecides(t *testing.T) {
	const label = "qos.layerlocality.io/max-slo"
	objects := build(t, "qosaware")
	policy := one[*admissionv1.ValidatingAdmissionPolicy](t, objects)
	legacy := policy.DeepCopy() // as its comment describes for legacyAnnotations
	for i := range legacy.Spec.Variables {
		if v := &legacy.Spec.Variables[i]; v.Name == "annotations" {
			v.Expression = "['qos.layerlocality.io/slo', 'slo']"
		}
	}
	if equality.Semantic.DeepEqual(policy, legacy) {
		t.Fatal("the policy has no list of annotations")
	}
	parts := []runtime.Object{one[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects)}
	for name, most := range map[string]string{"ninety": "0.9", "all": "1", "none": "", "zero": "0", "wrong": "much"} {
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
		if most != "" {
			space.Labels[label] = most
		}
		parts = append(parts, space)
	}
	validations, err := validating.NewPlugin(nil)
	must(t, err)
	plugin := policies(t, validations, append(slices.Clone(parts), policy)...)
	validations, err = validating.NewPlugin(nil)
	must(t, err)
	withLegacy := policies(t, validations, append(slices.Clone(parts), legacy)...)
	stating := func(annotations ...string) *corev1.Pod {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "quay.io/a/b:1"}}},
		}
		for i := 0; i < len(annotations); i += 2 {
			pod.Annotations[annotations[i]] = annotations[i+1]
		}
		return pod
	}
	slo := func(value string) *corev1.Pod { return stating(ledger.AnnotationSLO, value) }
	const decimal, most90, notAllowed = "is a decimal number above 0", "may state an SLO of at most 0.9", "may not state an SLO"
	for name, test := range map[string]struct {
		namespace string
		pod, old  *corev1.Pod
		legacy    bool
		want      string // part of the refusal; empty: admitted
	}{
		"none stated":               {namespace: "none", pod: stating()},
		"not allowed":               {namespace: "none", pod: slo("0.1"), want: notAllowed},
		"allowed":                   {namespace: "ninety", pod: slo("0.9")},
		"less":                      {namespace: "ninety", pod: slo(".5")},
		"too much":                  {namespace: "ninety", pod: slo("0.91"), want: most90},
		"published annotation":      {namespace: "ninety", pod: stating("slo", "1"), legacy: true, want: most90},
		"either of both":            {namespace: "ninety", pod: stating(ledger.AnnotationSLO, "0.5", "slo", "1"), legacy: true, want: most90},
		"both":                      {namespace: "ninety", pod: stating(ledger.AnnotationSLO, "0.5", "slo", "0.6"), legacy: true},
		"another one's slo":         {namespace: "none", pod: stating("slo", "99.9 %")},
		"0":                         {namespace: "all", pod: slo("0"), want: decimal},
		".00":                       {namespace: "all", pod: slo(".00"), want: decimal},
		"label is 0":                {namespace: "zero", pod: slo("0.1"), want: "may state an SLO of at most 0"},
		"everything":                {namespace: "all", pod: slo("1.0")},
		"more than everything":      {namespace: "all", pod: slo("1.1"), want: decimal},
		"not a number":              {namespace: "all", pod: slo("NaN"), want: decimal},
		"exponent":                  {namespace: "all", pod: slo("1e-3"), want: decimal},
		"long":                      {namespace: "all", pod: slo("0." + strings.Repeat("9", 1000)), want: decimal},
		"label is wrong":            {namespace: "wrong", pod: slo("0.1"), want: notAllowed},
		"changed":                   {namespace: "ninety", pod: slo("0.95"), old: slo("0.5"), want: most90},
		"added":                     {namespace: "none", pod: slo("0.5"), old: stating(), want: notAllowed},
		"was there before the rule": {namespace: "none", pod: slo("0.5"), old: slo("0.5")},
		"removed":                   {namespace: "none", pod: stating(), old: slo("0.5")},
	} {
		t.Run(name, func(t *testing.T) {
			operation, options := admission.Create, runtime.Object(&metav1.CreateOptions{})
			var old runtime.Object
			if test.old != nil {
				operation, options = admission.Update, &metav1.UpdateOptions{}
				test.old.Namespace = test.namespace
				old = internal(t, test.old)
			}
			test.pod.Namespace = test.namespace
			plugin := plugin
			if test.legacy {
				plugin = withLegacy
			}
			err := plugin.Validate(t.Context(), admission.NewAttributesRecord(internal(t, test.pod), old, corev1.SchemeGroupVersion.WithKind("Pod"), test.namespace, "p",
				corev1.SchemeGroupVersion.WithResource("pods"), "", operation, options, false, &user.DefaultInfo{Name: "somebody"}),
				admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want ... %s ...", err, test.want)
			}
		})
	}
}
