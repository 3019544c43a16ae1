//go:build integration

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/prefetch"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

var must = testkit.Must

// world is an apiserver with nodes, whose kubelets and scheduler the test plays, and the shipped command with the rights of its
// service account.
type world struct {
	*testing.T
	api       client.WithWatch
	account   string // kubeconfig file
	manifests []*v1alpha1.ImageManifest

	mu sync.Mutex
	// held are the images whose pulls do not end, refused those that fail.
	held, refused map[string]bool
}

const user = "system:serviceaccount:kube-system:layer-prefetcher"

func newWorld(t *testing.T, audit string) *world {
	plane, err := controlplane.StartWith("../..", controlplane.Settings{AuditLog: audit, NoFsync: true})
	must(t, err)
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	api, err := client.NewWithWatch(plane.Config, client.Options{Scheme: scheme})
	must(t, err)
	w := &world{T: t, api: api, held: map[string]bool{}, refused: map[string]bool{}}
	for _, resource := range shipped(t).Resources() {
		object := &unstructured.Unstructured{}
		must(t, utilyaml.Unmarshal([]byte(resource.MustYaml()), &object.Object))
		strict := client.WithFieldValidation(api, metav1.FieldValidationStrict)
		must(t, strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership))
	}
	admin := filepath.Join(t.TempDir(), "admin")
	must(t, os.WriteFile(admin, plane.Kubeconfig(), 0o600))
	kubeconfig, err := clientcmd.LoadFromFile(admin)
	must(t, err)
	for _, info := range kubeconfig.AuthInfos {
		info.Impersonate = user
		info.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
	}
	w.account = filepath.Join(t.TempDir(), "account")
	must(t, clientcmd.WriteToFile(*kubeconfig, w.account))
	return w
}

// policy tries as the command's account what the shipped policy refuses: pods that do more than pull, and the deletion
// of others' pods.
func (w *world) policy(t *testing.T, image string) {
	w.namespace("policy", nil)
	w.hold(image, true)
	defer w.hold(image, false)
	w.create("policy", "one", v1alpha1.ImagePrefetchSpec{Images: []string{image}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "n4"}}})
	w.eventually("a pod", func() error {
		if n := len(w.pullsOf("policy")); n != 1 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	config, err := clientcmd.BuildConfigFromFlags("", w.account)
	must(t, err)
	account, err := client.New(config, client.Options{Scheme: w.api.Scheme()})
	must(t, err)
	try := func(change func(*corev1.Pod)) error {
		real := w.pullsOf("policy")[0]
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "policy", GenerateName: "try-", OwnerReferences: real.OwnerReferences}, Spec: real.Spec}
		pod.Spec.NodeName, pod.Spec.Priority, pod.Spec.ServiceAccountName = "", nil, "some"
		change(pod)
		return account.Create(t.Context(), pod, client.DryRunAll)
	}
	token := func(audience string) corev1.Volume {
		return corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: audience}},
		}}}}
	}
	for what, change := range map[string]func(*corev1.Pod){
		"as it makes them": func(*corev1.Pod) {},
		"as a webhook of a cloud changes them": func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, token("sts.amazonaws.com"))
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/eks.amazonaws.com"})
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "AWS_ROLE_ARN", Value: "arn"}}
		},
	} {
		if err := try(change); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Port: intstr.FromInt32(80)}}}
	for message, changes := range map[string][]func(*corev1.Pod){
		"only pods that an ImagePrefetch owns": {
			func(p *corev1.Pod) { p.OwnerReferences = nil },
			func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ImageManifest" },
			func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		},
		"alone, as it is": {
			func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example.com/evil:1" },
			func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sh"} },
			func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"-c"} },
			func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = probe },
			func(p *corev1.Pod) {
				p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "AWS_ROLE_ARN", Value: "arn"}, {Name: "LD_PRELOAD", Value: "/images/image-0/evil.so"}}
			},
			func(p *corev1.Pod) {
				p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{Prefix: "LD_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}}
			},
			func(p *corev1.Pod) {
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
			},
			func(p *corev1.Pod) {
				p.Spec.InitContainers = slices.Clone(p.Spec.Containers)
				p.Spec.InitContainers[0].Name = "first"
			},
			func(p *corev1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
				p.Spec.Containers[1].Name, p.Spec.Containers[1].Image = "second", "evil"
			},
		},
		"no privileges, no namespaces of the host and no token": {
			func(p *corev1.Pod) { p.Spec.HostNetwork = true },
			func(p *corev1.Pod) { p.Spec.HostPID = true },
			func(p *corev1.Pod) { p.Spec.HostIPC = true },
			func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil },
			func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(true) },
			func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = nil },
			func(p *corev1.Pod) {
				p.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation, p.Spec.Containers[0].SecurityContext.Privileged = nil, ptr.To(true)
			},
		},
		"image volumes, mounted below /images": {
			func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
			},
			func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a"}}})
			},
			func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, token("sts.amazonaws.com"))
				p.Spec.Volumes[1].Projected.Sources[0] = corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "program"}}}
			},
			func(p *corev1.Pod) {
				p.Spec.Containers[0].VolumeMounts[0].MountPath = "/pause"
			},
			func(p *corev1.Pod) {
				p.Spec.Containers[0].VolumeMounts[0].MountPath = "/images/image-0/../../pause"
			},
		},
		"name no node and have a priority of at most 0": {
			func(p *corev1.Pod) { p.Spec.NodeName = "n4" },
			func(p *corev1.Pod) { p.Spec.PriorityClassName, p.Spec.PreemptionPolicy = "system-node-critical", nil },
		},
	} {
		for i, change := range changes {
			if err := try(change); err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%s, %d: %v", message, i, err)
			}
		}
	}
	w.pod("policy", "of-others", "n4", image)
	if err := account.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "policy", Name: "of-others"}}); err == nil || !strings.Contains(err.Error(), "only pods that an ImagePrefetch owns") {
		t.Errorf("others' pods are deleted: %v", err)
	}
}

