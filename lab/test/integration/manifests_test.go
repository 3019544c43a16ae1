//go:build integration && imagelayers

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	apiservertesting "k8s.io/kubernetes/cmd/kube-apiserver/app/testing"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/kubernetes/test/integration/framework"
	testutils "k8s.io/kubernetes/test/integration/util"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	layerlocalityv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// waiting returns a profile in which only LayerLocality scores. It is enabled at
// all extension points, as in the shipped profiles, and holds pods for a time.
func waiting(profile string, wait time.Duration) configv1.KubeSchedulerProfile {
	p := only(profile, layerlocality.Name)
	p.Plugins.MultiPoint.Enabled = []configv1.Plugin{{Name: layerlocality.Name, Weight: ptr.To[int32](1)}}
	p.PluginConfig = []configv1.PluginConfig{{Name: layerlocality.Name, Args: runtime.RawExtension{
		Object: &layerlocalityv1.LayerLocalityArgs{WaitForManifest: &metav1.Duration{Duration: wait}},
	}}}
	return p
}

// The CRDs that users apply.
const (
	imageManifestsCRD = "deploy/resolver/crd/layerlocality.io_imagemanifests.yaml"
	nodeLayersCRD     = "deploy/agent/crd/layerlocality.io_nodelayers.yaml"
)

// readCRD reads a CRD. The test may run in a copy of the source below the repository.
func readCRD(t *testing.T, file string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; folder = filepath.Dir(folder) {
		text, err := os.ReadFile(filepath.Join(folder, file))
		if os.IsNotExist(err) && folder != filepath.Dir(folder) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		return &crd
	}
}

// cluster is an apiserver and a scheduler with ImageManifests and NodeLayers as sources.
type cluster struct {
	*testutils.TestContext
	t      *testing.T
	source *imagemanifests.Source
	layers *nodelayers.Source
	crds   *apiextensions.Clientset
}

// startCluster runs a whole kube-apiserver, because the one in start does not
// support custom resources, and a scheduler with kube-scheduler's encoding of
// requests.
func startCluster(t *testing.T, profiles ...configv1.KubeSchedulerProfile) *cluster {
	t.Helper()
	reportLayers(t)
	certificates(t)
	server := apiservertesting.StartTestServerOrDie(t, nil,
		[]string{"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority"}, framework.SharedEtcd())
	ctx, cancel := context.WithCancel(context.Background()) // the test's context ends before its cleanup
	c := &cluster{t: t, TestContext: &testutils.TestContext{
		Ctx: ctx, KubeConfig: server.ClientConfig, CloseFn: func() { cancel(); server.TearDownFn() },
	}}
	c.KubeConfig.ContentType = runtime.ContentTypeProtobuf
	c.KubeConfig.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.ClientSet = clientset.NewForConfigOrDie(c.KubeConfig)
	c.crds = apiextensions.NewForConfigOrDie(c.KubeConfig)
	c.NS = framework.CreateNamespaceOrDie(c.ClientSet, "manifests", t)
	t.Cleanup(func() { testutils.CleanupTest(t, c.TestContext) })
	run(t, c.TestContext, layerlocality.NewFactory(layerlocality.WithManifestSource(func(_ context.Context, handle fwk.Handle) (locality.ManifestSource, error) {
		source, err := imagemanifests.NewSource(handle.KubeConfig())
		c.source = source
		return source, err
	}), layerlocality.WithNodeSource(func(_ context.Context, handle fwk.Handle) (locality.NodeSource, error) {
		source, err := nodelayers.NewSource(handle.KubeConfig())
		c.layers = source
		return source, err
	})), profiles...)
	return c
}

