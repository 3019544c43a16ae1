package manifests

import (
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// server-roles and okd run what second-scheduler runs, with roles that the server makes itself
// and the plugin's.
func TestServerRoles(t *testing.T) {
	second := build(t, "second-scheduler")
	for variant, in := range map[string]string{"server-roles": namespace, "okd": "layer-locality"} {
		t.Run(variant, func(t *testing.T) {
			objects := build(t, variant)
			if got := named[*rbacv1.ClusterRole](t, objects, name).Rules; !reflect.DeepEqual(atoms(got), atoms([]rbacv1.PolicyRule{watches})) {
				t.Errorf("rights of our own: %q", atoms(got))
			}
			account := one[*corev1.ServiceAccount](t, objects)
			bound := []string{}
			for _, binding := range all[*rbacv1.ClusterRoleBinding](objects) {
				bound = append(bound, binding.RoleRef.Name)
				if !reflect.DeepEqual(binding.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: in}}) {
					t.Errorf("%s binds %v", binding.Name, binding.Subjects)
				}
			}
			slices.Sort(bound)
			if want := []string{name, "system:kube-scheduler", "system:volume-scheduler"}; !slices.Equal(bound, want) {
				t.Errorf("bound are %q, want %q", bound, want)
			}
			servers := map[string]bool{}
			for _, role := range bootstrappolicy.ClusterRoles() {
				servers[role.Name] = true
			}
			for _, role := range bound[1:] {
				if !servers[role] {
					t.Errorf("no server makes the role %s", role)
				}
			}
			// Where the lease and the certificate authorities are.
			for _, binding := range all[*rbacv1.RoleBinding](objects) {
				if binding.Namespace != namespace || !reflect.DeepEqual(binding.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: in}}) {
					t.Errorf("%s/%s binds %v", binding.Namespace, binding.Name, binding.Subjects)
				}
			}
			if role := named[*rbacv1.Role](t, objects, name+"-leader-election"); role.Namespace != namespace {
				t.Errorf("the lease is in %s", role.Namespace)
			}

			deployment, config := one[*appsv1.Deployment](t, objects), one[*corev1.ConfigMap](t, objects)
			for what, got := range map[string]string{
				"Deployment": deployment.Namespace, "ServiceAccount": account.Namespace, "ConfigMap": config.Namespace,
				"Service": one[*corev1.Service](t, objects).Namespace, "PodDisruptionBudget": one[*policyv1.PodDisruptionBudget](t, objects).Namespace,
			} {
				if got != in {
					t.Errorf("%s: in namespace %s, want %s", what, got, in)
				}
			}
			want := one[*appsv1.Deployment](t, second).DeepCopy().Spec
			if variant == "okd" { // the SCC sets as whom
				want.Template.Spec.SecurityContext.RunAsUser, want.Template.Spec.SecurityContext.RunAsGroup = nil, nil
			}
			if !reflect.DeepEqual(deployment.Spec, want) {
				t.Errorf("the pods are\n%+v\nwant\n%+v", deployment.Spec, want)
			}
			if !reflect.DeepEqual(config.Data, one[*corev1.ConfigMap](t, second).Data) || config.Name != deployment.Spec.Template.Spec.Volumes[0].ConfigMap.Name {
				t.Errorf("the configuration is another one, or another name: %s", config.Name)
			}
		})
	}
}