func shipped(t *testing.T) resmap.ResMap {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../deploy/prefetcher")
	must(t, err)
	return built
}

// asCommand has this program be the command.
const asCommand = "LAYER_PREFETCHER_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// run starts the command as a process; the result kills it.
func (w *world) run(args ...string) (kill func()) {
	w.Helper()
	self, err := os.Executable()
	must(w.T, err)
	command := exec.Command(self, append(arguments(w.T), append(args, "--kubeconfig", w.account, "--leader-election-namespace", "kube-system", "--metrics-bind-address", "0", "--health-probe-bind-address", "0")...)...)
	command.Env = append(os.Environ(), asCommand+"=1")
	output, err := os.CreateTemp(w.TempDir(), "output")
	must(w.T, err)
	command.Stdout, command.Stderr = output, output
	must(w.T, command.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = command.Process.Kill()
			_ = command.Wait()
			if text, err := os.ReadFile(output.Name()); err == nil && w.Failed() {
				w.Logf("%s", text)
			}
		})
	}
	w.Cleanup(kill)
	return kill
}

// arguments returns those of the shipped container.
func arguments(t *testing.T) []string {
	t.Helper()
	for _, resource := range shipped(t).Resources() {
		if resource.GetKind() == "Deployment" {
			var deployment appsv1.Deployment
			must(t, yaml.Unmarshal([]byte(resource.MustYaml()), &deployment))
			return deployment.Spec.Template.Spec.Containers[0].Args
		}
	}
	t.Fatal("no Deployment")
	return nil
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	w.within(time.Minute, what, check)
}

func (w *world) within(limit time.Duration, what string, check func() error) {
	w.Helper()
	if err := poll.Until(w.Context(), 50*time.Millisecond, limit, func(context.Context) error { return check() }); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

func digest(s string) string { return fmt.Sprintf("sha256:%064x", s) }

// image makes the ImageManifest of a reference, with layers of so many bytes.
func (w *world) image(reference string, layers map[string]int64) *v1alpha1.ImageManifest {
	w.Helper()
	content := digest(reference)
	m := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(content)}, Spec: v1alpha1.ImageManifestSpec{Digest: content}}
	for name, size := range layers {
		m.Spec.Layers = append(m.Spec.Layers, v1alpha1.ImageLayer{Digest: digest(name), Size: size})
		m.Spec.Size += size
	}
	m.Status.References = []v1alpha1.ImageReference{{Name: reference, Digest: content, LastConfirmed: ptr.To(metav1.Now())}}
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved, LastTransitionTime: metav1.Now()}}
	must(w.T, w.api.Create(w.Context(), m))
	w.manifests = append(w.manifests, m)
	return m
}

// node makes a ready node that holds images.
func (w *world) node(name string, images ...string) {
	w.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	must(w.T, w.api.Create(w.Context(), node))
	node.Spec.Taints = nil // an admission plugin taints new ones
	must(w.T, w.api.Update(w.Context(), node))
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.5", ContainerRuntimeVersion: "cri-o://1.36.3", OperatingSystem: "linux", Architecture: "amd64"}
	must(w.T, w.api.Status().Update(w.Context(), node))
	for _, image := range images {
		w.report(name, image)
	}
}

// report has a node list an image.
func (w *world) report(name, reference string) {
	w.Helper()
	w.eventually("node "+name+" lists "+reference, func() error {
		var node corev1.Node
		if err := w.api.Get(w.Context(), client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		repository, _, _ := strings.Cut(reference[strings.LastIndex(reference, "/")+1:], ":")
		repository, _, _ = strings.Cut(reference[:strings.LastIndex(reference, "/")+1]+repository, "@")
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{repository + "@" + digest(reference), reference}, SizeBytes: 1000})
		return w.api.Status().Update(w.Context(), &node)
	})
}

