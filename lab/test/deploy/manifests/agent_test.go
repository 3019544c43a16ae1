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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const agent = "layer-agent"

// buildAgent runs "kustomize build" on an overlay of deploy/agent. It returns the objects of
// every Kubernetes, and the SecurityContextConstraints of OpenShift; nil if there are none.
func buildAgent(t *testing.T, overlay string) (objects []runtime.Object, scc *constraints) {
	t.Helper()
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(deployed, "agent", overlay))
	must(t, err)
	for _, resource := range result.Resources() {
		if resource.GetKind() == "SecurityContextConstraints" {
			scc = &constraints{}
			must(t, yaml.UnmarshalStrict([]byte(resource.MustYaml()), scc))
			must(t, result.Remove(resource.CurId()))
		}
	}
	text, err := result.AsYaml()
	must(t, err)
	return decode(t, text), scc
}

// constraints are the SecurityContextConstraints of security.openshift.io/v1, as far as
// deploy/agent/okd sets them.
type constraints struct {
	metav1.TypeMeta                 `json:",inline"`
	metav1.ObjectMeta               `json:"metadata"`
	AllowHostDirVolumePlugin        bool     `json:"allowHostDirVolumePlugin"`
	AllowHostIPC                    bool     `json:"allowHostIPC"`
	AllowHostNetwork                bool     `json:"allowHostNetwork"`
	AllowHostPID                    bool     `json:"allowHostPID"`
	AllowHostPorts                  bool     `json:"allowHostPorts"`
	AllowPrivilegedContainer        bool     `json:"allowPrivilegedContainer"`
	AllowPrivilegeEscalation        *bool    `json:"allowPrivilegeEscalation"`
	DefaultAllowPrivilegeEscalation *bool    `json:"defaultAllowPrivilegeEscalation"`
	AllowedCapabilities             []string `json:"allowedCapabilities"`
	RequiredDropCapabilities        []string `json:"requiredDropCapabilities"`
	ReadOnlyRootFilesystem          bool     `json:"readOnlyRootFilesystem"`
	RunAsUser                       strategy `json:"runAsUser"`
	SELinuxContext                  strategy `json:"seLinuxContext"`
	FSGroup                         strategy `json:"fsGroup"`
	SupplementalGroups              strategy `json:"supplementalGroups"`
	SeccompProfiles                 []string `json:"seccompProfiles"`
	Volumes                         []string `json:"volumes"`
	Users                           []string `json:"users"`
	Groups                          []string `json:"groups"`
}

type strategy struct {
	Type string `json:"type"`
}

// TestAgentOKD: the pods of the overlay for OpenShift are allowed what they need, by constraints
// that only their service account may use, in a namespace of their own.
func TestAgentOKD(t *testing.T) {
	const own = "layer-locality-agent"
	objects, scc := buildAgent(t, "okd")
	plain, none := buildAgent(t, "cri-o")
	if scc == nil || none != nil {
		t.Fatalf("constraints %+v, of cri-o %+v", scc, none)
	}
	set := one[*appsv1.DaemonSet](t, objects)
	if set.Namespace != own || !reflect.DeepEqual(set.Spec, one[*appsv1.DaemonSet](t, plain).Spec) {
		t.Errorf("it is in %s, or has other pods than cri-o", set.Namespace)
	}
	account := one[*corev1.ServiceAccount](t, objects)
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: own}}
	binding, use, role := named[*rbacv1.ClusterRoleBinding](t, objects, agent), one[*rbacv1.RoleBinding](t, objects), one[*rbacv1.Role](t, objects)
	if account.Namespace != own || !reflect.DeepEqual(binding.Subjects, subjects) || !reflect.DeepEqual(use.Subjects, subjects) || use.Namespace != own || role.Namespace != own || use.RoleRef.Name != role.Name {
		t.Errorf("%s/%s; bound are %v and %v", account.Namespace, account.Name, binding.Subjects, use.Subjects)
	}
	if got, want := atoms(role.Rules), []string{"security.openshift.io/securitycontextconstraints[" + scc.Name + "]:use"}; !slices.Equal(got, want) {
		t.Errorf("rights %q, want %q", got, want)
	}
	if scc.AllowHostIPC || scc.AllowHostNetwork || scc.AllowHostPID || scc.AllowHostPorts || scc.AllowPrivilegedContainer || *scc.AllowPrivilegeEscalation ||
		len(scc.AllowedCapabilities) > 0 || !slices.Equal(scc.RequiredDropCapabilities, []string{"ALL"}) || len(scc.Users)+len(scc.Groups) > 0 {
		t.Errorf("more than it needs: %+v", scc)
	}
	if scc.SELinuxContext.Type != "MustRunAs" || scc.RunAsUser.Type != "RunAsAny" || !scc.AllowHostDirVolumePlugin || !slices.Equal(scc.SeccompProfiles, []string{"runtime/default"}) {
		t.Errorf("%+v", scc)
	}
	for _, volume := range set.Spec.Template.Spec.Volumes {
		kind := map[bool]string{volume.EmptyDir != nil: "emptyDir", volume.HostPath != nil: "hostPath", volume.Projected != nil: "projected"}[true]
		if !slices.Contains(scc.Volumes, kind) {
			t.Errorf("volume %s is a %s, allowed are %q", volume.Name, kind, scc.Volumes)
		}
	}
	if one[*corev1.Namespace](t, objects).Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
		t.Error("pod security refuses the folder of the host")
	}
}

