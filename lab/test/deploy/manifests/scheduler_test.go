package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/user"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-helpers/auth/rbac/validation"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubeschedulervalidation "k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	shipped "github.com/layer-locality/layer-locality/deploy/resolver"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/test/deploy/kubeadm"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme"
	argsvalidation "github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
)

const (
	name      = "layer-locality-scheduler"
	namespace = "kube-system"
)

// variants are the overlays, with the scheduler name that pods use and the lease
// for the election among its replicas.
var variants = map[string]struct{ scheduler, lease string }{
	"second-scheduler":  {"layer-locality", "layer-locality-scheduler"},
	"default-scheduler": {"default-scheduler", "kube-scheduler"},
}

// decode reads the documents of a YAML text as an apiserver with strict field
// validation does.
func decode(t *testing.T, text []byte) []runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		must(t, err)
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		objects = append(objects, object)
	}
}

var must = testkit.Must

// build runs "kustomize build" on a variant.
func build(t *testing.T, variant string) []runtime.Object {
	t.Helper()
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(deployed, "scheduler", variant))
	must(t, err)
	text, err := result.AsYaml()
	must(t, err)
	return decode(t, text)
}

// all returns the objects of one type.
func all[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// one returns the only object of its type.
func one[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := all[T](objects)
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T instead of one", len(found), *new(T))
	}
	return found[0]
}

// named returns the object with a type and a name.
func named[T interface {
	runtime.Object
	metav1.Object
}](t *testing.T, objects []runtime.Object, name string) T {
	t.Helper()
	for _, object := range all[T](objects) {
		if object.GetName() == name {
			return object
		}
	}
	t.Fatalf("no %T %s", *new(T), name)
	panic("unreachable")
}

// load reads a configuration as kube-scheduler does with its --config.
func load(t *testing.T, text string) *kubescheduler.KubeSchedulerConfiguration {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := options.LoadConfigFromFile(klog.Background(), file)
	must(t, err)
	if err := kubeschedulervalidation.ValidateKubeSchedulerConfiguration(loaded); err != nil {
		t.Fatal(err)
	}
	return loaded
}

// versions returns the pins of the repository.
func versions(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../../versions.env")
	must(t, err)
	pins := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			pins[key] = value
		}
	}
	return pins
}

// image returns the name that the shipped manifests have: in a registry that does
// not exist, with the version that is built here.
func image(t *testing.T) string {
	return "registry.example.com/layer-locality/kube-scheduler:" + version(t)
}

// version returns the version of the scheduler that is built here.
func version(t *testing.T) string {
	pins := versions(t)
	return pins["KUBERNETES_VERSION"] + "_layerlocality." + pins["LAYERLOCALITY_REVISION"]
}

// The chart of Helm is of the version that this repository builds.
func TestChartVersion(t *testing.T) {
	text, err := os.ReadFile("../../../../deploy/helm/Chart.yaml")
	must(t, err)
	var described struct {
		AppVersion string `json:"appVersion"`
	}
	must(t, yaml.Unmarshal(text, &described))
	if want := version(t); described.AppVersion != want {
		t.Errorf("appVersion %s, want %s", described.AppVersion, want)
	}
}

