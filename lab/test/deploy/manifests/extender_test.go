package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/lab/test/deploy/kubeadm"
)

const extender = "layer-extender"

// buildExtender runs "kustomize build" on a folder of deploy/extender.
func buildExtender(t *testing.T, folder string) []runtime.Object {
	t.Helper()
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(deployed, "extender", folder))
	must(t, err)
	text, err := result.AsYaml()
	must(t, err)
	return decode(t, text)
}

// extenderImage returns the image that the shipped manifests name.
func extenderImage(t *testing.T) string {
	return strings.Replace(image(t), "/kube-scheduler:", "/layer-extender:", 1)
}

// TestExtender checks what deploy/extender installs beside each kube-scheduler.
func TestExtender(t *testing.T) {
	objects := buildExtender(t, ".")
	if len(objects) != 4 {
		t.Errorf("%d objects", len(objects))
	}
	set := one[*appsv1.DaemonSet](t, objects)
	pod := set.Spec.Template
	if set.Namespace != namespace || !reflect.DeepEqual(set.Spec.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": extender}) || pod.Labels["app.kubernetes.io/name"] != extender {
		t.Errorf("%s/%s selects %v, the pods have %v", set.Namespace, set.Name, set.Spec.Selector, pod.Labels)
	}
	if !pod.Spec.HostNetwork {
		t.Error("it is not on the host's loopback")
	}
	container := pod.Spec.Containers[0]
	if container.Image != extenderImage(t) {
		t.Errorf("image %s, want %s", container.Image, extenderImage(t))
	}
	if !slices.Equal(container.Args, extenderArgs("127.0.0.1")) {
		t.Errorf("arguments %q", container.Args)
	}
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		if probe.HTTPGet.Host != "127.0.0.1" || probe.HTTPGet.Port.IntValue() != 5401 {
			t.Errorf("probe %+v: it listens on loopback only", probe.HTTPGet)
		}
	}
	account := one[*corev1.ServiceAccount](t, objects)
	role, binding := one[*rbacv1.ClusterRole](t, objects), one[*rbacv1.ClusterRoleBinding](t, objects)
	if pod.Spec.ServiceAccountName != account.Name || binding.RoleRef.Name != role.Name ||
		!reflect.DeepEqual(binding.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: namespace}}) {
		t.Errorf("the pods are %s, bound is %+v", pod.Spec.ServiceAccountName, binding.Subjects)
	}
	want := []string{
		"/nodes:list", "/nodes:watch", "/pods:list", "/pods:watch",
		"layerlocality.io/imagemanifests:list", "layerlocality.io/imagemanifests:watch", "layerlocality.io/nodelayers:list", "layerlocality.io/nodelayers:watch",
	}
	if got := atoms(role.Rules); !slices.Equal(got, want) {
		t.Errorf("rights %q, want %q", got, want)
	}
}

// TestAnnotator checks who may patch nodes: one pod, which may do nothing else.
func TestAnnotator(t *testing.T) {
	objects := buildExtender(t, "annotator")
	pod := one[*appsv1.Deployment](t, objects).Spec.Template.Spec
	account, role, binding := one[*corev1.ServiceAccount](t, objects), one[*rbacv1.ClusterRole](t, objects), one[*rbacv1.ClusterRoleBinding](t, objects)
	if container := pod.Containers[0]; container.Image != extenderImage(t) || !slices.Equal(container.Args, []string{"annotate"}) {
		t.Errorf("%s %q", container.Image, container.Args)
	}
	if pod.ServiceAccountName != account.Name || binding.RoleRef.Name != role.Name ||
		!reflect.DeepEqual(binding.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: namespace}}) {
		t.Errorf("the pod is %s, bound is %+v", pod.ServiceAccountName, binding.Subjects)
	}
	if got, want := atoms(role.Rules), []string{"/nodes:list", "/nodes:patch", "metrics.k8s.io/nodes:list"}; !slices.Equal(got, want) {
		t.Errorf("rights %q, want %q", got, want)
	}
}

func extenderArgs(address string) []string {
	return []string{"--bind-address=" + address, "--port=5401", "--max-score=40"}
}