// kubelets places the pods that pull, and pulls, until the test ends.
func (w *world) kubelets() {
	go func() {
		for w.Context().Err() == nil {
			for _, pod := range w.pulls() {
				w.play(&pod)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

func (w *world) play(pod *corev1.Pod) {
	ctx := w.Context()
	if pod.DeletionTimestamp != nil {
		_ = w.api.Delete(ctx, pod, client.GracePeriodSeconds(0)) // the next time
		return
	}
	if pod.Spec.NodeName == "" {
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: pod.Annotations[v1alpha1.PrefetchNodeAnnotation]}}
		_ = w.api.SubResource("binding").Create(ctx, pod, binding) // the next time
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	image := pod.Spec.Volumes[0].Image.Reference
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	switch {
	case w.held[image] || len(pod.Status.ContainerStatuses) > 0:
		return
	case w.refused[image]:
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "manifest unknown"}}
	default:
		pod.Status.Phase = corev1.PodRunning
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "none", Image: "pause", State: state}}
	_ = w.api.Status().Update(ctx, pod) // the next time
}

// hold has pulls of an image not end, or end again.
func (w *world) hold(image string, held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[image] = held
}

// pulls returns the pods that pull.
func (w *world) pulls() []corev1.Pod {
	var pods corev1.PodList
	if err := w.api.List(w.Context(), &pods, client.HasLabels{v1alpha1.PrefetchPodLabel}); err != nil {
		return nil
	}
	return pods.Items
}

// pod makes a pod on a node.
func (w *world) pod(namespace, name, node, image string) {
	w.Helper()
	must(w.T, w.api.Create(w.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": strings.Split(name, "-")[0]}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: image}}},
	}))
}

// deployment makes one with pods on nodes, which have another image if old is not empty.
func (w *world) deployment(namespace, name, image, old string, policy corev1.PullPolicy, nodes ...string) {
	w.Helper()
	labels := map[string]string{"app": name}
	for i, node := range nodes {
		w.pod(namespace, name+"-"+strconv.Itoa(i), node, old)
	}
	must(w.T, w.api.Create(w.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(len(nodes))), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image, ImagePullPolicy: policy}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}},
		}},
	}))
}

func (w *world) namespace(name string, labels map[string]string) {
	w.Helper()
	must(w.T, w.api.Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}))
}

// prefetches returns the objects of a namespace.
func (w *world) prefetches(namespace string) []v1alpha1.ImagePrefetch {
	w.Helper()
	var list v1alpha1.ImagePrefetchList
	must(w.T, w.api.List(w.Context(), &list, client.InNamespace(namespace)))
	return list.Items
}

// state returns why an object has ended or not.
func state(object *v1alpha1.ImagePrefetch) string {
	if c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionComplete); c != nil {
		return c.Reason
	}
	return ""
}

// becomes waits until an object of a namespace is as wanted.
func (w *world) becomes(namespace, name, what string, is func(*v1alpha1.ImagePrefetch) bool) *v1alpha1.ImagePrefetch {
	w.Helper()
	object := &v1alpha1.ImagePrefetch{}
	w.eventually(namespace+"/"+name+" "+what, func() error {
		if err := w.api.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
			return err
		}
		if !is(object) {
			text, _ := json.Marshal(object.Status)
			return errors.New(string(text))
		}
		return nil
	})
	return object
}

func (w *world) create(namespace, name string, spec v1alpha1.ImagePrefetchSpec) {
	w.Helper()
	must(w.T, w.api.Create(w.Context(), &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}))
}

// arriving returns the bytes of an image that are there and that are on their way to a node, as a scheduler counts them.
func (w *world) arriving(node, image string) (present, arriving int64) {
	w.Helper()
	var args config.LayerLocalityArgs
	var defaults configv1.LayerLocalityArgs
	configv1.SetDefaults_LayerLocalityArgs(&defaults)
	must(w.T, configv1.Convert_v1_LayerLocalityArgs_To_config_LayerLocalityArgs(&defaults, &args, nil))
	source := imagemanifests.NewStatic()
	for _, m := range w.manifests {
		must(w.T, source.Add(m.DeepCopy()))
	}
	var nodes corev1.NodeList
	var pods corev1.PodList
	must(w.T, w.api.List(w.Context(), &nodes))
	must(w.T, w.api.List(w.Context(), &pods))
	moment := locality.Moment{Args: &args, Images: []locality.ManifestSource{source}}
	for i := range nodes.Items {
		moment.Nodes = append(moment.Nodes, &nodes.Items[i])
	}
	for i := range pods.Items {
		moment.Pods = append(moment.Pods, &pods.Items[i])
	}
	snapshot := locality.NewSnapshot(w.Context(), "default-scheduler", moment)
	var m index.Measurement
	snapshot.Measure(snapshot.Wanted(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}}), &m)
	bytes, _ := m.Node(node)
	return bytes.Present, bytes.Arriving
}

