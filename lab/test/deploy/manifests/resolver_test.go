package manifests

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkinginternal "k8s.io/kubernetes/pkg/apis/networking/v1"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

const resolver = "layer-resolver"

func init() {
	if err := apiextensionsv1.AddToScheme(clientscheme.Scheme); err != nil {
		panic(err)
	}
}

// buildResolver runs "kustomize build" on an overlay of deploy/resolver with
// the components.
func buildResolver(t *testing.T, components ...string) []runtime.Object {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	shipped, err := filepath.Abs(deployed + "/resolver")
	must(t, err)
	shipped, err = filepath.Rel(dir, shipped)
	must(t, err)
	for i := range components {
		components[i] = filepath.Join(shipped, "components", components[i])
	}
	overlay, err := yaml.Marshal(map[string][]string{"resources": {shipped}, "components": components})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), overlay, 0o600))
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	must(t, err)
	text, err := result.AsYaml()
	must(t, err)
	return decode(t, text)
}

// components returns all shipped components.
func components(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(deployed + "/resolver/components")
	must(t, err)
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	if want := []string{"argo-rollouts", "ca-bundle", "certs-d", "credential-provider", "docker-config", "machine-learning", "network-policy", "openshift", "openshift-registry", "pull-secrets", "registries-conf"}; !slices.Equal(found, want) {
		t.Fatalf("components %q, tested are %q", found, want)
	}
	return found
}

func TestResolver(t *testing.T) {
	for variant, components := range map[string][]string{"alone": nil, "with all components": components(t)} {
		t.Run(variant, func(t *testing.T) {
			objects := buildResolver(t, components...)
			deployment := one[*appsv1.Deployment](t, objects)
			pod := deployment.Spec.Template
			container := pod.Spec.Containers[0]

			seen := map[string]bool{}
			for _, object := range objects {
				accessor, err := meta.Accessor(object)
				must(t, err)
				kind := object.GetObjectKind().GroupVersionKind().Kind
				key := kind + " " + accessor.GetName()
				if seen[key] {
					t.Errorf("%s is there twice", key)
				}
				seen[key] = true
				if kind != "CustomResourceDefinition" && !strings.HasPrefix(accessor.GetName(), resolver) {
					t.Errorf("%s: its name does not show whose it is", key)
				}
				if accessor.GetLabels()["app.kubernetes.io/name"] != resolver || accessor.GetLabels()["app.kubernetes.io/part-of"] != "layer-locality" {
					t.Errorf("%s: labels %v", key, accessor.GetLabels())
				}
				inNamespace := kind != "CustomResourceDefinition" && !strings.HasPrefix(kind, "Cluster")
				global := accessor.GetName() == resolver+"-global-pull-secret" && accessor.GetNamespace() == "openshift-config"
				if !global && inNamespace != (accessor.GetNamespace() == namespace) {
					t.Errorf("%s: in namespace %q", key, accessor.GetNamespace())
				}
			}

			service := selectors(t, objects, deployment)
			ports := map[string]int32{}
			for _, port := range container.Ports {
				ports[port.Name] = port.ContainerPort
			}
			if !reflect.DeepEqual(ports, map[string]int32{"metrics": 8443, "probes": 8081}) || service.Spec.Ports[0].TargetPort.String() != "metrics" {
				t.Errorf("ports %v, the service leads to %s", ports, &service.Spec.Ports[0].TargetPort)
			}
			for path, probe := range map[string]*corev1.Probe{"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
				if probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != "probes" || probe.HTTPGet.Scheme == corev1.URISchemeHTTPS {
					t.Errorf("probe %+v", probe.HTTPGet)
				}
			}

			if *deployment.Spec.Replicas != 2 || pod.Spec.HostNetwork || pod.Spec.DNSPolicy != corev1.DNSDefault {
				t.Errorf("%d replicas, host network %v, DNS %s", *deployment.Spec.Replicas, pod.Spec.HostNetwork, pod.Spec.DNSPolicy)
			}
			pins := versions(t)
			if want := "registry.example.com/layer-locality/layer-resolver:" + pins["KUBERNETES_VERSION"] + "_layerlocality." + pins["LAYERLOCALITY_REVISION"]; container.Image != want {
				t.Errorf("image %s, want %s", container.Image, want)
			}

			account := one[*corev1.ServiceAccount](t, objects)
			if pod.Spec.ServiceAccountName != account.Name {
				t.Errorf("the pods are %s", pod.Spec.ServiceAccountName)
			}
			ours := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: namespace}}
			scheduler := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "system:kube-scheduler"}}
			bindings := map[string][]rbacv1.Subject{}
			for _, binding := range all[*rbacv1.ClusterRoleBinding](objects) {
				named[*rbacv1.ClusterRole](t, objects, binding.RoleRef.Name)
				bindings[binding.RoleRef.Kind+" "+binding.RoleRef.Name] = binding.Subjects
			}
			for _, binding := range all[*rbacv1.RoleBinding](objects) {
				named[*rbacv1.Role](t, objects, binding.RoleRef.Name)
				bindings[binding.RoleRef.Kind+" "+binding.RoleRef.Name] = binding.Subjects
			}
			want := map[string][]rbacv1.Subject{
				"ClusterRole " + resolver:               ours,
				"ClusterRole " + resolver + "-reader":   scheduler,
				"Role " + resolver + "-leader-election": ours,
				"Role " + resolver + "-lease-reader":    append(scheduler, rbacv1.Subject{Kind: "ServiceAccount", Name: "layer-locality-scheduler", Namespace: namespace}),
			}
			if components != nil {
				want["ClusterRole "+resolver+"-mirrors"] = ours
				want["ClusterRole "+resolver+"-argo-rollouts"] = ours
				want["ClusterRole "+resolver+"-machine-learning"] = ours
				want["Role "+resolver+"-global-pull-secret"] = ours
			}
			if !reflect.DeepEqual(bindings, want) {
				t.Errorf("bound:\ngot  %v\nwant %v", bindings, want)
			}
		})
	}
}