func TestVariants(t *testing.T) {
	for variant, want := range variants {
		t.Run(variant, func(t *testing.T) {
			objects := build(t, variant)
			deployment := one[*appsv1.Deployment](t, objects)
			pod := deployment.Spec.Template

			t.Run("metadata", func(t *testing.T) {
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
					if !strings.HasPrefix(accessor.GetName(), name) {
						t.Errorf("%s: its name does not show whose it is", key)
					}
					if accessor.GetLabels()["app.kubernetes.io/name"] != name || accessor.GetLabels()["app.kubernetes.io/part-of"] != "layer-locality" {
						t.Errorf("%s: labels %v", key, accessor.GetLabels())
					}
					if inNamespace := !strings.HasPrefix(kind, "Cluster"); inNamespace != (accessor.GetNamespace() == namespace) {
						t.Errorf("%s: in namespace %q", key, accessor.GetNamespace())
					}
				}
			})

			t.Run("selectors", func(t *testing.T) {
				service := selectors(t, objects, deployment)
				ports := map[string]int32{}
				for _, port := range pod.Spec.Containers[0].Ports {
					ports[port.Name] = port.ContainerPort
				}
				// The secure port's default, which no argument changes.
				if ports["https"] != 10259 || service.Spec.Ports[0].TargetPort.String() != "https" {
					t.Errorf("ports %v, the service leads to %s", ports, &service.Spec.Ports[0].TargetPort)
				}
				for _, probe := range []*corev1.Probe{pod.Spec.Containers[0].StartupProbe, pod.Spec.Containers[0].LivenessProbe, pod.Spec.Containers[0].ReadinessProbe} {
					if _, ok := ports[probe.HTTPGet.Port.String()]; !ok || probe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
						t.Errorf("probe %+v", probe.HTTPGet)
					}
				}
			})

			t.Run("configuration", func(t *testing.T) {
				text := one[*corev1.ConfigMap](t, objects)
				mount := pod.Spec.Containers[0].VolumeMounts[0]
				if args := pod.Spec.Containers[0].Args; !slices.Equal(args, []string{"--config=" + mount.MountPath + "/config.yaml"}) {
					t.Errorf("arguments %q, mounted at %s", args, mount.MountPath)
				}
				volume := pod.Spec.Volumes[0]
				if volume.Name != mount.Name || volume.ConfigMap == nil || volume.ConfigMap.Name != text.Name || text.Name == name+"-config" {
					t.Errorf("volume %+v, the ConfigMap is %s: it must have a hash, so that a change rolls out", volume, text.Name)
				}
				loaded := load(t, text.Data["config.yaml"])
				election := loaded.LeaderElection
				if !election.LeaderElect || election.ResourceNamespace != namespace || election.ResourceName != want.lease {
					t.Errorf("leader election %+v", election)
				}
				profile(t, loaded, want.scheduler)

				lease := named[*rbacv1.Role](t, objects, name+"-leader-election")
				rights := []string{
					"/events:create", "coordination.k8s.io/leases:create",
					"coordination.k8s.io/leases[" + want.lease + "]:get", "coordination.k8s.io/leases[" + want.lease + "]:update",
				}
				if got := atoms(lease.Rules); !slices.Equal(got, rights) {
					t.Errorf("rights in the lease's namespace: %q, want %q", got, rights)
				}
			})

			t.Run("bindings", func(t *testing.T) {
				account := one[*corev1.ServiceAccount](t, objects)
				if pod.Spec.ServiceAccountName != account.Name {
					t.Errorf("the pods are %s", pod.Spec.ServiceAccountName)
				}
				check := func(binding string, subjects []rbacv1.Subject) {
					t.Helper()
					if !reflect.DeepEqual(subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: namespace}}) {
						t.Errorf("%s binds %v", binding, subjects)
					}
				}
				cluster := one[*rbacv1.ClusterRoleBinding](t, objects)
				check(cluster.Name, cluster.Subjects)
				named[*rbacv1.ClusterRole](t, objects, cluster.RoleRef.Name)
				upstream := map[string]bool{}
				for _, role := range bootstrappolicy.NamespaceRoles()[namespace] {
					upstream[role.Name] = true
				}
				for _, binding := range all[*rbacv1.RoleBinding](objects) {
					check(binding.Name, binding.Subjects)
					if !upstream[binding.RoleRef.Name] {
						named[*rbacv1.Role](t, objects, binding.RoleRef.Name)
					}
				}
			})

			t.Run("pod", func(t *testing.T) {
				if *deployment.Spec.Replicas != 2 {
					t.Errorf("%d replicas", *deployment.Spec.Replicas)
				}
				container := pod.Spec.Containers[0]
				if container.Image != image(t) {
					t.Errorf("image %s, want %s", container.Image, image(t))
				}
			})
		})
	}
}