// asks checks that a configuration asks layer-extender as it is installed here, and that a
// missing answer keeps no pod waiting for long.
func asks(t *testing.T, loaded *kubescheduler.KubeSchedulerConfiguration, scheduler string) {
	t.Helper()
	if len(loaded.Extenders) != 1 || len(loaded.Profiles) != 1 {
		t.Fatalf("%d extenders, %d profiles", len(loaded.Extenders), len(loaded.Profiles))
	}
	e := loaded.Extenders[0]
	if e.URLPrefix != "http://127.0.0.1:5401/scheduler" || e.PrioritizeVerb != "priorities/layers" || e.FilterVerb != "" || e.Weight != 1 ||
		!e.NodeCacheCapable || !e.Ignorable || e.HTTPTimeout.Duration != 200*time.Millisecond {
		t.Errorf("extender %+v", e)
	}
	if profile := loaded.Profiles[0]; profile.SchedulerName != scheduler {
		t.Errorf("scheduler name %s", profile.SchedulerName)
	}
	for _, plugin := range loaded.Profiles[0].Plugins.MultiPoint.Enabled {
		if plugin.Name == "ImageLocality" || plugin.Name == "LayerLocality" {
			t.Errorf("%s is enabled: images count twice, or the stock scheduler does not have it", plugin.Name)
		}
	}
}

// TestSideCar checks the second scheduler with Kubernetes' own image.
func TestSideCar(t *testing.T) {
	objects := buildExtender(t, "side-car")
	pod := one[*appsv1.Deployment](t, objects).Spec.Template
	if len(pod.Spec.Containers) != 2 {
		t.Fatalf("%d containers", len(pod.Spec.Containers))
	}
	scheduler, ours := pod.Spec.Containers[0], pod.Spec.Containers[1]
	if want := "registry.k8s.io/kube-scheduler:" + versions(t)["KUBERNETES_VERSION"]; scheduler.Image != want || !slices.Equal(scheduler.Command, []string{"kube-scheduler"}) {
		t.Errorf("%s %q, want %s", scheduler.Image, scheduler.Command, want)
	}
	if ours.Name != extender || ours.Image != extenderImage(t) || !slices.Equal(ours.Args, extenderArgs("0.0.0.0")) {
		t.Errorf("%s %s %q", ours.Name, ours.Image, ours.Args)
	}
	probed(t, &ours, 5401)
	text := one[*corev1.ConfigMap](t, objects)
	if volume := pod.Spec.Volumes[0]; volume.ConfigMap == nil || volume.ConfigMap.Name != text.Name {
		t.Errorf("volume %+v, the ConfigMap is %s", volume, text.Name)
	}
	loaded := load(t, text.Data["config.yaml"])
	asks(t, loaded, "layer-locality")
	if loaded.LeaderElection.ResourceName != name {
		t.Errorf("leader election %+v", loaded.LeaderElection)
	}
	// The pod's identity may read what layer-extender reads.
	rights := atoms(named[*rbacv1.ClusterRole](t, objects, name).Rules)
	for _, right := range atoms(one[*rbacv1.ClusterRole](t, buildExtender(t, ".")).Rules) {
		if !slices.Contains(rights, right) {
			t.Errorf("the scheduler's identity lacks %s", right)
		}
	}
}

// probed checks that a container has probes on the pod's IP.
func probed(t *testing.T, container *corev1.Container, port int) {
	t.Helper()
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Host != "" || probe.HTTPGet.Port.IntValue() != port {
			t.Errorf("%s: probe %+v, want port %d", container.Name, probe, port)
		}
	}
}