// TestResolverCRD checks that the CRD is shipped with the resolver, as it is
// generated and with the names of the Go package.
func TestResolverCRD(t *testing.T) {
	crd := one[*apiextensionsv1.CustomResourceDefinition](t, buildResolver(t))
	text, err := os.ReadFile(deployed + "/resolver/crd/layerlocality.io_imagemanifests.yaml")
	must(t, err)
	generated := one[*apiextensionsv1.CustomResourceDefinition](t, decode(t, text))
	if !reflect.DeepEqual(crd.Spec, generated.Spec) {
		t.Error("not as generated")
	}
	gvr := v1alpha1.ImageManifestsResource
	if crd.Spec.Group != gvr.Group || crd.Spec.Names.Plural != gvr.Resource || len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Name != gvr.Version {
		t.Errorf("%s in %s", crd.Spec.Names.Plural, crd.Spec.Group)
	}
}

// TestResolverRights checks that the rights are exactly these, with none for
// secrets unless requested.
func TestResolverRights(t *testing.T) {
	var rights []string
	for resource, verbs := range map[string]string{
		"/pods": "list watch", "/nodes": "list watch",
		"apps/deployments": "list watch", "apps/statefulsets": "list watch", "apps/daemonsets": "list watch",
		"batch/jobs": "list watch", "batch/cronjobs": "list watch",
		"networking.k8s.io/servicecidrs":            "list watch",
		"layerlocality.io/imagemanifests":           "get list watch create patch delete",
		"events.k8s.io/events":                      "create patch",
		"authentication.k8s.io/tokenreviews":        "create",
		"authorization.k8s.io/subjectaccessreviews": "create",
	} {
		for verb := range strings.FieldsSeq(verbs) {
			rights = append(rights, resource+":"+verb)
		}
	}
	slices.Sort(rights)
	roles := map[string][]string{
		resolver: rights,
		resolver + "-reader": {
			"layerlocality.io/imagemanifests:get", "layerlocality.io/imagemanifests:list", "layerlocality.io/imagemanifests:watch",
		},
		resolver + "-metrics-reader": {"/metrics:get"},
		resolver + "-leader-election": {
			"/events:create", "coordination.k8s.io/leases:create",
			"coordination.k8s.io/leases[" + resolver + "]:get", "coordination.k8s.io/leases[" + resolver + "]:update",
		},
		resolver + "-lease-reader": {"coordination.k8s.io/leases[" + resolver + "]:get"},
	}
	check := func(objects []runtime.Object) {
		t.Helper()
		got := map[string][]string{}
		for _, role := range all[*rbacv1.ClusterRole](objects) {
			got[role.Name] = atoms(role.Rules)
			if role.AggregationRule != nil {
				t.Errorf("%s is made of others", role.Name)
			}
			for label := range role.Labels {
				if strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-") {
					t.Errorf("%s has label %s", role.Name, label)
				}
			}
		}
		for _, role := range all[*rbacv1.Role](objects) {
			got[role.Name] = atoms(role.Rules)
		}
		if !reflect.DeepEqual(got, roles) {
			t.Errorf("rights:\ngot  %q\nwant %q", got, roles)
		}
	}
	check(buildResolver(t))
	check(buildResolver(t, "ca-bundle", "certs-d", "credential-provider", "docker-config", "registries-conf", "network-policy"))
	roles[resolver+"-pull-secrets"] = []string{"/secrets:get", "/serviceaccounts:get"}
	check(buildResolver(t, "pull-secrets"))
	delete(roles, resolver+"-pull-secrets")
	roles[resolver+"-argo-rollouts"] = []string{"argoproj.io/rollouts:list", "argoproj.io/rollouts:watch"}
	check(buildResolver(t, "argo-rollouts"))
	delete(roles, resolver+"-argo-rollouts")
	roles[resolver+"-machine-learning"] = []string{
		"jobset.x-k8s.io/jobsets:list", "jobset.x-k8s.io/jobsets:watch", "kubeflow.org/pytorchjobs:list", "kubeflow.org/pytorchjobs:watch",
		"leaderworkerset.x-k8s.io/leaderworkersets:list", "leaderworkerset.x-k8s.io/leaderworkersets:watch",
		"ray.io/rayclusters:list", "ray.io/rayclusters:watch", "ray.io/rayjobs:list", "ray.io/rayjobs:watch",
	}
	check(buildResolver(t, "machine-learning"))
	delete(roles, resolver+"-machine-learning")
	roles[resolver+"-mirrors"] = []string{
		"config.openshift.io/imagedigestmirrorsets:list", "config.openshift.io/imagedigestmirrorsets:watch",
		"config.openshift.io/imagetagmirrorsets:list", "config.openshift.io/imagetagmirrorsets:watch",
		"operator.openshift.io/imagecontentsourcepolicies:list", "operator.openshift.io/imagecontentsourcepolicies:watch",
	}
	roles[resolver+"-global-pull-secret"] = []string{"/secrets[pull-secret]:get"}
	check(buildResolver(t, "openshift", "openshift-registry"))

	// The user who applies it in a namespace binds it.
	text, err := os.ReadFile(deployed + "/resolver/components/pull-secrets/rolebinding.yaml")
	must(t, err)
	binding := one[*rbacv1.RoleBinding](t, decode(t, text))
	if binding.Namespace != "" || binding.RoleRef != (rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: resolver + "-pull-secrets"}) ||
		!slices.Equal(binding.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: resolver, Namespace: namespace}}) {
		t.Errorf("binding %+v", binding)
	}
}

