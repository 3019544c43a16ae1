//go:build e2e

package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/cluster/render"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	namespace = scenario.AgentNamespace
	// labelled are the objects and pods of all agents.
	labelled = "app.kubernetes.io/part-of=layer-locality,app.kubernetes.io/name=" + scenario.Agent
	// user is the name of all agents at the apiserver.
	user = "system:serviceaccount:" + namespace + ":" + scenario.Agent
	// onlyLayers is a profile in which nothing but layers decides.
	onlyLayers = "only-layer-locality"

	// renew is a sixtieth of the default, so that tests wait less.
	renew = 10 * time.Second
	// small is the size of layers that no NodeLayers lists, the default of --min-layer-bytes. The
	// program in the images of pods is smaller.
	small = 1 << 20
	// seen is the time in which a change must be in a NodeLayers: 6.5 s if there was a write
	// just before, and what a busy machine needs.
	seen = 30 * time.Second
)

// containerds are the nodes with containerd, FULL adds some; the others have CRI-O.
var containerds = map[string]containerd{"n4": {cluster.Containerd, "CONTAINERD_VERSION", v1alpha1.ReuseInChains}}

// containerd is one on a node: its version, the name of that in versions.env, and how it uses
// layers: in chains if it drops blobs.
type containerd struct {
	runtime cluster.ContainerRuntime
	pin     string
	reuse   v1alpha1.LayerReuse
}

var (
	c       *cluster.Cluster
	lab     *scenario.Lab
	objects client.WithWatch
	// installed is what was applied, as YAML documents.
	installed []byte
)

func TestMain(m *testing.M) {
	schedulers := scenario.Schedulers(scenario.Only(onlyLayers, "LayerLocality"))
	schedulers.Flavour = cluster.Patched
	if os.Getenv("FULL") != "" {
		containerds["n5"] = containerd{cluster.Containerd, "CONTAINERD_VERSION", v1alpha1.ReuseByDigest}
		containerds["n6"] = containerd{cluster.Containerd17, "CONTAINERD_1_7_VERSION", v1alpha1.ReuseInChains}
		containerds["n7"] = containerd{cluster.Containerd24, "CONTAINERD_2_4_VERSION", v1alpha1.ReuseByDigest}
	}
	runtimes := map[string]cluster.ContainerRuntime{}
	for node, has := range containerds {
		runtimes[node] = has.runtime
	}
	config := cluster.Config{
		Name: "agent", Nodes: 3 + len(containerds), Flavour: cluster.Stock, Scheduler: schedulers,
		AuditPolicy:       auditlog.RequestsOf(user),
		ContainerRuntimes: runtimes,
		PerNode: func(node string, runtime, _ *cluster.Component) {
			if containerds[node].reuse == v1alpha1.ReuseInChains {
				runtime.Config = render.DropUnpackedBlobs(runtime.Config)
			}
		},
		// It resolves images that no node has, and none because nodes have them.
		Addons: []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*", "--images-on-nodes=false"}})},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		if err := install(context.Background()); err != nil {
			panic(err)
		}
	}))
}

// install installs the agent as a user does, but for the times.
func install(ctx context.Context) error {
	var err error
	if lab, err = scenario.NewLab(c); err != nil {
		return err
	}
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	if objects, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	image, err := scenario.PushProgram(ctx, c, "../../..", scenario.Agent)
	if err != nil {
		return err
	}
	shipped, err := lab.Agents(ctx, "../../..", image, fmt.Sprintf("--renew=%s", renew), "--spread=1s")
	if err != nil {
		return err
	}
	for _, object := range shipped {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return err
		}
		installed = append(append(installed, text...), "---\n"...)
	}
	return c.Apply(ctx, namespace, installed)
}

var must = testkit.Must

// nodeLayers returns the NodeLayers of a node.
func nodeLayers(ctx context.Context, node string) (*v1alpha1.NodeLayers, error) {
	object := &v1alpha1.NodeLayers{}
	return object, objects.Get(ctx, client.ObjectKey{Name: node}, object)
}

// publishes waits until the NodeLayers of a node have the layers of an image that are not small, as
// the registry has them, under its tag, if it has one, and its digest.
func publishes(t *testing.T, node string, image *images.Pushed) {
	t.Helper()
	want, err := livetest.FromRegistry(t.Context(), image.Reference)
	must(t, err)
	listed := maps.Clone(want)
	maps.DeleteFunc(listed, func(_ string, size int64) bool { return size < small })
	livetest.Eventually(t, seen, fmt.Sprintf("%s has %s", node, image.Reference), func(ctx context.Context) error {
		object, err := nodeLayers(ctx, node)
		if err != nil {
			return err
		}
		least := int64(small)
		if object.Spec.Reuse == v1alpha1.ReuseInChains { // then all are
			listed, least = want, 0
		}
		if object.Spec.MinLayerBytes != least {
			return fmt.Errorf("layers are listed from %d bytes on", object.Spec.MinLayerBytes)
		}
		names := []string{image.Digest.String()}
		if image.Reference != image.ByDigest {
			names = append(names, image.Reference)
		}
		for _, name := range names {
			got, err := livetest.FromNodeLayers(&object.Spec, name)
			if err != nil {
				return err
			}
			if diff := livetest.Diff(got, listed); diff != "" {
				return fmt.Errorf("%s on %s:%s", name, node, diff)
			}
		}
		return nil
	})
}

// pull has nodes pull an image.
func pull(t *testing.T, image *images.Pushed, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		_, err := livetest.Pull(t.Context(), c.Node(node), image.Reference)
		must(t, err)
	}
}

// push pushes an image with layers above the program that all images of pods have.
func push(t *testing.T, name string, layers ...images.Layer) *images.Pushed {
	t.Helper()
	return pushImage(t, name, images.Image{Layers: layers})
}

func pushImage(t *testing.T, name string, spec images.Image) *images.Pushed {
	t.Helper()
	return livetest.Push(t, c.Registry().Address+"/"+name, spec)
}

// agents waits until so many pods of the agent are ready.
func agents(t *testing.T, n int) []corev1.Pod {
	t.Helper()
	var ready []corev1.Pod
	livetest.Eventually(t, 2*time.Minute, fmt.Sprintf("%d agents are ready", n), func(ctx context.Context) error {
		list, err := lab.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labelled})
		if err != nil {
			return err
		}
		ready = ready[:0]
		for _, pod := range list.Items {
			if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				ready = append(ready, pod)
			}
		}
		if len(ready) != n || len(list.Items) != n {
			return fmt.Errorf("%d pods, %d of them ready: %s", len(list.Items), len(ready), describe(list.Items))
		}
		return nil
	})
	return ready
}

// describe returns what containers that do not run wait for.
func describe(pods []corev1.Pod) (text string) {
	for _, pod := range pods {
		for _, status := range pod.Status.ContainerStatuses {
			text += fmt.Sprintf("\n  %s on %s: %+v, before: %+v", status.Name, pod.Spec.NodeName, status.State, status.LastTerminationState)
		}
	}
	return text
}

// keepAgents has only nodes with a label run the agent; without one, all do.
func keepAgents(t *testing.T, label string) {
	t.Helper()
	patch := `{"spec":{"template":{"spec":{"nodeSelector":{"test":null}}}}}`
	if label != "" {
		patch = fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{"test":%q}}}}}`, label)
	}
	ctx, sets := context.WithoutCancel(t.Context()), lab.Client.AppsV1().DaemonSets(namespace)
	list, err := sets.List(ctx, metav1.ListOptions{LabelSelector: labelled})
	must(t, err)
	for _, set := range list.Items {
		_, err = sets.Patch(ctx, set.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
}