// profile checks a configuration's only profile.
func profile(t *testing.T, loaded *kubescheduler.KubeSchedulerConfiguration, scheduler string) {
	t.Helper()
	if len(loaded.Profiles) != 1 {
		t.Fatalf("%d profiles", len(loaded.Profiles))
	}
	profile := loaded.Profiles[0]
	if profile.SchedulerName != scheduler {
		t.Errorf("scheduler name %s", profile.SchedulerName)
	}
	if p := profile.PercentageOfNodesToScore; p != nil {
		t.Errorf("percentageOfNodesToScore is %d: kube-scheduler decides, and looks at the nodes with most of a pod's bytes first", *p)
	}
	var enabled []kubescheduler.Plugin
	for _, plugin := range profile.Plugins.MultiPoint.Enabled {
		switch plugin.Name {
		case "ImageLocality":
			t.Error("ImageLocality is enabled: images count twice")
		case "LayerLocality":
			enabled = append(enabled, plugin)
		}
	}
	if !slices.Equal(enabled, []kubescheduler.Plugin{{Name: "LayerLocality", Weight: 4}}) {
		t.Errorf("enabled: %v", enabled)
	}
	for _, plugin := range profile.PluginConfig {
		if plugin.Name == "LayerLocality" {
			if _, ok := plugin.Args.(*config.LayerLocalityArgs); !ok {
				t.Errorf("arguments of type %T", plugin.Args)
			}
			return
		}
	}
	t.Error("LayerLocality has no arguments, not even the defaults")
}

// atoms returns the smallest parts of rules, as "group/resource[name]:verb".
func atoms(rules []rbacv1.PolicyRule) []string {
	var found []string
	for _, rule := range rules {
		for _, atom := range validation.BreakdownRule(rule) {
			text := strings.Join(atom.APIGroups, "") + "/" + strings.Join(atom.Resources, "")
			if len(atom.NonResourceURLs) > 0 {
				text = atom.NonResourceURLs[0]
			}
			if len(atom.ResourceNames) > 0 {
				text += "[" + atom.ResourceNames[0] + "]"
			}
			found = append(found, text+":"+atom.Verbs[0])
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// unused lists rights that upstream grants its scheduler and that ours does not
// need. If an upgrade of Kubernetes changes what it needs, this test fails: look
// up what uses the new right.
var unused = []string{
	// Informers list and watch.
	"/namespaces:get", "/nodes:get", "/persistentvolumeclaims:get", "/persistentvolumes:get", "/pods:get",
	"/replicationcontrollers:get", "/services:get", "apps/replicasets:get", "apps/statefulsets:get",
	"policy/poddisruptionbudgets:get", "resource.k8s.io/deviceclasses:get", "resource.k8s.io/resourceslices:get",
	"storage.k8s.io/csidrivers:get", "storage.k8s.io/csinodes:get", "storage.k8s.io/csistoragecapacities:get",
	"storage.k8s.io/storageclasses:get", "storage.k8s.io/volumeattachments:get",
	// What is patched is not updated, and the other way round.
	"/persistentvolumeclaims:patch", "/persistentvolumes:patch", "/pods/status:update", "resource.k8s.io/resourceclaims:patch",
	"resource.k8s.io/resourceclaims/status:get", "resource.k8s.io/resourceclaims/status:list", "resource.k8s.io/resourceclaims/status:watch",
	"events.k8s.io/events:update",
	// From the time before events.k8s.io, pods/binding and apps.
	"/bindings:create", "/events:update",
	"extensions/replicasets:get", "extensions/replicasets:list", "extensions/replicasets:watch",
	// In the Role of the lease, in its namespace only.
	"/events:create", "/events:patch",
	"coordination.k8s.io/leases:create",
	"coordination.k8s.io/leases[kube-scheduler]:get", "coordination.k8s.io/leases[kube-scheduler]:list",
	"coordination.k8s.io/leases[kube-scheduler]:update", "coordination.k8s.io/leases[kube-scheduler]:watch",
	// The feature gate CoordinatedLeaderElection, which is off.
	"coordination.k8s.io/leasecandidates:create", "coordination.k8s.io/leasecandidates:delete",
	"coordination.k8s.io/leasecandidates:deletecollection", "coordination.k8s.io/leasecandidates:get",
	"coordination.k8s.io/leasecandidates:list", "coordination.k8s.io/leasecandidates:patch",
	"coordination.k8s.io/leasecandidates:update", "coordination.k8s.io/leasecandidates:watch",
}

// readsManifests and readsNodes are what those may read who may read our resources.
var readsManifests, readsNodes = reads(v1alpha1.ImageManifestsResource), reads(v1alpha1.NodeLayersResource)

func reads(resource schema.GroupVersionResource) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{resource.Group}, Resources: []string{resource.Resource}, Verbs: []string{"get", "list", "watch"}}
}

// watches is what the plugin reads in addition to upstream's scheduler: informers list and watch.
var watches = rbacv1.PolicyRule{
	APIGroups: []string{v1alpha1.GroupVersion.Group}, Verbs: []string{"list", "watch"},
	Resources: []string{v1alpha1.ImageManifestsResource.Resource, v1alpha1.NodeLayersResource.Resource},
}

// TestLeastPrivilege compares the scheduler's rights with upstream's for its
// scheduler plus the plugin's: there are no others, and every missing one is
// listed.
func TestLeastPrivilege(t *testing.T) {
	upstream := []rbacv1.PolicyRule{watches}
	for _, role := range bootstrappolicy.ClusterRoles() {
		if role.Name == "system:kube-scheduler" || role.Name == "system:volume-scheduler" {
			upstream = append(upstream, role.Rules...)
		}
	}
	ours := named[*rbacv1.ClusterRole](t, build(t, "second-scheduler"), name).Rules
	if ok, more := validation.Covers(upstream, ours); !ok {
		t.Errorf("more than upstream's and the plugin's: %q", atoms(more))
	}
	_, less := validation.Covers(ours, upstream)
	want := slices.Clone(unused)
	slices.Sort(want)
	if got := atoms(less); !slices.Equal(got, want) {
		t.Errorf("not granted, unlike upstream:\ngot  %q\nwant %q", got, want)
	}
}

// TestNoWildcard checks that no rule has wildcards.
func TestNoWildcard(t *testing.T) {
	for variant := range variants {
		rules := map[string][]rbacv1.PolicyRule{}
		objects := build(t, variant)
		for _, role := range all[*rbacv1.ClusterRole](objects) {
			rules[role.Name] = role.Rules
		}
		for _, role := range all[*rbacv1.Role](objects) {
			rules[role.Name] = role.Rules
		}
		if len(rules) != 4 {
			t.Errorf("%s: roles %v", variant, slices.Sorted(maps.Keys(rules)))
		}
		for name, rules := range rules {
			for _, rule := range rules {
				for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs} {
					for _, item := range list {
						if strings.Contains(item, "*") {
							t.Errorf("%s: %s: %v", variant, name, rule)
						}
					}
				}
			}
		}
	}
}