// TestResolverComponents checks what each component adds to the Deployment.
func TestResolverComponents(t *testing.T) {
	plain := one[*appsv1.Deployment](t, buildResolver(t)).Spec.Template.Spec
	for component, flag := range map[string]string{
		"ca-bundle": "--ca-bundle", "certs-d": "--certs-dir",
		"pull-secrets": "--pull-secrets", "docker-config": "--docker-config", "registries-conf": "--registries-conf", "network-policy": "",
	} {
		t.Run(component, func(t *testing.T) {
			objects := buildResolver(t, component)
			pod := one[*appsv1.Deployment](t, objects).Spec.Template.Spec
			more := sets.New(pod.Containers[0].Args...).Difference(sets.New(plain.Containers[0].Args...)).UnsortedList()
			if flag == "" {
				if !reflect.DeepEqual(pod, plain) {
					t.Error("the pods change")
				}
				return
			}
			if len(more) != 1 {
				t.Fatalf("arguments %q", more)
			}
			got, file, hasFile := strings.Cut(more[0], "=")
			if got != flag {
				t.Errorf("argument %s", more[0])
			}
			if !hasFile {
				return
			}
			mount, volume := pod.Containers[0].VolumeMounts[0], pod.Volumes[0]
			if component == "certs-d" {
				certsD(t, file, mount, volume)
				return
			}
			if filepath.Dir(file) != mount.MountPath || !mount.ReadOnly || mount.Name != volume.Name {
				t.Errorf("%s is mounted at %+v from %s", file, mount, volume.Name)
			}
			switch {
			case volume.ConfigMap != nil && component == "ca-bundle": // the user makes it
				if items := volume.ConfigMap.Items; len(items) != 1 || items[0].Path != filepath.Base(file) {
					t.Errorf("%s is from a ConfigMap with items %v", file, items)
				}
			case volume.ConfigMap != nil:
				text := one[*corev1.ConfigMap](t, objects)
				if volume.ConfigMap.Name != text.Name || text.Name == resolver+"-registries" || text.Data[filepath.Base(file)] == "" {
					t.Errorf("%s is from ConfigMap %s, made is %s: it must have a hash, so that a change rolls out", file, volume.ConfigMap.Name, text.Name)
				}
			case volume.Secret != nil:
				if items := volume.Secret.Items; len(items) != 1 || items[0].Key != corev1.DockerConfigJsonKey || items[0].Path != filepath.Base(file) {
					t.Errorf("%s is from a Secret with items %v", file, items)
				}
			default:
				t.Errorf("volume %+v", volume)
			}
		})
	}
}