// TestShipped: with the rights of deploy/prefetcher, and no others, the command brings images to nodes.
func TestShipped(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.log")
	w := newWorld(t, audit)
	const registry = "registry.example.com/"
	base := registry + "base:1"
	w.image(base, map[string]int64{"base": 60_000_000})
	for _, name := range []string{"app:1", "app:2", "object:1", "gone:1", "quota:1"} {
		w.image(registry+name, map[string]int64{"base": 60_000_000, name: 5_000_000})
	}
	for i := 1; i <= 4; i++ {
		images := []string{base}
		switch i {
		case 1:
			images = append(images, registry+"object:1")
		case 4:
			images = nil
		}
		w.node("n"+strconv.Itoa(i), images...)
	}
	w.kubelets()
	kill := w.run("--sources=template,tag,node")
	everywhere := &metav1.LabelSelector{}

	t.Run("object", func(t *testing.T) {
		image := registry + "object:1"
		w.namespace("object", nil)
		w.hold(image, true)
		w.create("object", "ahead", v1alpha1.ImagePrefetchSpec{Images: []string{image}, NodeSelector: everywhere, MaxNodes: ptr.To(intstr.FromString("75%"))})
		w.becomes("object", "ahead", "pulls", func(o *v1alpha1.ImagePrefetch) bool { return o.Status.NodesReady == 1 && len(w.pulls()) == 2 })
		w.eventually("the scheduler counts the bytes", func() error {
			if present, arriving := w.arriving("n2", image); present != 60_000_000 || arriving != 5_000_000 {
				return fmt.Errorf("%d bytes are there and %d on their way", present, arriving)
			}
			return nil
		})
		// Another process goes on with the same pods.
		before := w.pulls()
		kill()
		w.run("--sources=template,tag,node")
		w.hold(image, false)
		object := w.becomes("object", "ahead", "ends", func(o *v1alpha1.ImagePrefetch) bool { return o.Status.CompletionTime != nil })
		if s := object.Status; state(object) != v1alpha1.ReasonComplete || s.NodesWanted != 3 || s.NodesReady != 3 || s.NodesFailed != 0 || s.BytesMoved != 10_000_000 {
			t.Errorf("status %+v", s)
		}
		// The pods stay until the nodes have reported, and are the first ones.
		after := w.pulls()
		if len(after) != 2 || !slices.ContainsFunc(after, func(p corev1.Pod) bool { return p.UID == before[0].UID }) {
			t.Errorf("%d pods", len(after))
		}
		for _, pod := range after {
			if owner := metav1.GetControllerOf(&pod); owner == nil || owner.UID != object.UID || *pod.Spec.Priority >= -10 || len(pod.Spec.Tolerations) > 2 {
				t.Errorf("pod %+v", pod)
			}
			w.report(pod.Spec.NodeName, image)
		}
		w.eventually("the pods end", func() error { return none(w.pulls()) })
		// What a pod uses is saved.
		w.pod("object", "user", "n2", image)
		w.becomes("object", "ahead", "is used", func(o *v1alpha1.ImagePrefetch) bool { return o.Status.BytesSaved == 5_000_000 })
	})

	t.Run("policy", func(t *testing.T) { w.policy(t, registry+"object:1") })

	t.Run("rollout", func(t *testing.T) {
		w.namespace("rollout", nil)
		w.deployment("rollout", "web", registry+"app:2", registry+"app:1", "", "n1", "n2", "n3")
		var object v1alpha1.ImagePrefetch
		w.eventually("two of three nodes pull", func() error {
			all := w.prefetches("rollout")
			if len(all) != 1 || all[0].Status.CompletionTime == nil {
				return fmt.Errorf("%+v", all)
			}
			object = all[0]
			return nil
		})
		if s := object.Status; s.NodesReady != 2 || s.BytesMoved != 10_000_000 || object.OwnerReferences[0].Name != "web" {
			t.Errorf("%+v", object)
		}
		for _, pod := range w.pulls() {
			if pod.Namespace == "rollout" && (pod.Spec.ImagePullSecrets[0].Name != "pull" || pod.Spec.NodeName == "n4") {
				t.Errorf("pod %+v", pod.Spec)
			}
		}
		w.eventually("an event on the workload", func() error {
			var events eventsv1.EventList
			must(t, w.api.List(t.Context(), &events, client.InNamespace("rollout")))
			if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
				return e.Regarding.Kind == "Deployment" && e.Regarding.Name == "web" && e.Reason == "Prefetched" && strings.Contains(e.Note, "5000000 bytes")
			}) {
				return fmt.Errorf("%d others", len(events.Items))
			}
			return nil
		})
	})

	t.Run("moved tag", func(t *testing.T) {
		w.namespace("tag", nil)
		latest := registry + "latest:1"
		old := w.image(latest, map[string]int64{"base": 60_000_000, "old": 1_000_000})
		w.report("n1", latest)
		w.report("n2", latest)
		w.deployment("tag", "always", latest, latest, corev1.PullAlways, "n1", "n2")
		w.deployment("tag", "once", latest, latest, corev1.PullIfNotPresent, "n3")
		// As layer-resolver moves it. Once the command has not seen where it pointed before, it has moved again by then.
		var done *v1alpha1.ImagePrefetch
		for try := 1; done == nil && try <= 5; try++ {
			moved := w.image(fmt.Sprintf("%smoved:%d", registry, try), map[string]int64{"base": 60_000_000, fmt.Sprint("new", try): 2_000_000})
			moved.Status.References = []v1alpha1.ImageReference{{Name: latest, Digest: moved.Spec.Digest, LastConfirmed: ptr.To(metav1.NewTime(time.Now().Add(time.Duration(try) * 2 * time.Second)))}}
			must(t, w.api.Update(t.Context(), moved))
			old.Status.References = nil
			must(t, w.api.Update(t.Context(), old))
			old = moved
			_ = poll.Until(t.Context(), 100*time.Millisecond, 10*time.Second, func(context.Context) error {
				for _, o := range w.prefetches("tag") {
					if o.Spec.Workload.Name != "always" {
						return poll.Permanent(fmt.Errorf("%+v", o))
					}
					if o.Status.CompletionTime != nil && o.Spec.Images[0] == registry+"latest@"+moved.Spec.Digest {
						done = &o
						return nil
					}
				}
				return errors.New("not yet")
			})
		}
		if done == nil || done.Status.NodesReady != 1 || done.Status.BytesMoved != 2_000_000 {
			t.Errorf("%+v of %+v", done, w.prefetches("tag"))
		}
	})

	t.Run("new node", func(t *testing.T) {
		w.namespace("pool", nil)
		w.image(registry+"pool:1", map[string]int64{"base": 60_000_000, "pool": 7_000_000})
		for _, node := range []string{"n1", "n2"} {
			w.report(node, registry+"pool:1")
		}
		w.deployment("pool", "everywhere", registry+"pool:1", registry+"pool:1", "", "n1", "n2")
		w.deployment("pool", "seldom", registry+"app:1", registry+"app:1", "", "n1")
		w.node("n5")
		w.eventually("the new node has what half of the others run", func() error { // the base may come with another workload's image
			var node corev1.Node
			must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "n5"}, &node))
			node.Status.Conditions[0].LastHeartbeatTime = metav1.Now() // as kubelets do
			_ = w.api.Status().Update(t.Context(), &node)
			var got []string
			for _, o := range w.prefetches("pool") {
				if o.Labels[v1alpha1.PrefetchSourceLabel] == prefetch.SourceNode && o.Status.CompletionTime != nil && o.Status.BytesMoved >= 7_000_000 && o.Status.Nodes[0].Name == "n5" {
					got = append(got, o.Spec.Workload.Name)
				}
			}
			if !slices.Equal(got, []string{"everywhere"}) {
				return fmt.Errorf("%v of %+v", got, w.prefetches("pool"))
			}
			return nil
		})
	})

	t.Run("no such image", func(t *testing.T) {
		image := registry + "gone:1"
		w.mu.Lock()
		w.refused[image] = true
		w.mu.Unlock()
		w.namespace("gone", nil)
		w.create("gone", "ahead", v1alpha1.ImagePrefetchSpec{Images: []string{image}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "n2"}}, DeadlineSeconds: 8})
		w.becomes("gone", "ahead", "has failed once", func(o *v1alpha1.ImagePrefetch) bool {
			return len(o.Status.Nodes) == 1 && o.Status.Nodes[0].Reason == "ErrImagePull" && o.Status.Nodes[0].Attempts == 1 && state(o) == v1alpha1.ReasonWaiting
		})
		object := w.becomes("gone", "ahead", "ends", func(o *v1alpha1.ImagePrefetch) bool { return o.Status.CompletionTime != nil })
		if state(object) != v1alpha1.ReasonDeadline || object.Status.Nodes[0].Attempts != 1 {
			t.Errorf("status %+v", object.Status)
		}
		w.eventually("no pod is left", func() error { return none(w.pullsOf("gone")) })
	})

	t.Run("a quota that forbids", func(t *testing.T) {
		w.namespace("quota", nil)
		must(t, w.api.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "quota", Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}))
		var quota corev1.ResourceQuota
		must(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: "quota", Name: "none"}, &quota))
		quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
		must(t, w.api.Status().Update(t.Context(), &quota)) // its controller does not run
		w.create("quota", "ahead", v1alpha1.ImagePrefetchSpec{Images: []string{registry + "quota:1"}, NodeSelector: everywhere})
		w.becomes("quota", "ahead", "has a reason", func(o *v1alpha1.ImagePrefetch) bool {
			return len(o.Status.Nodes) > 0 && o.Status.Nodes[0].Reason == "Forbidden" && strings.Contains(o.Status.Nodes[0].Message, "exceeded quota: none") && o.Status.Nodes[0].Attempts == 1
		})
	})

	t.Run("a full disk", func(t *testing.T) {
		w.namespace("disk", nil)
		image := registry + "disk:1"
		w.image(image, map[string]int64{"disk": 10_000_000})
		w.node("n6")
		disk := func(capacity string, pressure corev1.ConditionStatus) {
			t.Helper()
			w.eventually("the disk of n6 has "+capacity, func() error {
				var node corev1.Node
				if err := w.api.Get(t.Context(), client.ObjectKey{Name: "n6"}, &node); err != nil {
					return err
				}
				node.Status.Capacity = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(capacity)}
				node.Status.Conditions = append(node.Status.Conditions[:1], corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: pressure, Reason: "Test"})
				return w.api.Status().Update(t.Context(), &node)
			})
		}
		waits := func(message string) {
			t.Helper()
			w.becomes("disk", "ahead", "waits: "+message, func(o *v1alpha1.ImagePrefetch) bool {
				c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionComplete)
				return c != nil && c.Reason == v1alpha1.ReasonWaiting && strings.Contains(c.Message, message) && len(w.pullsOf("disk")) == 0
			})
		}
		disk("40M", corev1.ConditionFalse) // of which 0.6 may be taken: less than three times 10 MB
		w.create("disk", "ahead", v1alpha1.ImagePrefetchSpec{Images: []string{image}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "n6"}}})
		waits("n6: images would take more than --max-disk-share of its storage")
		disk("100M", corev1.ConditionTrue)
		waits("no node suits")
		disk("100M", corev1.ConditionFalse)
		w.becomes("disk", "ahead", "ends", func(o *v1alpha1.ImagePrefetch) bool { return state(o) == v1alpha1.ReasonComplete })
	})

	t.Run("turned off", func(t *testing.T) {
		w.namespace("off", map[string]string{prefetch.NamespaceLabel: "disabled"})
		w.deployment("off", "web", registry+"app:2", registry+"app:1", "", "n4")
		w.create("off", "ahead", v1alpha1.ImagePrefetchSpec{Images: []string{registry + "app:2"}, NodeSelector: everywhere})
		w.becomes("off", "ahead", "ends", func(o *v1alpha1.ImagePrefetch) bool { return state(o) == v1alpha1.ReasonTurnedOff })
		if all := w.prefetches("off"); len(all) != 1 || len(w.pullsOf("off")) != 0 {
			t.Errorf("%d objects, %d pods", len(all), len(w.pullsOf("off")))
		}
	})

	t.Run("schema", func(t *testing.T) {
		w.namespace("schema", nil)
		for why, spec := range map[string]v1alpha1.ImagePrefetchSpec{
			"name images, a workload, or both": {NodeSelector: everywhere},
			"nodeSelector has to select nodes": {Images: []string{"a"}},
			"at least 1, or 1% to 100%":        {Images: []string{"a"}, NodeSelector: everywhere, MaxNodes: ptr.To(intstr.FromString("0%"))},
			"spec.workload.apiVersion":         {Workload: &v1alpha1.WorkloadReference{APIVersion: "v1", Kind: "Node", Name: "n1"}},
			"spec.workload.kind":               {Workload: &v1alpha1.WorkloadReference{Kind: "deployments", Name: "n1"}},
		} {
			err := w.api.Create(t.Context(), &v1alpha1.ImagePrefetch{ObjectMeta: metav1.ObjectMeta{Namespace: "schema", Name: "bad"}, Spec: spec})
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%v, want %s", err, why)
			}
		}
		w.create("schema", "bad", v1alpha1.ImagePrefetchSpec{Images: []string{"Not An Image"}, NodeSelector: everywhere, TTLSecondsAfterFinished: ptr.To[int64](2)})
		w.becomes("schema", "bad", "ends", func(o *v1alpha1.ImagePrefetch) bool { return state(o) == v1alpha1.ReasonInvalid })
		w.eventually("it is deleted after its time", func() error {
			if n := len(w.prefetches("schema")); n > 0 {
				return fmt.Errorf("%d objects", n)
			}
			return nil
		})
	})
	if t.Failed() {
		return
	}

	log, err := auditlog.Read(audit)
	must(t, err)
	var rules []rbacv1.PolicyRule
	for _, resource := range shipped(t).Resources() {
		if kind := resource.GetKind(); (kind == "Role" || kind == "ClusterRole") && !slices.Contains([]string{"layer-prefetcher-edit", "layer-prefetcher-view", "layer-prefetcher-metrics-reader"}, resource.GetName()) {
			var role rbacv1.ClusterRole
			must(t, yaml.Unmarshal([]byte(resource.MustYaml()), &role))
			rules = append(rules, role.Rules...)
		}
	}
	use := log.Use(user, rules)
	for _, request := range use.Forbidden {
		if !strings.Contains(request, "/namespaces/quota/pods") && !strings.Contains(request, "/namespaces/policy/pods") {
			t.Errorf("forbidden: %s", request)
		}
	}
	for _, request := range use.Unnamed {
		if !strings.HasPrefix(request, "get /api") && !strings.Contains(request, "/namespaces/quota/pods") && !strings.Contains(request, "/namespaces/policy/pods") {
			t.Errorf("no role names %s", request)
		}
	}
	reasons := map[string]string{
		"list":                           "this apiserver sends what there is as the beginning of a watch (WatchList); others are asked for lists",
		"imageprefetches/finalizers":     "an admission plugin checks it that does not run here (OwnerReferencesPermissionEnforcement)",
		"tokenreviews":                   "nobody asks for /metrics here",
		"subjectaccessreviews":           "nobody asks for /metrics here",
		"patch events.k8s.io/events":     "an event that is sent again is counted, a minute later",
		"get coordination.k8s.io/leases": "ImageManifests show that a layer-resolver is there",
	}
	for _, right := range use.Unused {
		if reasons[right.Verbs[0]] == "" && reasons[right.Resources[0]] == "" && reasons[right.Verbs[0]+" "+strings.Join(right.APIGroups, "")+"/"+strings.Join(right.Resources, "")] == "" {
			t.Errorf("a role names what was not asked for: %v", right)
		}
	}
}

