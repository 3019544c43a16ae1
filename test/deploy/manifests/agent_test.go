package manifests

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const agent = "layer-agent"

// buildAgent runs "kustomize build" on an overlay of deploy/agent.
func buildAgent(t *testing.T, overlay string) []runtime.Object {
	t.Helper()
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(deployed, "agent", overlay))
	must(t, err)
	text, err := result.AsYaml()
	must(t, err)
	return decode(t, text)
}

// TestAgent checks what each overlay of deploy/agent installs: the container that reads the
// host has no token, and the one with the token nothing of the host.
func TestAgent(t *testing.T) {
	for overlay, host := range map[string]string{
		"containerd": "/run/containerd", "k3s": "/run/k3s/containerd", "cri-o": "/var/lib/containers/storage/overlay-images",
	} {
		objects := buildAgent(t, overlay)
		if len(objects) != 9 {
			t.Errorf("%s: %d objects", overlay, len(objects))
		}
		set := one[*appsv1.DaemonSet](t, objects)
		pod := set.Spec.Template
		if set.Namespace != namespace || !reflect.DeepEqual(set.Spec.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": agent}) || pod.Labels["app.kubernetes.io/name"] != agent {
			t.Errorf("%s: %s/%s selects %v, the pods have %v", overlay, set.Namespace, set.Name, set.Spec.Selector, pod.Labels)
		}
		spec := pod.Spec
		if spec.HostNetwork || spec.HostPID || spec.HostIPC || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
			t.Errorf("%s: %+v", overlay, spec)
		}
		volumes := map[string]corev1.VolumeSource{}
		for _, volume := range spec.Volumes {
			volumes[volume.Name] = volume.VolumeSource
		}
		if len(volumes) != 3 || volumes["runtime"].HostPath == nil || volumes["runtime"].HostPath.Path != host || *volumes["runtime"].HostPath.Type != corev1.HostPathDirectory ||
			volumes["handover"].EmptyDir == nil || volumes["handover"].EmptyDir.Medium != corev1.StorageMediumMemory || volumes["handover"].EmptyDir.SizeLimit.IsZero() || volumes["token"].Projected == nil {
			t.Fatalf("%s: volumes %+v", overlay, volumes)
		}
		mounted := map[string][]string{}
		for _, container := range spec.Containers {
			if container.Image != strings.Replace(image(t), "/kube-scheduler:", "/"+agent+":", 1) {
				t.Errorf("%s: image %s", overlay, container.Image)
			}
			if limits := container.Resources.Limits; limits.Memory().IsZero() || !limits.Cpu().IsZero() {
				t.Errorf("%s: limits %v: want one of memory, none of CPU", overlay, limits)
			}
			s := container.SecurityContext
			if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.Privileged != nil {
				t.Errorf("%s: %s: %+v", overlay, container.Name, s)
			}
			for _, mount := range container.VolumeMounts {
				mounted[container.Name] = append(mounted[container.Name], mount.Name)
				if writes := container.Name == "read" && mount.Name == "handover"; mount.ReadOnly == writes {
					t.Errorf("%s: %s mounts %s, read-only: %t", overlay, container.Name, mount.Name, mount.ReadOnly)
				}
			}
			slices.Sort(mounted[container.Name])
		}
		if want := map[string][]string{"read": {"handover", "runtime"}, "publish": {"handover", "token"}}; !reflect.DeepEqual(mounted, want) {
			t.Errorf("%s: mounted are %v, want %v", overlay, mounted, want)
		}
		read, publish := spec.Containers[0], spec.Containers[1]
		restricted(t, publish.SecurityContext)
		if root := *read.SecurityContext.RunAsUser == 0; root != (overlay == "cri-o") || len(read.Ports) > 0 {
			t.Errorf("%s: the reader runs as %d, ports %v", overlay, *read.SecurityContext.RunAsUser, read.Ports)
		}

		account := one[*corev1.ServiceAccount](t, objects)
		role, binding := named[*rbacv1.ClusterRole](t, objects, agent), named[*rbacv1.ClusterRoleBinding](t, objects, agent)
		if spec.ServiceAccountName != account.Name || binding.RoleRef.Name != role.Name ||
			!reflect.DeepEqual(binding.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: namespace}}) {
			t.Errorf("%s: the pods are %s, bound is %+v", overlay, spec.ServiceAccountName, binding.Subjects)
		}
		if got, want := atoms(role.Rules), []string{"layerlocality.io/nodelayers:create", "layerlocality.io/nodelayers:get", "layerlocality.io/nodelayers:update"}; !slices.Equal(got, want) {
			t.Errorf("%s: rights %q, want %q", overlay, got, want)
		}
		// And a kube-scheduler that is a static pod.
		readers, reader := named[*rbacv1.ClusterRole](t, objects, agent+"-reader"), named[*rbacv1.ClusterRoleBinding](t, objects, agent+"-reader-kube-scheduler")
		if !reflect.DeepEqual(readers.Rules, []rbacv1.PolicyRule{readsNodes}) || reader.RoleRef.Name != readers.Name ||
			!reflect.DeepEqual(reader.Subjects, []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user.KubeScheduler}}) {
			t.Errorf("%s: rules %v, bound to %v", overlay, readers.Rules, reader.Subjects)
		}
		// What the policy decides, a real apiserver is asked (cmd/layer-agent).
		policy, bound := one[*admissionv1.ValidatingAdmissionPolicy](t, objects), one[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects)
		if *policy.Spec.FailurePolicy != admissionv1.Fail || bound.Spec.PolicyName != policy.Name || !slices.Equal(bound.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
			t.Errorf("%s: %+v, %+v", overlay, policy.Spec, bound.Spec)
		}
	}
}
