//go:build e2e

package deploy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

func TestDeploy(t *testing.T) {
	images := buildImages(t)
	t.Run("images", func(t *testing.T) { testImages(t, images) })
	t.Run("second-scheduler", func(t *testing.T) { testSecond(t, images["kube-scheduler"]) })
	t.Run("qosaware", func(t *testing.T) { testQosAware(t, images["kube-scheduler"]) })
	t.Run("by-namespace", func(t *testing.T) { testByNamespace(t, images["kube-scheduler"]) })
	t.Run("default-scheduler", func(t *testing.T) { testDefault(t, images["kube-scheduler"]) })
	t.Run("static-pod", func(t *testing.T) { testStaticPod(t, images["kube-scheduler"]) })
	t.Run("layer-extender", func(t *testing.T) { testExtender(t, images[extender]) })
	t.Run("layer-resolver", func(t *testing.T) { testResolver(t, resolverImage(t)) })
}

// testSecond goes through the life of the second scheduler; its parts depend on
// those before them.
func testSecond(t *testing.T, image string) {
	apply(t, variant(t, "second-scheduler", image), name)
	running, _ := elected(t, name, name)

	parts := []struct {
		name string
		test func(*testing.T)
	}{
		{"beside the stock scheduler", testBeside},
		{"unschedulable", testUnschedulable},
		{"preemption", testPreemption},
		{"volumes", testVolumes},
		{"devices", testDevices},
		{"readers", func(t *testing.T) { testReaders(t, running) }},
		{"leader killed", testLeaderKilled},
		{"nothing forbidden", testNothingForbidden},
	}
	for _, part := range parts {
		t.Run(part.name, part.test)
	}
}

// testImages runs every image with --version, as nobody, which works
// everywhere.
func testImages(t *testing.T, images map[string]string) {
	for component, image := range images {
		t.Run(component, func(t *testing.T) {
			create(t, component, func(pod *corev1.Pod) {
				pod.Spec.SchedulerName = ""
				pod.Spec.RestartPolicy = corev1.RestartPolicyNever
				pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
				pod.Spec.Containers[0] = corev1.Container{
					Name: "main", Image: image, Args: []string{"--version"},
					SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: ptr.To(true)},
				}
			})
			livetest.Eventually(t, 3*time.Minute, component+" --version", func(ctx context.Context) error {
				pod, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, component, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if pod.Status.Phase != corev1.PodSucceeded {
					return fmt.Errorf("%s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
				}
				return nil
			})
			out, err := client.CoreV1().Pods(metav1.NamespaceDefault).GetLogs(component, &corev1.PodLogOptions{}).DoRaw(t.Context())
			must(t, err)
			program := "Kubernetes"
			if slices.Contains([]string{resolver, "layer-agent", "layer-prefetcher"}, component) { // without Kubernetes' flags
				program = component + " version"
			}
			if !strings.HasPrefix(string(out), program+" v1.") || !strings.Contains(string(out), "+layerlocality.") {
				t.Errorf("version %q", out)
			}
		})
	}
}

