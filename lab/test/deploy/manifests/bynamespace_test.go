package manifests

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	"k8s.io/kubernetes/pkg/apis/admissionregistration/validation"
)

// by-namespace is what an apiserver accepts, with expressions that compile, and sends pods
// to the scheduler that second-scheduler installs.
func TestByNamespace(t *testing.T) {
	objects := build(t, "by-namespace")
	policy := one[*admissionv1.MutatingAdmissionPolicy](t, objects)
	binding := one[*admissionv1.MutatingAdmissionPolicyBinding](t, objects)
	if len(objects) != 2 || binding.Spec.PolicyName != policy.Name {
		t.Errorf("%d objects; the binding is of %s, the policy is %s", len(objects), binding.Spec.PolicyName, policy.Name)
	}
	for _, object := range []string{policy.Name, binding.Name} {
		if !strings.HasPrefix(object, name) || !strings.HasSuffix(object, ".needs-kubernetes-1.36") {
			t.Errorf("%s: kubectl repeats the name where the kind is not served: it has to name what is needed", object)
		}
	}
	legacyscheme.Scheme.Default(policy)
	var internal admissionregistration.MutatingAdmissionPolicy
	must(t, legacyscheme.Scheme.Convert(policy, &internal, nil))
	if errs := validation.ValidateMutatingAdmissionPolicy(&internal); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
	legacyscheme.Scheme.Default(binding)
	var internalBinding admissionregistration.MutatingAdmissionPolicyBinding
	must(t, legacyscheme.Scheme.Convert(binding, &internalBinding, nil))
	if errs := validation.ValidateMutatingAdmissionPolicyBinding(&internalBinding); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
	if scheduler := variants["second-scheduler"].scheduler; !strings.Contains(policy.Spec.Mutations[0].ApplyConfiguration.Expression, `"`+scheduler+`"`) {
		t.Errorf("pods do not go to %s: %s", scheduler, policy.Spec.Mutations[0].ApplyConfiguration.Expression)
	}
	// Its own pods are left alone: they have this label.
	labels := one[*appsv1.Deployment](t, build(t, "second-scheduler")).Spec.Template.Labels
	if labels["app.kubernetes.io/part-of"] != "layer-locality" {
		t.Errorf("labels of the scheduler's pods: %v", labels)
	}
}
