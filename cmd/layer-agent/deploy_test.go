package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

var must = testkit.Must

// overlays are the folders of deploy/agent that are applied.
var overlays = []string{"containerd", "cri-o", "k3s", "okd"}

// shipped returns what an overlay of deploy/agent consists of.
func shipped(t *testing.T, overlay string) resmap.ResMap {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../deploy/agent/"+overlay)
	must(t, err)
	return built
}

// TestShippedArguments: the commands take the arguments of the shipped containers, and these
// mount what the arguments name.
func TestShippedArguments(t *testing.T) {
	for _, overlay := range overlays {
		var set appsv1.DaemonSet
		for _, resource := range shipped(t, overlay).Resources() {
			if resource.GetKind() == "DaemonSet" {
				must(t, yaml.UnmarshalStrict([]byte(resource.MustYaml()), &set))
			}
		}
		containers := set.Spec.Template.Spec.Containers
		if len(containers) != 2 {
			t.Fatalf("%s: %d containers", overlay, len(containers))
		}
		for _, container := range containers {
			var found *cobra.Command
			root := newCommand()
			found, rest, err := root.Find(container.Args)
			must(t, err)
			if found.Name() != container.Name {
				t.Errorf("%s: container %s runs %s", overlay, container.Name, found.Name())
			}
			if err := found.ParseFlags(rest); err != nil || len(found.Flags().Args()) > 0 {
				t.Errorf("%s: %q: %v", overlay, container.Args, err)
			}
			mounts := func(path string) bool {
				return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
					return path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")
				})
			}
			value := func(flag string) string { return found.Flags().Lookup(flag).Value.String() }
			paths := []string{value("handover")}
			switch {
			case container.Name == "publish":
				paths = append(paths, value("token-file"))
			case value("runtime") == withContainerd:
				paths = append(paths, value("socket"))
			default:
				root := strings.Trim(value("storage"), "[]")
				paths = append(paths, root+"/overlay-images", root+"/artifacts")
			}
			for _, path := range paths {
				if !mounts(path) {
					t.Errorf("%s: container %s mounts nothing at %s", overlay, container.Name, path)
				}
			}
		}
	}
}

// TestShippedPeers: the component adds a container with the image of the others, whose arguments name what it
// mounts, and the right to read NodeLayers.
func TestShippedPeers(t *testing.T) {
	built, err := kustomize.Build("../../deploy/agent/cri-o", map[string]any{
		"components": []string{"../../deploy/agent/components/peers"},
	})
	must(t, err)
	var set appsv1.DaemonSet
	bound := false
	for _, object := range built {
		text, err := object.MarshalJSON()
		must(t, err)
		switch {
		case object.GetKind() == "DaemonSet":
			must(t, yaml.UnmarshalStrict(text, &set))
		case object.GetKind() == "ClusterRoleBinding" && object.GetName() == "layer-agent-peers":
			bound = strings.Contains(string(text), "layer-agent-reader")
		case object.GetKind() == "NetworkPolicy":
			t.Error("a NetworkPolicy without the component for it")
		}
	}
	containers := set.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "peers" })
	if len(containers) != 3 || i < 0 || !bound {
		t.Fatalf("%d containers, peers at %d, bound %v", len(containers), i, bound)
	}
	peers := containers[i]
	for _, other := range containers {
		if other.Image != peers.Image {
			t.Errorf("image %s, that of %s is %s", peers.Image, other.Name, other.Image)
		}
	}
	found, rest, err := newCommand().Find(peers.Args)
	must(t, err)
	must(t, found.ParseFlags(rest))
	value := func(flag string) string { return found.Flags().Lookup(flag).Value.String() }
	for _, path := range []string{value("handover"), value("token-file"), value("folder"), value("socket")} {
		if !slices.ContainsFunc(peers.VolumeMounts, func(m corev1.VolumeMount) bool {
			return path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")
		}) {
			t.Errorf("nothing is mounted at %s", path)
		}
	}
	if security := peers.SecurityContext; len(security.Capabilities.Add) > 0 || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem {
		t.Errorf("%+v", security)
	}
}