// testDefault stops the cluster's scheduler, and ours does its work.
func testDefault(t *testing.T, image string) {
	begin := time.Now() // after the end of the pods of the other variant, and of their rights
	apply(t, variant(t, "default-scheduler", image), "kube-scheduler")
	_, holder := elected(t, name, "kube-scheduler")
	replacesStock(t, holder)
	if _, refused := requests(t, begin); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// testStaticPod runs the shipped static pod.
func testStaticPod(t *testing.T, image string) {
	manifest, config := read(t, deployed+"/scheduler/static-pod/kube-scheduler.yaml"), read(t, deployed+"/scheduler/static-pod/config.yaml")
	node := staticPod(t, string(manifest), image, map[string][]byte{"layer-locality/config.yaml": config})
	replacesStock(t, node.Name)
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	return text
}

// staticPod runs a static pod of kube-scheduler until the end of the test, with an image, on
// a node as on kubeadm's control plane node: with its kubeconfig, which only root may read,
// and further files below /etc/kubernetes. It waits until that kube-scheduler is elected.
func staticPod(t *testing.T, manifest, image string, files map[string][]byte) *cluster.Node {
	t.Helper()
	ctx, node := t.Context(), c.Nodes()[0]
	write := func(name string, text []byte) {
		cmd := node.Command("install", "-D", "-m", "0600", "/dev/stdin", name)
		cmd.Stdin = bytes.NewReader(text)
		must(t, node.Run(ctx, cmd))
	}
	// The node shares /etc with the machine.
	const etc = "/var/lib/kubelet/etc-kubernetes"
	write(etc+"/scheduler.conf", read(t, filepath.Join(c.Dir(), "pki", "kube-scheduler.kubeconfig")))
	for name, text := range files {
		write(filepath.Join(etc, name), text)
	}
	for old, replacement := range map[string]string{
		"      path: /etc/kubernetes/": "      path: " + etc + "/",
		"    image: ":                  "    image: " + image + " # ",
	} {
		if !strings.Contains(manifest, "\n"+old) {
			t.Fatalf("no %q in the manifest", old)
		}
		manifest = strings.ReplaceAll(manifest, "\n"+old, "\n"+replacement)
	}
	const mirror = "kube-scheduler-n1"
	t.Cleanup(func() {
		ctx := context.Background()
		if _, err := node.Exec(ctx, "rm", "-rf", staticPods+"/kube-scheduler.yaml", etc); err != nil {
			t.Error(err)
		}
		// Until it has ended, it would renew the lease, and be taken for the next one.
		err := poll.Until(ctx, 200*time.Millisecond, 3*time.Minute, func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(namespace).Get(ctx, mirror, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("pod %s is still there", mirror)
			}
			return crclient.IgnoreNotFound(err)
		})
		if err != nil {
			t.Error(err)
		}
		if err := client.CoordinationV1().Leases(namespace).Delete(ctx, "kube-scheduler", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	write(staticPods+"/kube-scheduler.yaml", []byte(manifest))
	must(t, c.WaitPodRunning(ctx, namespace, mirror))
	livetest.Eventually(t, 3*time.Minute, "elected", func(ctx context.Context) error {
		holder, err := leader(ctx, "kube-scheduler")
		if err == nil && holder != node.Name {
			err = fmt.Errorf("the lease is of %s", holder)
		}
		return err
	})
	return node
}

// replacesStock stops the cluster's scheduler, which takes no part in
// elections, and checks which scheduler then does its work.
func replacesStock(t *testing.T, holder string) {
	t.Helper()
	must(t, c.Scheduler().Stop(t.Context()))
	t.Cleanup(func() {
		if err := c.Scheduler().Start(context.Background()); err != nil {
			t.Error(err)
		}
	})
	create(t, "any", func(pod *corev1.Pod) { pod.Spec.SchedulerName = "" })
	if _, by := placed(t, "any", "default-scheduler"); by != "default-scheduler-"+holder {
		t.Errorf("placed by %s, %s leads", by, holder)
	}
	must(t, c.WaitPodRunning(t.Context(), metav1.NamespaceDefault, "any"))
}

// testBeside checks that each of the two schedulers places the pods that name
// it.
func testBeside(t *testing.T) {
	create(t, "ours", nil)
	create(t, "theirs", func(pod *corev1.Pod) { pod.Spec.SchedulerName = "" })
	placed(t, "ours", scheduler)
	placed(t, "theirs", "default-scheduler")
	must(t, c.WaitPodRunning(t.Context(), metav1.NamespaceDefault, "ours"))
}

// testUnschedulable checks that the pod and an event state why.
func testUnschedulable(t *testing.T) {
	create(t, "nowhere", func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"no": "node"} })
	livetest.Eventually(t, time.Minute, "the reason", func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "nowhere", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				events, err := client.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling,regarding.name=nowhere"})
				if err == nil && len(events.Items) == 0 {
					err = errors.New("no event")
				}
				return err
			}
		}
		return errors.New("no condition")
	})
}