// certificates gives upstream's test server a folder for its certificates. The
// server looks for one beside its source, whose place a build with -trimpath does
// not have, unless variables state that Bazel built it.
func certificates(t *testing.T) {
	t.Helper()
	if _, file, _, _ := goruntime.Caller(0); filepath.IsAbs(file) {
		return // not such a build
	}
	folder := t.TempDir()
	t.Setenv("TEST_SRCDIR", folder)
	t.Setenv("TEST_WORKSPACE", "test")
	if err := os.MkdirAll(filepath.Join(folder, "test/k8s.io/kubernetes/cmd/kube-apiserver/app/testing/testdata"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for something without a deadline, except for that of the test.
func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.Ctx, 50*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// awaits waits until the source can, or cannot, get answers.
func (c *cluster) awaits(answers bool) {
	c.t.Helper()
	c.eventually(fmt.Sprint("source gets answers: ", answers), func() bool {
		return c.source.Awaits([]imageref.Canonical{"quay.io/nobody/asks:1"}) == answers
	})
}

// elect makes it look as if a layer-resolver were elected. Without one, nothing is awaited
// before the first ImageManifest.
func (c *cluster) elect() {
	c.t.Helper()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "layer-resolver"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("resolver"), LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
	c.eventually("the Lease", func() bool { // its namespace may not be there yet
		_, err := c.ClientSet.CoordinationV1().Leases(lease.Namespace).Create(c.Ctx, lease, metav1.CreateOptions{})
		return err == nil
	})
}

// put creates an ImageManifest as the resolver does, and waits until the
// scheduler has it.
func (c *cluster) put(m *v1alpha1.ImageManifest) {
	c.t.Helper()
	m.APIVersion, m.Kind = v1alpha1.GroupVersion.String(), "ImageManifest"
	c.post(v1alpha1.ImageManifestsResource.Resource, m)
	c.eventually("ImageManifest "+m.Name+" in the scheduler", func() bool {
		return !c.source.Awaits([]imageref.Canonical{imageref.Canonical(m.Status.References[0].Name)})
	})
}

// post creates an object of one of our resources.
func (c *cluster) post(resource string, object any) {
	c.t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		c.t.Fatal(err)
	}
	err = c.ClientSet.CoreV1().RESTClient().Post().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, resource).
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(c.Ctx).Error()
	if err != nil {
		c.t.Fatal(err)
	}
}

// resolved returns the manifest of an image on a base.
func resolved(image string) *v1alpha1.ImageManifest {
	confirmed := metav1.Now()
	return &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(digest(image))},
		Spec: v1alpha1.ImageManifestSpec{
			Digest: digest(image), Platform: "linux/amd64", Size: 501 << 20,
			Layers: []v1alpha1.ImageLayer{{Digest: digest("base"), Size: 500 << 20}, {Digest: digest("top of " + image), Size: 1 << 20}},
		},
		Status: v1alpha1.ImageManifestStatus{References: []v1alpha1.ImageReference{
			{Name: "docker.io/library/" + image, Digest: digest("index of " + image), LastConfirmed: &confirmed},
		}},
	}
}

// refused returns what the resolver writes about an image that it cannot resolve.
func refused(image string) *v1alpha1.ImageManifest {
	name := "docker.io/library/" + image
	return &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.UnresolvedName(name)},
		Status: v1alpha1.ImageManifestStatus{
			References: []v1alpha1.ImageReference{{Name: name}},
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionResolved, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotFound, LastTransitionTime: metav1.Now(),
			}},
		},
	}
}