// TestShippedPeersNamespace: the rights follow the service account, whether the component is in an overlay
// of okd or in okd itself.
func TestShippedPeersNamespace(t *testing.T) {
	folder := t.TempDir()
	for _, part := range []string{"agent", "images"} {
		must(t, os.CopyFS(filepath.Join(folder, part), os.DirFS("../../deploy/"+part)))
	}
	okd := filepath.Join(folder, "agent/okd")
	text, err := os.ReadFile(filepath.Join(okd, "kustomization.yaml"))
	must(t, err)
	text = append(text, "components:\n- ../components/peers\n"...)
	must(t, os.WriteFile(filepath.Join(okd, "kustomization.yaml"), text, 0o600))
	component := map[string]any{"components": []string{"../../deploy/agent/components/peers"}}
	for _, try := range []struct {
		shipped   string
		overlay   map[string]any
		namespace string
	}{
		{"../../deploy/agent/cri-o", component, "kube-system"},
		{"../../deploy/agent/okd", component, "layer-locality-agent"},
		{okd, nil, "layer-locality-agent"},
	} {
		built, err := kustomize.Build(try.shipped, try.overlay)
		must(t, err)
		var accounts, subjects []string
		for _, object := range built {
			switch {
			case object.GetKind() == "ServiceAccount":
				accounts = append(accounts, object.GetNamespace())
			case strings.HasSuffix(object.GetKind(), "RoleBinding") && object.GetName() == "layer-agent-peers":
				var binding rbacv1.RoleBinding
				text, err := object.MarshalJSON()
				must(t, err)
				must(t, yaml.UnmarshalStrict(text, &binding))
				for _, subject := range binding.Subjects {
					subjects = append(subjects, subject.Namespace)
				}
			}
		}
		want := []string{try.namespace, try.namespace} // the right to read, and that to write events
		if !slices.Equal(accounts, want[:1]) || !slices.Equal(subjects, want) {
			t.Errorf("%s: service accounts in %q, subjects in %q, want %q", try.shipped, accounts, subjects, want)
		}
	}
}

// TestShippedPeersNetwork: with both components, agents reach each other's port 9451, and others port 9452 as well as 9450.
func TestShippedPeersNetwork(t *testing.T) {
	built, err := kustomize.Build("../../deploy/agent/cri-o", map[string]any{
		"components": []string{"../../deploy/agent/components/network-policy", "../../deploy/agent/components/peers"},
	})
	must(t, err)
	var policies []networkingv1.NetworkPolicy
	for _, object := range built {
		if object.GetKind() == "NetworkPolicy" {
			text, err := object.MarshalJSON()
			must(t, err)
			var policy networkingv1.NetworkPolicy
			must(t, yaml.UnmarshalStrict(text, &policy))
			policies = append(policies, policy)
		}
	}
	if len(policies) != 1 {
		t.Fatalf("%d policies", len(policies))
	}
	spec := policies[0].Spec
	tcp, agents := corev1.ProtocolTCP, []networkingv1.NetworkPolicyPeer{{PodSelector: &spec.PodSelector}}
	ports := func(numbers ...int32) (ports []networkingv1.NetworkPolicyPort) {
		for _, number := range numbers {
			ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: &tcp, Port: new(intstr.FromInt32(number))})
		}
		return ports
	}
	if want := []networkingv1.NetworkPolicyIngressRule{{Ports: ports(9450, 9452)}, {From: agents, Ports: ports(9451)}}; !reflect.DeepEqual(spec.Ingress, want) {
		t.Errorf("ingress %+v, want %+v", spec.Ingress, want)
	}
	want := networkingv1.NetworkPolicyEgressRule{To: agents, Ports: ports(9451)}
	if n := len(spec.Egress); n != 2 || !reflect.DeepEqual(spec.Egress[n-1], want) {
		t.Errorf("egress %+v, want also %+v", spec.Egress, want)
	}
}