// testPreemption checks that a pod with a higher priority replaces another.
func testPreemption(t *testing.T) {
	classes := client.SchedulingV1().PriorityClasses()
	_, err := classes.Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "matters"}, Value: 1000}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := classes.Delete(context.Background(), "matters", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	must(t, err)
	most := *resource.NewMilliQuantity(node.Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	large := func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n1"}
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: most}
	}
	create(t, "victim", large)
	placed(t, "victim", scheduler)
	create(t, "preemptor", func(pod *corev1.Pod) {
		large(pod)
		pod.Spec.PriorityClassName = "matters"
	})
	placed(t, "preemptor", scheduler)
	victim, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "victim", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) && (err != nil || victim.DeletionTimestamp == nil) {
		t.Errorf("the victim stays: %v", err)
	}
}

// testVolumes checks that a claim that waits for its first pod is bound to a
// volume on the pod's node.
func testVolumes(t *testing.T) {
	ctx := t.Context()
	classes, volumes, claims := client.StorageV1().StorageClasses(), client.CoreV1().PersistentVolumes(), client.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault)
	_, err := classes.Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = volumes.Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/none"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("local"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	create(t, "stateful", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
		}}}
	})
	if node, _ := placed(t, "stateful", scheduler); node != "n2" {
		t.Errorf("on %s, its volume is on n2", node)
	}
}

// testDevices checks that a claim is allocated on the node that has the device,
// and that a claim is made for a pod that requests the device as an extended
// resource.
func testDevices(t *testing.T) {
	ctx := t.Context()
	const driver = "device.example.com"
	_, err := client.ResourceV1().DeviceClasses().Create(ctx, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "device"},
		Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/device")},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "devices"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: ptr.To("n2"), Pool: resourcev1.ResourcePool{Name: "n2", ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "one"}, {Name: "two"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(ctx, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "device"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "device"},
		}}}},
	}, metav1.CreateOptions{})
	must(t, err)
	create(t, "claims", func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To("device")}}
	})
	create(t, "extended", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/device": resource.MustParse("1")}
	})
	for _, pod := range []string{"claims", "extended"} {
		if node, _ := placed(t, pod, scheduler); node != "n2" {
			t.Errorf("%s: on %s, the devices are on n2", pod, node)
		}
	}
}

// testReaders checks that the secure port only answers users with the role.
func testReaders(t *testing.T, running []corev1.Pod) {
	for _, endpoint := range []struct{ path, role, want string }{
		{"/metrics", name + "-metrics-reader", "\nscheduler_pod_scheduling_attempts"},
		{"/debug/layerlocality?pod=default/ours", name + "-debug-reader", `"profile"`},
	} {
		path, _, _ := strings.Cut(endpoint.path, "?")
		reader := "reads" + strings.ReplaceAll(path, "/", "-")
		t.Run(path, func(t *testing.T) {
			create(t, "ours", nil)
			placed(t, "ours", scheduler)
			token := account(t, reader)
			for _, pod := range running {
				for who, token := range map[string]string{"nobody": "", "an invalid token": "invalid", "an account without rights": token} {
					status, _, err := get(t.Context(), pod, token, endpoint.path)
					must(t, err)
					if status != "403" && status != "401" {
						t.Errorf("%s: status %s for %s", pod.Name, status, who)
					}
				}
			}
			bind(t, reader, endpoint.role)
			for _, pod := range running {
				// The refusal is remembered for 10 s.
				livetest.Eventually(t, 3*time.Minute, pod.Name+" lets the reader in", func(ctx context.Context) error {
					status, body, err := get(ctx, pod, token, endpoint.path)
					if err == nil && (status != "200" || !bytes.Contains(body, []byte(endpoint.want))) {
						err = fmt.Errorf("status %s: %.300s", status, body)
					}
					return err
				})
				for _, other := range []string{"/configz", "/debug/pprof/", "/debug/layerlocality/more"} {
					status, _, err := get(t.Context(), pod, token, other)
					must(t, err)
					if status != "403" {
						t.Errorf("%s: status %s for the reader of %s", other, status, path)
					}
				}
			}
		})
	}
}