func (c *cluster) create(profile, image string) *v1.Pod {
	c.t.Helper()
	pod := st.MakePod().Namespace(c.NS.Name).SchedulerName(profile).Obj()
	pod.GenerateName = "pod-"
	pod.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
	created, err := c.ClientSet.CoreV1().Pods(c.NS.Name).Create(c.Ctx, pod, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return created
}

// node returns where a pod is placed.
func (c *cluster) node(pod *v1.Pod) (name string) {
	c.t.Helper()
	c.eventually("pod of "+pod.Spec.Containers[0].Image+" is placed", func() bool {
		placed, err := c.ClientSet.CoreV1().Pods(pod.Namespace).Get(c.Ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		name = placed.Spec.NodeName
		return name != ""
	})
	return name
}

// held waits until the scheduler keeps a pod out of its queue.
func (c *cluster) held(pod *v1.Pod) {
	c.t.Helper()
	c.eventually("pod of "+pod.Spec.Containers[0].Image+" is held", func() bool {
		info, ok := c.Scheduler.SchedulingQueue.GetPod(pod.Name, pod.Namespace)
		return ok && info.Gated()
	})
}

// ended counts the pods that were held, by how their wait ended.
func ended(t *testing.T) map[string]float64 {
	t.Helper()
	counts, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "scheduler_layerlocality_held_pods_total", nil, "ended")
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// TestImageManifests checks that a pod with an image that no node has goes to the
// node that has most of its layers, if there is an ImageManifest. A scheduler that
// may wait for one waits as long as it is allowed, and only if one can come. The
// resource is created and deleted while the scheduler runs.
func TestImageManifests(t *testing.T) {
	c := startCluster(t, only("layers", layerlocality.Name), waiting("patient", time.Minute), waiting("hasty", 3*time.Second))
	for i := range 11 {
		n := st.MakeNode().Name(fmt.Sprintf("empty-%d", i)).
			Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "320", v1.ResourceMemory: "500Gi", v1.ResourcePods: "110"}).Obj()
		n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		if i == 0 {
			n.Name = "has-base"
			n.Status.Images = []v1.ContainerImage{held("docker.io/library/other:1", "base", "other")}
		}
		if _, err := c.ClientSet.CoreV1().Nodes().Create(c.Ctx, n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := testutils.WaitForNodesInCache(c.Ctx, c.Scheduler, 11); err != nil {
		t.Fatal(err)
	}
	counts := ended(t)
	expect := func(changes map[string]float64) {
		t.Helper()
		c.eventually(fmt.Sprintf("held pods are counted: %v more", changes), func() bool {
			now := ended(t)
			for how, n := range now {
				if n-counts[how] > changes[how] {
					t.Fatalf("held pods %v, before %v: more than %v", now, counts, changes)
				}
				if n-counts[how] < changes[how] {
					return false
				}
			}
			counts = now
			return true
		})
	}
	onBase := func(profile, name string) (n int) {
		t.Helper()
		for i := range 10 {
			if c.node(c.create(profile, fmt.Sprintf("%s-%d:1", name, i))) == "has-base" {
				n++
			}
		}
		return n
	}

	// Without the resource nothing is known, and no pod waits. Every pod has its
	// own image, or it would follow the one before.
	if n := onBase("layers", "unknown"); n == 10 {
		t.Error("without ImageManifests all pods went to the node with the base: the test shows nothing")
	}
	c.node(c.create("patient", "unknown:1"))
	expect(nil)

	crd, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Create(c.Ctx, readCRD(t, imageManifestsCRD), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.node(c.create("patient", "absent:1")) // no resolver was ever there: it is not held
	expect(nil)
	c.elect()
	c.awaits(true)
	for i := range 10 {
		c.put(resolved(fmt.Sprintf("new-%d:1", i)))
		c.put(resolved(fmt.Sprintf("newer-%d:1", i)))
	}
	if n := onBase("layers", "new"); n != 10 {
		t.Errorf("with ImageManifests %d of 10 pods went to the node with the base", n)
	}
	if n := onBase("patient", "newer"); n != 10 {
		t.Errorf("with ImageManifests %d of 10 pods of the profile that waits went to the node with the base", n)
	}
	expect(nil)

	// Held until the resolver has written the layers, or that they cannot be known.
	late, hopeless := c.create("patient", "late:1"), c.create("patient", "hopeless:1")
	c.held(late)
	c.held(hopeless)
	c.put(resolved("late:1"))
	if node := c.node(late); node != "has-base" {
		t.Errorf("the pod that waited went to %s", node)
	}
	c.put(refused("hopeless:1"))
	c.node(hopeless)
	expect(map[string]float64{"known": 2})
	c.node(c.create("patient", "hopeless:1"))
	expect(nil)

	// A pod is never held longer than allowed.
	c.node(c.create("hasty", "nobody:1"))
	expect(map[string]float64{"timeout": 1})

	// A pod is deleted while it is held.
	gone := c.create("patient", "gone:1")
	c.held(gone)
	if err := c.ClientSet.CoreV1().Pods(gone.Namespace).Delete(c.Ctx, gone.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	expect(map[string]float64{"gone": 1})

	// Without the resource again: waiting pods are released when their time is over
	// at the latest, and no other pod is held.
	if err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(c.Ctx, crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaits(false)
	c.node(c.create("patient", "another:1"))
	expect(nil)
}