// follower has what pods that pull ever were, as the apiserver has it.
type follower struct {
	mu sync.Mutex
	// pull are the pods whose nodes pull, made counts those of each object.
	pull map[types.UID]corev1.Pod
	made map[types.UID]int
	// most are the largest numbers of pods that pulled at a time: in all, on a node, and of a namespace.
	most [3]int
}

// follow follows the pods that pull until the test ends.
func (w *world) follow() *follower {
	w.Helper()
	f := &follower{pull: map[types.UID]corev1.Pod{}, made: map[types.UID]int{}}
	pods, err := w.api.Watch(w.Context(), &corev1.PodList{}, client.HasLabels{v1alpha1.PrefetchPodLabel})
	must(w.T, err)
	w.Cleanup(pods.Stop)
	go func() {
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				f.see(event.Type, pod)
			}
		}
	}()
	return f
}

func (f *follower) see(change watch.EventType, pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if change == watch.Added {
		f.made[metav1.GetControllerOf(pod).UID]++
		f.pull[pod.UID] = *pod
	}
	if change == watch.Deleted || len(pod.Status.ContainerStatuses) > 0 {
		delete(f.pull, pod.UID)
	}
	ofNode, ofNamespace := map[string]int{}, map[string]int{}
	for _, p := range f.pull {
		node := p.Annotations[v1alpha1.PrefetchNodeAnnotation]
		ofNode[node]++
		ofNamespace[p.Namespace]++
		f.most = [3]int{max(f.most[0], len(f.pull)), max(f.most[1], ofNode[node]), max(f.most[2], ofNamespace[p.Namespace])}
	}
}