// testLeaderKilled kills the leader, which does not come back; the other
// replica continues.
func testLeaderKilled(t *testing.T) {
	ctx := t.Context()
	running, err := replicas(ctx, name)
	must(t, err)
	holder, err := leader(ctx, name)
	must(t, err)
	i := slices.IndexFunc(running, func(pod corev1.Pod) bool { return pod.Name == holder })
	if i < 0 || len(running) != 2 {
		t.Fatalf("%s leads, %d are ready", holder, len(running))
	}
	killed, other := running[i], running[1-i]
	if killed.Spec.NodeName == other.Spec.NodeName {
		t.Fatalf("both replicas are on %s, despite the anti-affinity", other.Spec.NodeName)
	}
	node := c.Node(killed.Spec.NodeName)
	must(t, node.Kubelet().Stop(ctx)) // otherwise it starts it again
	stopped := true
	start := func() {
		if stopped {
			stopped = false
			if err := node.Kubelet().Start(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(start)
	_, id, _ := strings.Cut(killed.Status.ContainerStatuses[0].ContainerID, "://")
	pid, err := node.Exec(ctx, "crictl", "inspect", "--output", "go-template", "--template", "{{.info.pid}}", id)
	must(t, err)
	_, err = node.Exec(ctx, "kill", "-KILL", strings.TrimSpace(string(pid)))
	must(t, err)

	livetest.Eventually(t, 3*time.Minute, other.Name+" takes over", func(ctx context.Context) error {
		now, err := leader(ctx, name)
		if err == nil && now != other.Name {
			err = fmt.Errorf("%s leads", now)
		}
		return err
	})
	create(t, "after", func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: other.Spec.NodeName}
	})
	placed(t, "after", scheduler)
	must(t, c.WaitPodRunning(ctx, metav1.NamespaceDefault, "after"))

	start()
	livetest.Eventually(t, 2*time.Minute, killed.Name+" is back", func(ctx context.Context) error {
		running, err := replicas(ctx, name)
		if err != nil {
			return err
		}
		for _, pod := range running {
			if pod.Name == killed.Name && pod.Status.ContainerStatuses[0].RestartCount == 1 {
				return nil
			}
		}
		return fmt.Errorf("%d replicas are ready", len(running))
	})
	if now, err := leader(ctx, name); err != nil || now != other.Name {
		t.Errorf("%s leads instead of %s, %v", now, other.Name, err)
	}
}

// testNothingForbidden checks that the shipped rights were enough for
// everything above, and that probes restarted nothing that was not killed.
func testNothingForbidden(t *testing.T) {
	asked, refused := requests(t, time.Time{})
	if len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	// The parts before caused these requests; without them this proves little.
	for _, want := range []string{
		"/pods/binding:create", "/pods/status:patch", "/pods:delete", "/persistentvolumes:update",
		"events.k8s.io/events:create", "coordination.k8s.io/leases:create", "coordination.k8s.io/leases:update",
		"resource.k8s.io/resourceclaims:update", "resource.k8s.io/resourceclaims:create", "resource.k8s.io/resourceclaims/status:update",
		"authentication.k8s.io/tokenreviews:create", "authorization.k8s.io/subjectaccessreviews:create",
		"/configmaps:watch", "/events:create",
	} {
		if !asked[want] {
			t.Errorf("never asked for: %s", want)
		}
	}
	t.Logf("asked for: %q", slices.Sorted(maps.Keys(asked)))

	running, err := replicas(t.Context(), name)
	must(t, err)
	restarts := int32(0)
	for _, pod := range running {
		restarts += pod.Status.ContainerStatuses[0].RestartCount
		for _, previous := range []bool{false, true} {
			if previous && pod.Status.ContainerStatuses[0].RestartCount == 0 {
				continue
			}
			log, err := client.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Previous: previous}).DoRaw(t.Context())
			must(t, err)
			if len(log) == 0 {
				t.Errorf("%s has no log", pod.Name)
			}
			for lines := bufio.NewScanner(bytes.NewReader(log)); lines.Scan(); {
				if text := strings.ToLower(lines.Text()); strings.Contains(text, "forbidden") || strings.Contains(text, "unauthorized") || strings.Contains(text, "panic") {
					t.Errorf("%s: %s", pod.Name, lines.Text())
				}
			}
		}
	}
	if restarts != 1 {
		t.Errorf("%d restarts, one was made here", restarts)
	}
}