// TestAgentMixed: the overlay for two runtimes has the DaemonSets of both, each on nodes with its
// label, and everything else once.
func TestAgentMixed(t *testing.T) {
	const key = "layerlocality.io/runtime"
	objects, _ := buildAgent(t, "mixed")
	if len(objects) != 10 {
		t.Errorf("%d objects, want the 9 of one overlay and a DaemonSet", len(objects))
	}
	for _, overlay := range []string{"containerd", "cri-o"} {
		plain, _ := buildAgent(t, overlay)
		want := one[*appsv1.DaemonSet](t, plain)
		want.Name += "-" + overlay
		for _, labels := range []map[string]string{want.Labels, want.Spec.Selector.MatchLabels, want.Spec.Template.Labels, want.Spec.Template.Spec.NodeSelector} {
			labels[key] = overlay
		}
		if got := named[*appsv1.DaemonSet](t, objects, want.Name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", overlay, got, want)
		}
	}
}

// TestAgent checks what each overlay of deploy/agent installs: the container that reads the
// host has no token, and the one with the token nothing of the host.
func TestAgent(t *testing.T) {
	for overlay, host := range map[string]string{
		"containerd": "/run/containerd", "k3s": "/run/k3s/containerd", "cri-o": "/var/lib/containers/storage/overlay-images",
	} {
		objects, _ := buildAgent(t, overlay)
		if len(objects) != 9 {
			t.Errorf("%s: %d objects", overlay, len(objects))
		}
		set := one[*appsv1.DaemonSet](t, objects)
		pod := set.Spec.Template
		if set.Namespace != namespace || !reflect.DeepEqual(set.Spec.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": agent}) || pod.Labels["app.kubernetes.io/name"] != agent {
			t.Errorf("%s: %s/%s selects %v, the pods have %v", overlay, set.Namespace, set.Name, set.Spec.Selector, pod.Labels)
		}
		spec := pod.Spec
		if spec.HostNetwork || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
			t.Errorf("%s: %+v", overlay, spec)
		}
		volumes := map[string]corev1.VolumeSource{}
		for _, volume := range spec.Volumes {
			volumes[volume.Name] = volume.VolumeSource
		}
		own := []string{"runtime"}
		if overlay == "cri-o" {
			own = []string{"artifacts", "runtime"}
			if v := volumes["artifacts"].HostPath; v == nil || v.Path != "/var/lib/containers/storage/artifacts" || *v.Type != corev1.HostPathDirectoryOrCreate {
				t.Errorf("%s: artifacts in %+v", overlay, v)
			}
		}
		if len(volumes) != 2+len(own) || volumes["runtime"].HostPath == nil || volumes["runtime"].HostPath.Path != host || *volumes["runtime"].HostPath.Type != corev1.HostPathDirectory ||
			volumes["handover"].EmptyDir == nil || volumes["handover"].EmptyDir.Medium != corev1.StorageMediumMemory || volumes["handover"].EmptyDir.SizeLimit.IsZero() || volumes["token"].Projected == nil {
			t.Fatalf("%s: volumes %+v", overlay, volumes)
		}
		mounted := map[string][]string{}
		for _, container := range spec.Containers {
			if container.Image != strings.Replace(image(t), "/kube-scheduler:", "/"+agent+":", 1) {
				t.Errorf("%s: image %s", overlay, container.Image)
			}
			for _, mount := range container.VolumeMounts {
				mounted[container.Name] = append(mounted[container.Name], mount.Name)
				if writes := container.Name == "read" && mount.Name == "handover"; mount.ReadOnly == writes {
					t.Errorf("%s: %s mounts %s, read-only: %t", overlay, container.Name, mount.Name, mount.ReadOnly)
				}
			}
			slices.Sort(mounted[container.Name])
		}
		if want := map[string][]string{"read": slices.Sorted(slices.Values(append(own, "handover"))), "publish": {"handover", "token"}}; !reflect.DeepEqual(mounted, want) {
			t.Errorf("%s: mounted are %v, want %v", overlay, mounted, want)
		}
		read := spec.Containers[0]
		if root := *read.SecurityContext.RunAsUser == 0; root != (overlay == "cri-o") || len(read.Ports) > 0 {
			t.Errorf("%s: the reader runs as %d, ports %v", overlay, *read.SecurityContext.RunAsUser, read.Ports)
		}

		account := one[*corev1.ServiceAccount](t, objects)
		role, binding := named[*rbacv1.ClusterRole](t, objects, agent), named[*rbacv1.ClusterRoleBinding](t, objects, agent)
		if spec.ServiceAccountName != account.Name || binding.RoleRef.Name != role.Name ||
			!reflect.DeepEqual(binding.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: namespace}}) {
			t.Errorf("%s: the pods are %s, bound is %+v", overlay, spec.ServiceAccountName, binding.Subjects)
		}
		if got, want := atoms(role.Rules), []string{"layerlocality.io/nodelayers:create", "layerlocality.io/nodelayers:delete", "layerlocality.io/nodelayers:update"}; !slices.Equal(got, want) {
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