// TestManyRollouts: 500 workloads are rolled at once, and the leader is killed in the middle of that. No more pods pull at a time than flags
// allow, each workload has its turn, once, and no pod is left.
func TestManyRollouts(t *testing.T) {
	w := newWorld(t, "")
	const (
		registry                     = "registry.example.com/"
		workloads, namespaces, nodes = 500, 4, 10
		most, mostOfNamespace        = 6, 2 // which some namespace then has
		long                         = 12 * time.Minute
	)
	w.image(registry+"app:1", map[string]int64{"base": 60_000_000})
	node := func(i int) string { return "n" + strconv.Itoa(i%nodes) }
	for i := range nodes {
		w.node(node(i), registry+"app:1")
	}
	for i := range workloads {
		image := fmt.Sprintf("%sapp-%d:2", registry, i)
		w.image(image, map[string]int64{"base": 60_000_000, image: 1_000_000})
		namespace := "ns" + strconv.Itoa(i%namespaces)
		if i < namespaces {
			w.namespace(namespace, nil)
		}
		w.deployment(namespace, "app"+strconv.Itoa(i), image, registry+"app:1", "", node(i), node(i+1))
	}
	seen := w.follow()
	args := []string{"--sources=template", "--max-pods=" + strconv.Itoa(most), "--max-pods-per-namespace=" + strconv.Itoa(mostOfNamespace)}
	kill := w.run(args...)
	w.eventually("the first leads", func() error {
		return w.api.Get(t.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "layer-prefetcher"}, &coordinationv1.Lease{})
	})
	w.run(args...)
	w.within(long, "as many pull as may", func() error {
		switch n := len(w.pulls()); {
		case n > most:
			return poll.Permanent(fmt.Errorf("%d", n))
		case n < most:
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	w.kubelets()
	reported, killed := map[types.UID]bool{}, 0
	w.within(long, "all end", func() error {
		for _, pod := range w.pulls() {
			if len(pod.Status.ContainerStatuses) > 0 && !reported[pod.UID] {
				w.report(pod.Spec.NodeName, pod.Spec.Volumes[0].Image.Reference)
				reported[pod.UID] = true
			}
		}
		var all v1alpha1.ImagePrefetchList
		if err := w.api.List(t.Context(), &all); err != nil {
			return err
		}
		ended := 0
		for i := range all.Items {
			o := &all.Items[i]
			if o.Status.CompletionTime == nil {
				continue
			}
			if state(o) != v1alpha1.ReasonComplete || o.Status.BytesMoved != 1_000_000 || o.Status.NodesReady != 1 {
				return poll.Permanent(fmt.Errorf("%s/%s: %+v", o.Namespace, o.Name, o.Status))
			}
			ended++
		}
		if killed == 0 && ended >= workloads/3 {
			kill()
			killed = ended
		}
		if ended < workloads {
			return fmt.Errorf("%d of %d", ended, workloads)
		}
		return none(w.pulls())
	})
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if want := [3]int{most, 1, mostOfNamespace}; seen.most != want || killed == 0 || killed == workloads {
		t.Errorf("%v pods pulled at a time, in all, on a node and of a namespace, want %v; the leader was killed after %d", seen.most, want, killed)
	}
	twice := slices.ContainsFunc(slices.Collect(maps.Values(seen.made)), func(pods int) bool { return pods != 1 })
	if len(seen.made) != workloads || twice {
		t.Errorf("%d objects had pods, want %d with one each: %v", len(seen.made), workloads, seen.made)
	}
}

// rollouts is a kind as Argo Rollouts has it.
const rollouts = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: rollouts.argoproj.io}, spec: {
  group: argoproj.io, scope: Namespaced, names: {kind: Rollout, listKind: RolloutList, plural: rollouts, singular: rollout}, versions: [
    {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`

// rollout is one whose pods have the first version, and that is to have the second.
const rollout = `{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {namespace: argo, name: web}, spec: {replicas: 3, selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: "registry.example.com/web:2"}]}}}}`

// TestWorkloads: a kind that --workloads names is a workload as a Deployment is, once layer-prefetcher may read it.
func TestWorkloads(t *testing.T) {
	w := newWorld(t, "")
	apply := func(text string) error {
		object := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte(text), &object.Object))
		return w.api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"))
	}
	must(t, apply(rollouts))
	for _, text := range []string{
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: rollouts}, rules: [{apiGroups: [argoproj.io], resources: [rollouts], verbs: [list, watch]}]}`,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: rollouts}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: rollouts}, subjects: [{kind: ServiceAccount, namespace: kube-system, name: layer-prefetcher}]}`,
	} {
		must(t, apply(text))
	}
	const old, image = "registry.example.com/web:1", "registry.example.com/web:2"
	w.image(old, map[string]int64{"base": 60_000_000, "1": 1_000_000})
	w.image(image, map[string]int64{"base": 60_000_000, "2": 2_000_000})
	w.namespace("argo", nil)
	for i := range 3 {
		node := "n" + strconv.Itoa(i)
		w.node(node, old)
		w.pod("argo", "web-"+strconv.Itoa(i), node, old)
	}
	w.eventually("there are Rollouts", func() error { return apply(rollout) })
	w.kubelets()
	w.run("--sources=template", "--workloads=argoproj.io/v1alpha1/Rollout")
	w.eventually("two of three nodes pull", func() error {
		all := w.prefetches("argo")
		if len(all) != 1 || state(&all[0]) != v1alpha1.ReasonComplete {
			return fmt.Errorf("%+v", all)
		}
		if o := &all[0]; o.Status.NodesReady != 2 || o.Status.BytesMoved != 4_000_000 || o.OwnerReferences[0].Kind != "Rollout" || o.Spec.Workload.APIVersion != "argoproj.io/v1alpha1" {
			return poll.Permanent(fmt.Errorf("%+v", o))
		}
		return nil
	})
}

func (w *world) pullsOf(namespace string) []corev1.Pod {
	return slices.DeleteFunc(w.pulls(), func(p corev1.Pod) bool { return p.Namespace != namespace })
}

func none(pods []corev1.Pod) error {
	if len(pods) > 0 {
		return fmt.Errorf("%d pods: %+v", len(pods), pods[0].Status)
	}
	return nil
}