// certsD checks that the folder has a folder of a registry, with what certs.d has.
func certsD(t *testing.T, folder string, mount corev1.VolumeMount, volume corev1.Volume) {
	t.Helper()
	if folder != mount.MountPath || !mount.ReadOnly || mount.Name != volume.Name || volume.Projected == nil || len(volume.Projected.Sources) != 1 {
		t.Fatalf("%s is mounted at %+v from %+v", folder, mount, volume)
	}
	var files []string
	for _, item := range volume.Projected.Sources[0].Secret.Items {
		if err := policy.CheckHost(filepath.Dir(item.Path)); err != nil {
			t.Error(err)
		}
		files = append(files, filepath.Base(item.Path))
	}
	if want := []string{"ca.crt", "client.cert", "client.key"}; !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
}

// TestResolverOpenShift checks that the arguments name what is mounted, that the cluster
// fills in what is mounted, and that the internal registry has one address.
func TestResolverOpenShift(t *testing.T) {
	objects := buildResolver(t, "openshift", "openshift-registry", "ca-bundle")
	pod := one[*appsv1.Deployment](t, objects).Spec.Template.Spec
	injected := map[string]string{}
	for _, text := range all[*corev1.ConfigMap](objects) {
		switch {
		case text.Labels["config.openshift.io/inject-trusted-cabundle"] == "true":
			injected[text.Name] = "ca-bundle.crt"
		case text.Annotations["service.beta.openshift.io/inject-cabundle"] == "true":
			injected[text.Name] = "service-ca.crt"
		}
	}
	var folder string
	for _, mount := range pod.Containers[0].VolumeMounts {
		if mount.Name == "cluster-ca" {
			folder = mount.MountPath
		}
	}
	mounted := 0
	for _, volume := range pod.Volumes {
		if volume.Name != "cluster-ca" {
			continue
		}
		for _, source := range volume.Projected.Sources {
			item := source.ConfigMap.Items[0]
			if mounted++; injected[source.ConfigMap.Name] != item.Key {
				t.Errorf("%s of %s is not what the cluster fills in", item.Key, source.ConfigMap.Name)
			}
			if !slices.Contains(pod.Containers[0].Args, "--ca-bundle="+folder+"/"+item.Path) {
				t.Errorf("%s is in no argument of %q", item.Path, pod.Containers[0].Args)
			}
		}
	}
	if mounted != 2 {
		t.Errorf("%d bundles are mounted", mounted)
	}
	alias := pod.HostAliases[0]
	host := alias.Hostnames[0] + ":5000"
	for _, want := range []string{"--allow-registry=" + host, "--allow-network=" + host + "=" + alias.IP + "/32"} {
		if !slices.Contains(pod.Containers[0].Args, want) {
			t.Errorf("no argument %s in %q", want, pod.Containers[0].Args)
		}
	}
	if pod.DNSPolicy != corev1.DNSDefault {
		t.Errorf("names lead to services: DNS policy %s", pod.DNSPolicy)
	}
}

// TestResolverCredentialProvider checks that the configuration and the folder are where the
// arguments name them, and that the resolver can read the example.
func TestResolverCredentialProvider(t *testing.T) {
	objects := buildResolver(t, "credential-provider")
	pod := one[*appsv1.Deployment](t, objects).Spec.Template.Spec
	mounts := map[string]string{}
	for _, mount := range pod.Containers[0].VolumeMounts {
		if !mount.ReadOnly {
			t.Errorf("%s may be written", mount.MountPath)
		}
		mounts[mount.Name] = mount.MountPath
	}
	text := one[*corev1.ConfigMap](t, objects)
	if pod.Volumes[0].ConfigMap == nil || pod.Volumes[0].ConfigMap.Name != text.Name || text.Name == resolver+"-credential-provider" {
		t.Errorf("volume %+v, made is %s: it must have a hash, so that a change rolls out", pod.Volumes[0], text.Name)
	}
	for _, want := range []string{
		"--image-credential-provider-config=" + mounts["credential-provider"] + "/credential-provider.yaml",
		"--image-credential-provider-bin-dir=" + mounts["credential-provider-bin"],
	} {
		if !slices.Contains(pod.Containers[0].Args, want) {
			t.Errorf("no argument %s in %q", want, pod.Containers[0].Args)
		}
	}
	bin := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bin, "ecr-credential-provider"), nil, 0o700))
	_, err := keychains.FromProviders(deployed+"/resolver/components/credential-provider/credential-provider.yaml", bin)
	must(t, err)
}