// TestAgents checks the ancestor's six installations: each extender of the configuration is a container that has its agent.
func TestAgents(t *testing.T) {
	for folder, agents := range map[string][]string{
		"foo": {"foo"}, "congestion": {"congestion"}, "pigeon": {"pigeon-holing"}, "safe": {"safe-overload", "safe-balance"},
		"safe.congestion": {"safe-overload", "congestion"}, "safe.pigeon": {"safe-overload", "pigeon-holing"},
	} {
		objects := buildExtender(t, filepath.Join("agents", folder))
		containers := one[*appsv1.Deployment](t, objects).Spec.Template.Spec.Containers[1:]
		if want := strings.Count(folder, ".") + 1; len(containers) != want {
			t.Errorf("%s: %d containers, want %d", folder, len(containers), want)
		}
		runs := map[string]string{} // the agents by where they answer
		for i, container := range containers {
			port, values := 5401+i, map[string]string{}
			for _, variable := range container.Env {
				values[variable.Name] = variable.Value
			}
			if values["HTTP_PORT"] != fmt.Sprint(port) || container.Image != extenderImage(t) || len(container.Args) != 1 {
				t.Errorf("%s: %s %s %v %v, want port %d", folder, container.Name, container.Image, container.Args, values, port)
			}
			runs[fmt.Sprintf("http://127.0.0.1:%d/scheduler", port)] = strings.Join(container.Args, "")
			probed(t, &container, port)
		}
		loaded := load(t, one[*corev1.ConfigMap](t, objects).Data["config.yaml"])
		if loaded.Profiles[0].SchedulerName != "my-scheduler" || loaded.LeaderElection.ResourceName != name || len(loaded.Extenders) != len(agents) {
			t.Errorf("%s: %+v", folder, loaded)
			continue
		}
		for i, e := range loaded.Extenders {
			preempts := ""
			if e.FilterVerb != "" {
				preempts = "preempt/" + agents[i]
			}
			if e.PrioritizeVerb != "priorities/"+agents[i] || !strings.Contains(runs[e.URLPrefix], agents[i]) || e.PreemptVerb != preempts || !e.NodeCacheCapable {
				t.Errorf("%s: %+v, of %v", folder, e, runs)
			}
		}
	}
}

// TestDistributions decodes the files for each distribution as their readers do, as far as
// these are known here: kube-scheduler and kubeadm.
func TestDistributions(t *testing.T) {
	folder := filepath.Join(deployed, "extender", "distributions")
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(folder, path))
		must(t, err)
		return string(text)
	}
	for distribution, kubeconfig := range map[string]string{
		"kubeadm": "/etc/kubernetes/scheduler.conf",
		"k3s":     "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig",
		"rke2":    "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig",
	} {
		loaded := load(t, read(distribution+"/scheduler.yaml"))
		asks(t, loaded, "default-scheduler")
		if loaded.ClientConnection.Kubeconfig != kubeconfig || loaded.LeaderElection.ResourceName != "kube-scheduler" {
			t.Errorf("%s: %+v %+v", distribution, loaded.ClientConnection, loaded.LeaderElection)
		}
	}

	var talos struct {
		Cluster struct {
			Scheduler struct {
				Config map[string]any `json:"config"`
			} `json:"scheduler"`
		} `json:"cluster"`
	}
	must(t, yaml.UnmarshalStrict([]byte(read("talos/patch.yaml")), &talos))
	text, err := yaml.Marshal(talos.Cluster.Scheduler.Config)
	must(t, err)
	asks(t, load(t, string(text)), "default-scheduler")

	// The plus: of several files, the last one would replace the lists of the others.
	type flags struct {
		Args   []string `json:"kube-scheduler-arg+"`
		Mounts []string `json:"kube-scheduler-extra-mount+,omitempty"`
	}
	for path, want := range map[string]flags{
		"k3s/config.yaml": {Args: []string{"config=/etc/rancher/k3s/layer-extender.yaml"}},
		"rke2/config.yaml": {
			Args:   []string{"config=/etc/rancher/rke2/layer-extender/scheduler.yaml"},
			Mounts: []string{"/etc/rancher/rke2/layer-extender:/etc/rancher/rke2/layer-extender:ro"},
		},
	} {
		var got flags
		must(t, yaml.UnmarshalStrict([]byte(read(path)), &got))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", path, got)
		}
	}

	manifest, version, err := kubeadm.Scheduler([]byte(read("kubeadm/kubeadm.yaml")), "")
	must(t, err)
	if version != versions(t)["KUBERNETES_VERSION"] {
		t.Errorf("kubeadm.yaml is for %s", version)
	}
	pod := one[*corev1.Pod](t, decode(t, manifest))
	const file = "/etc/kubernetes/layer-extender/scheduler.yaml"
	container := pod.Spec.Containers[0]
	mounted := slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(file) && m.ReadOnly })
	if !pod.Spec.HostNetwork || !mounted || !slices.Contains(container.Command, "--config="+file) {
		t.Errorf("kubeadm makes %q, mounts %v: layer-extender is on the host's loopback", container.Command, container.VolumeMounts)
	}
}
