//go:build integration && imagelayers

package integration

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"
	configtesting "k8s.io/kubernetes/pkg/scheduler/apis/config/testing"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/imagelocality"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/kubernetes/test/integration/framework"
	testutils "k8s.io/kubernetes/test/integration/util"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

func TestMain(m *testing.M) { framework.EtcdMain(m.Run) }

// only returns a profile in which a single plugin scores.
func only(profile, plugin string) configv1.KubeSchedulerProfile {
	all := []configv1.Plugin{{Name: "*"}}
	p := configv1.KubeSchedulerProfile{SchedulerName: ptr.To(profile), Plugins: &configv1.Plugins{
		PreScore: configv1.PluginSet{Disabled: all},
		Score:    configv1.PluginSet{Disabled: all, Enabled: []configv1.Plugin{{Name: plugin, Weight: ptr.To[int32](1)}}},
	}}
	if plugin == layerlocality.Name {
		p.Plugins.PreScore.Enabled = []configv1.Plugin{{Name: plugin}}
		p.Plugins.Reserve.Enabled = []configv1.Plugin{{Name: plugin}}
	}
	return p
}

func digest(s string) string { return fmt.Sprintf("sha256:%064x", s) }

func held(image string, layers ...string) v1.ContainerImage {
	i := v1.ContainerImage{Names: []string{image}, SizeBytes: 3000 << 20}
	var l []index.Layer
	for _, name := range layers {
		l = append(l, index.Layer{Digest: digest(name), Size: 500 << 20})
	}
	nodestatus.SetLayers(&i, l)
	return i
}

// start runs a scheduler with the profiles, and an apiserver for it.
func start(t *testing.T, profiles ...configv1.KubeSchedulerProfile) *testutils.TestContext {
	t.Helper()
	reportLayers(t)
	testCtx := testutils.InitTestAPIServer(t, "layers", nil)
	run(t, testCtx, layerlocality.NewFactory(), profiles...)
	return testCtx
}

// reportLayers makes apiservers that start during the test keep layers.
func reportLayers(t *testing.T) {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.NodeStatusImageLayers, true)
}

// run runs a scheduler with the plugin of a factory.
func run(t *testing.T, testCtx *testutils.TestContext, factory *layerlocality.Factory, profiles ...configv1.KubeSchedulerProfile) {
	t.Helper()
	cfg := configtesting.V1ToInternalWithDefaults(t, configv1.KubeSchedulerConfiguration{Profiles: profiles})
	testutils.InitTestSchedulerWithOptions(t, testCtx, 0,
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{layerlocality.Name: factory.New}))
	testutils.SyncSchedulerInformerFactory(testCtx)
	go testCtx.Scheduler.Run(testCtx.Ctx)
}