// TestResolverRegistriesConf checks that the resolver can read the example, and
// that it means what its comment states.
func TestResolverRegistriesConf(t *testing.T) {
	allowed, err := policy.New(policy.Config{})
	must(t, err)
	client, err := registry.New(registry.Config{Policy: allowed, RegistriesConf: deployed + "/resolver/components/registries-conf/registries.conf"})
	must(t, err)
	references, err := client.References("busybox")
	must(t, err)
	if !slices.Equal(references, []string{"docker.io/library/busybox:latest"}) {
		t.Errorf("busybox means %q", references)
	}
}

// TestResolverNetworkPolicy checks that the example is valid, and that it lets
// none of the addresses through to the port of registries that the resolver's
// own policy denies.
func TestResolverNetworkPolicy(t *testing.T) {
	example := one[*networkingv1.NetworkPolicy](t, buildResolver(t, "network-policy"))
	pods := one[*appsv1.Deployment](t, buildResolver(t)).Spec.Template.Labels
	if !labels.SelectorFromSet(example.Spec.PodSelector.MatchLabels).Matches(labels.Set(pods)) || len(example.Spec.PodSelector.MatchLabels) == 0 {
		t.Errorf("it selects %v", example.Spec.PodSelector)
	}
	var internal networking.NetworkPolicy
	must(t, networkinginternal.Convert_v1_NetworkPolicy_To_networking_NetworkPolicy(example, &internal, nil))
	if errs := networkingvalidation.ValidateNetworkPolicy(&internal, networkingvalidation.NetworkPolicyValidationOptions{}); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}

	allowed, err := policy.New(policy.Config{})
	must(t, err)
	for text, want := range map[string]bool{
		"1.1.1.1": true, "9.9.9.9": true, "100.128.0.1": true, "172.32.0.1": true, "192.169.0.1": true, "223.255.255.1": true,
		"2606:4700::1111": true, "2a00:1450:4001::1": true,
		"0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "10.255.255.255": false, "100.64.0.1": false, "127.0.0.1": false,
		"168.63.129.16": false, "169.254.169.254": false, "172.16.0.1": false, "172.31.255.255": false, "192.0.0.1": false,
		"192.0.2.1": false, "192.88.99.1": false, "192.168.1.1": false, "198.18.0.1": false, "198.51.100.1": false,
		"203.0.113.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "fe80::1": false, "fc00::1": false, "fd12:3456::1": false, "fec0::1": false, "ff02::1": false,
		"2001::1": false, "2001:db8::1": false, "2620:4f:8000::1": false, "3fff::1": false,
		"::ffff:10.0.0.1": false, "::10.0.0.1": false, "64:ff9b::a00:1": false, "2002:a00:1::1": false,
	} {
		addr := netip.MustParseAddr(text)
		if err := allowed.Address(addr); (err == nil) != want {
			t.Errorf("%s: the resolver returns %v", text, err)
		}
		if got := reachable(example, addr, 443); got != want {
			t.Errorf("%s: the example lets through: %v", text, got)
		}
		if reachable(example, addr, 22) {
			t.Errorf("%s: port 22 is open", text)
		}
	}
}

// reachable reports whether a NetworkPolicy allows egress to an address and port.
func reachable(example *networkingv1.NetworkPolicy, addr netip.Addr, port int) bool {
	// On the wire there is no IPv4 address in IPv6.
	addr = addr.Unmap()
	return slices.ContainsFunc(example.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
		return slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool {
			return p.Port.IntValue() == port
		}) && (len(rule.To) == 0 || slices.ContainsFunc(rule.To, func(peer networkingv1.NetworkPolicyPeer) bool {
			in := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(addr) }
			return in(peer.IPBlock.CIDR) && !slices.ContainsFunc(peer.IPBlock.Except, in)
		}))
	})
}