// selectors checks that everything that selects pods selects those of the
// Deployment, and returns the Service.
func selectors(t *testing.T, objects []runtime.Object, deployment *appsv1.Deployment) *corev1.Service {
	t.Helper()
	pod := &deployment.Spec.Template
	matches := func(what string, selector map[string]string) {
		t.Helper()
		if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s selects %v, the pods have %v", what, selector, pod.Labels)
		}
	}
	matches("the Deployment", deployment.Spec.Selector.MatchLabels)
	matches("the PodDisruptionBudget", one[*policyv1.PodDisruptionBudget](t, objects).Spec.Selector.MatchLabels)
	service := one[*corev1.Service](t, objects)
	matches("the Service", service.Spec.Selector)
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		matches("the anti-affinity", term.PodAffinityTerm.LabelSelector.MatchLabels)
	}
	return service
}

// TestReaders checks that users who may read metrics may not read names of pods.
func TestReaders(t *testing.T) {
	objects := build(t, "second-scheduler")
	for role, paths := range map[string][]string{name + "-metrics-reader": {"/metrics"}, name + "-debug-reader": {"/debug/layerlocality", "/debug/packing", "/debug/safe"}} {
		want := []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: paths}}
		if got := named[*rbacv1.ClusterRole](t, objects, role).Rules; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v", role, got)
		}
	}
}

