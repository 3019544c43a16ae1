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

// only is a profile in which nothing but one plugin scores.
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

// A pod goes where a layer of its image is, though no node that it fits has the
// image. A scheduler without the plugin does not see the difference.
func TestLayerLocalityScoring(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.NodeStatusImageLayers, true)
	cfg := configtesting.V1ToInternalWithDefaults(t, configv1.KubeSchedulerConfiguration{
		Profiles: []configv1.KubeSchedulerProfile{
			only("layers", layerlocality.Name),
			only("control", imagelocality.Name),
		},
	})
	testCtx := testutils.InitTestSchedulerWithOptions(t, testutils.InitTestAPIServer(t, "layers", nil), 0,
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{layerlocality.Name: layerlocality.NewFactory().New}))
	testutils.SyncSchedulerInformerFactory(testCtx)
	go testCtx.Scheduler.Run(testCtx.Ctx)

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

	run := func(profile string) (nodes map[string]int) {
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
	if got := run("layers"); got["has-base"] != 10 {
		t.Errorf("with the plugin the pods went to %v, want all 10 on has-base", got)
	}
	got := run("control")
	if got["has-base"] == 10 {
		t.Errorf("without the plugin too all pods went to %v: the test shows nothing", got)
	}
	for node := range got {
		if !strings.HasPrefix(node, "empty") && node != "has-base" {
			t.Errorf("a pod went to %s", node)
		}
	}
}