// A pod goes where a layer of its image is, although no node on which it fits
// has the image. A scheduler without the plugin does not see the difference.
func TestLayerLocalityScoring(t *testing.T) {
	testCtx := start(t, only("layers", layerlocality.Name), only("control", imagelocality.Name))
	create := func(name string, unschedulable bool, images ...v1.ContainerImage) {
		t.Helper()
		n := st.MakeNode().Name(name).Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "320", v1.ResourceMemory: "500Gi", v1.ResourcePods: "110"}).
			Unschedulable(unschedulable).Obj()
		n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		n.Status.Images = images
		created, err := testCtx.ClientSet.CoreV1().Nodes().Create(testCtx.Ctx, n, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(images) > 0 && len(nodestatus.Images(created)[0].Layers) == 0 {
			t.Fatal("the apiserver dropped the layers")
		}
	}
	create("has-image", true, held("docker.io/library/web:1", "base", "web"))
	create("has-base", false, held("docker.io/library/other:1", "base", "other"))
	for i := range 10 {
		create(fmt.Sprintf("empty-%d", i), false)
	}

	place := func(profile string) (nodes map[string]int) {
		t.Helper()
		nodes = map[string]int{}
		for i := range 10 {
			pod := st.MakePod().Namespace(testCtx.NS.Name).Name(fmt.Sprintf("%s-%d", profile, i)).SchedulerName(profile).Obj()
			pod.Spec.Containers = []v1.Container{{Name: "web", Image: "web:1"}}
			created, err := testCtx.ClientSet.CoreV1().Pods(testCtx.NS.Name).Create(testCtx.Ctx, pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := testutils.WaitForPodToSchedule(testCtx.Ctx, testCtx.ClientSet, created); err != nil {
				t.Fatalf("pod %s: %v", pod.Name, err)
			}
			placed, err := testCtx.ClientSet.CoreV1().Pods(testCtx.NS.Name).Get(testCtx.Ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			nodes[placed.Spec.NodeName]++
		}
		return nodes
	}
	if err := testutils.WaitForNodesInCache(testCtx.Ctx, testCtx.Scheduler, 12); err != nil {
		t.Fatal(err)
	}
	if got := place("layers"); got["has-base"] != 10 {
		t.Errorf("with the plugin the pods went to %v, want all 10 on has-base", got)
	}
	got := place("control")
	if got["has-base"] == 10 {
		t.Errorf("without the plugin too all pods went to %v: the test shows nothing", got)
	}
	for node := range got {
		if !strings.HasPrefix(node, "empty") && node != "has-base" {
			t.Errorf("a pod went to %s", node)
		}
	}
}

// A burst of pods with a new image does not pull it on every node: with the
// recommended profile, 50 pods that come at once use few of 20 nodes, and no
// node gets more pods than may wait. With the default profile they use all
// nodes.
func TestBurst(t *testing.T) {
	const nodes, pods, maxWaiting = 20, 50, 10
	recommended := configv1.KubeSchedulerProfile{SchedulerName: ptr.To("layers"), Plugins: &configv1.Plugins{
		MultiPoint: configv1.PluginSet{
			Enabled:  []configv1.Plugin{{Name: layerlocality.Name, Weight: ptr.To[int32](4)}},
			Disabled: []configv1.Plugin{{Name: imagelocality.Name}},
		},
	}}
	testCtx := start(t, recommended, configv1.KubeSchedulerProfile{SchedulerName: ptr.To("control")})
	for i := range nodes {
		n := st.MakeNode().Name(fmt.Sprintf("node-%d", i)).
			Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "16", v1.ResourceMemory: "64Gi", v1.ResourcePods: "110"}).Obj()
		n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		if _, err := testCtx.ClientSet.CoreV1().Nodes().Create(testCtx.Ctx, n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := testutils.WaitForNodesInCache(testCtx.Ctx, testCtx.Scheduler, nodes); err != nil {
		t.Fatal(err)
	}
	burst := func(profile string) map[string]int {
		t.Helper()
		var created []*v1.Pod
		for i := range pods {
			pod := st.MakePod().Namespace(testCtx.NS.Name).Name(fmt.Sprintf("%s-%d", profile, i)).SchedulerName(profile).Obj()
			pod.Spec.Containers = []v1.Container{{Name: "new", Image: "new:" + profile}}
			p, err := testCtx.ClientSet.CoreV1().Pods(testCtx.NS.Name).Create(testCtx.Ctx, pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			created = append(created, p)
		}
		used := map[string]int{}
		for _, p := range created {
			if err := testutils.WaitForPodToSchedule(testCtx.Ctx, testCtx.ClientSet, p); err != nil {
				t.Fatalf("pod %s: %v", p.Name, err)
			}
			placed, err := testCtx.ClientSet.CoreV1().Pods(testCtx.NS.Name).Get(testCtx.Ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			used[placed.Spec.NodeName]++
		}
		for _, p := range created {
			if err := testCtx.ClientSet.CoreV1().Pods(testCtx.NS.Name).Delete(testCtx.Ctx, p.Name, *metav1.NewDeleteOptions(0)); err != nil {
				t.Fatal(err)
			}
		}
		return used
	}
	control := burst("control")
	if len(control) != nodes {
		t.Errorf("without the plugin %d pods used %d nodes: %v", pods, len(control), control)
	}
	ours := burst("layers")
	t.Logf("%d pods use %d of %d nodes: %v", pods, len(ours), nodes, ours)
	if len(ours) > nodes/2 {
		t.Errorf("%d pods of a new image used %d of %d nodes: %v", pods, len(ours), nodes, ours)
	}
	for node, n := range ours {
		if n > maxWaiting {
			t.Errorf("%d pods on %s, though %d may wait", n, node, maxWaiting)
		}
	}
}