// TestStaticPodRights checks that with the resolver, the stock scheduler's
// identity gets only the right to what the plugin reads.
func TestStaticPodRights(t *testing.T) {
	objects := decode(t, shipped.Readers)
	role, binding := one[*rbacv1.ClusterRole](t, objects), one[*rbacv1.ClusterRoleBinding](t, objects)
	if !reflect.DeepEqual(role.Rules, []rbacv1.PolicyRule{readsManifests}) {
		t.Errorf("rules %v", role.Rules)
	}
	stock := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user.KubeScheduler}}
	if len(objects) != 4 || binding.RoleRef.Name != role.Name || !reflect.DeepEqual(binding.Subjects, stock) {
		t.Errorf("binding %v of %v", binding.Subjects, binding.RoleRef)
	}
	// And to see whether a resolver is elected.
	lease, holders := one[*rbacv1.Role](t, objects), one[*rbacv1.RoleBinding](t, objects)
	want := []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{resolver}, Verbs: []string{"get"}}}
	if !reflect.DeepEqual(lease.Rules, want) || lease.Namespace != namespace || holders.Namespace != namespace || holders.RoleRef.Name != lease.Name {
		t.Errorf("rules %v in %s, bound by %+v", lease.Rules, lease.Namespace, holders)
	}
}

// TestStaticPod checks that the shipped manifest is what kubeadm writes with the
// shipped configuration and patch.
func TestStaticPod(t *testing.T) {
	folder := filepath.Join(deployed, "scheduler", "static-pod")
	text, err := os.ReadFile(filepath.Join(folder, "kubeadm", "kubeadm.yaml"))
	must(t, err)
	manifest, version, err := kubeadm.Scheduler(text, filepath.Join(folder, "kubeadm", "patches"))
	must(t, err)
	pins := versions(t)
	if version != pins["KUBERNETES_VERSION"] {
		t.Errorf("kubeadm.yaml is for %s", version)
	}
	shipped, err := os.ReadFile(filepath.Join(folder, "kube-scheduler.yaml"))
	must(t, err)
	got, want := one[*corev1.Pod](t, decode(t, shipped)), one[*corev1.Pod](t, decode(t, manifest))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kubeadm's manifest (-) and ours (+):\n%s", diff)
	}
	container := got.Spec.Containers[0]
	if container.Image != image(t) {
		t.Errorf("image %s, want %s", container.Image, image(t))
	}

	text, err = os.ReadFile(filepath.Join(folder, "config.yaml"))
	must(t, err)
	loaded := load(t, string(text))
	profile(t, loaded, "default-scheduler")
	if mounted := container.VolumeMounts[0].MountPath; loaded.ClientConnection.Kubeconfig != mounted {
		t.Errorf("kubeconfig %s, mounted is %s", loaded.ClientConnection.Kubeconfig, mounted)
	}
	if !loaded.LeaderElection.LeaderElect || loaded.LeaderElection.ResourceName != "kube-scheduler" {
		t.Errorf("leader election %+v", loaded.LeaderElection)
	}
	// A switch from one variant to the other does not change scheduling.
	other := load(t, one[*corev1.ConfigMap](t, build(t, "default-scheduler")).Data["config.yaml"])
	if diff := cmp.Diff(other.Profiles, loaded.Profiles); diff != "" {
		t.Errorf("default-scheduler (-) and static-pod (+) differ:\n%s", diff)
	}
}

// TestDocumentation checks that the configuration in docs/configuration.md is a
// shipped one, except for arguments.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "configuration.md"))
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Scheduler\n")
	_, section, found := strings.Cut(section, "```yaml\n")
	example, rest, _ := strings.Cut(section, "```\n")
	if !found {
		t.Fatal("no example")
	}
	profile(t, load(t, example), "default-scheduler")

	// The example of arguments replaces those arguments.
	_, rest, found = strings.Cut(rest, "```yaml\n")
	arguments, _, _ := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("no example of arguments")
	}
	before, _, _ := strings.Cut(example, "    args:\n")
	loaded := load(t, before+"    args:\n      "+strings.ReplaceAll(arguments, "\n", "\n      "))
	for _, plugin := range loaded.Profiles[0].PluginConfig {
		if plugin.Name == "LayerLocality" {
			args := plugin.Args.(*config.LayerLocalityArgs)
			if err := argsvalidation.LayerLocalityArgs(args); err != nil {
				t.Error(err)
			}
			if len(args.ShortNames) == 0 || len(args.UnqualifiedRegistries) != 2 || len(args.Mirrors) == 0 {
				t.Errorf("arguments %+v", args)
			}
		}
	}
}
