//go:build e2e

package live

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/kubectllayers/inventory"
	"github.com/layer-locality/layer-locality/kubectllayers/plan"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// root is the folder of the repository.
const root = "../../../.."

// The nodes, by who reports what they hold. No pod is placed on the last one.
const (
	byKubelet = "n1"
	byAgent   = "n2"
	joined    = "n3"
	byNames   = "n4"
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

func TestMain(m *testing.M) {
	stock := cluster.Component{Flavour: cluster.Stock}
	config := cluster.Config{
		Name: "kubectl", Nodes: 4, Flavour: cluster.Patched, Scheduler: stock,
		PerNode: func(node string, runtime, kubelet *cluster.Component) {
			if node != byKubelet {
				runtime.Flavour, kubelet.Flavour = cluster.Stock, cluster.Stock
			}
		},
		// It explains the images of workloads, and not those that only nodes name.
		Addons: []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*", "--images-on-nodes=false"}})},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		if err := install(context.Background()); err != nil {
			panic(err)
		}
	}))
}

// install installs what a user does: the agent, here on one node only, the second scheduler, and
// the rights of kubectl layers.
func install(ctx context.Context) (err error) {
	if lab, err = scenario.NewLab(c); err != nil {
		return err
	}
	cordon := []byte(`{"spec":{"unschedulable":true}}`)
	if _, err := lab.Client.CoreV1().Nodes().Patch(ctx, byNames, types.MergePatchType, cordon, metav1.PatchOptions{}); err != nil {
		return err
	}
	agent, err := scenario.PushProgram(ctx, c, root, scenario.Agent)
	if err != nil {
		return err
	}
	agents, err := lab.Agents(ctx, root, agent, "--spread=1s") // a test waits less
	if err != nil {
		return err
	}
	for _, object := range agents {
		if object.GetKind() == "DaemonSet" {
			if err := unstructured.SetNestedField(object.Object, byAgent, "spec", "template", "spec", "nodeSelector", "kubernetes.io/hostname"); err != nil {
				return err
			}
		}
	}
	scheduler, err := scenario.PushProgram(ctx, c, root, "kube-scheduler")
	if err != nil {
		return err
	}
	second, err := scenario.SchedulerObjects(root, scheduler)
	if err != nil {
		return err
	}
	rights, err := kustomize.Build(filepath.Join(root, "deploy", "kubectl-layers"), nil)
	if err != nil {
		return err
	}
	if err := lab.Apply(ctx, slices.Concat(agents, second, rights)...); err != nil {
		return err
	}
	if err := lab.AppReady(ctx, scenario.Agent, 1); err != nil {
		return err
	}
	return lab.AppReady(ctx, scenario.SecondScheduler, 1)
}

var must = testkit.Must

// push pushes an image of pods with further layers.
func push(t *testing.T, name string, layers ...images.Layer) *images.Pushed {
	t.Helper()
	return livetest.Push(t, c.Registry().Address+"/"+name+":v1", images.Image{Layers: layers})
}

// announce has layer-resolver explain images, as those of a workload without pods.
func announce(t *testing.T, name string, all ...*images.Pushed) {
	t.Helper()
	var references []string
	for _, image := range all {
		references = append(references, image.Reference)
	}
	must(t, lab.Announce(t.Context(), scenario.Pod{Name: name, Image: references[0]}, references[1:]...))
	must(t, lab.Resolved(t.Context(), references...))
}

func TestNodes(t *testing.T) {
	explained := push(t, "explained", images.Layer{Name: "explained-base", Size: 3_000_000}, images.Layer{Name: "explained-top", Size: 1_200_000})
	announce(t, "explained", explained)
	for node, image := range map[string]*images.Pushed{
		byKubelet: explained, byAgent: explained, joined: explained, byNames: push(t, "in-no-workload", images.Layer{Name: "in-no-workload", Size: 1_500_000}),
	} {
		_, err := livetest.Pull(t.Context(), c.Node(node), image.Reference)
		must(t, err)
	}
	want := map[string]inventory.Source{byKubelet: inventory.FromKubelet, byAgent: inventory.FromAgent, joined: inventory.Joined, byNames: inventory.FromNames}
	livetest.Eventually(t, 2*time.Minute, "the nodes have their sources", func(ctx context.Context) error {
		var nodes []inventory.Node
		if err := lab.AskKubectlLayers(ctx, root, &nodes, "nodes"); err != nil {
			return err
		}
		got := map[string]inventory.Source{}
		for _, n := range nodes {
			if got[n.Name] = n.Source; n.Source != inventory.FromNames && n.Bytes < 4_200_000 {
				return fmt.Errorf("%s has %d bytes", n.Name, n.Bytes)
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// within reports whether two numbers of bytes differ by so much of the second one at most.
func within(share float64, got, want int64) bool {
	return math.Abs(float64(got-want)) <= share*float64(want)
}

// pods is how many pods TestSavings starts, one after the other; 100 of them take minutes.
func pods() int {
	if os.Getenv("FULL") != "" {
		return 100
	}
	return 30
}

// plans is for how many of them plan is asked before.
const plans = 12

// lacks returns the entry of a node in a plan.
func lacks(t *testing.T, p plan.Plan, node string) plan.Node {
	t.Helper()
	at := slices.IndexFunc(p.Nodes, func(n plan.Node) bool { return n.Node == node })
	if at < 0 {
		t.Fatalf("plan has nothing of %s: %+v", node, p)
	}
	return p.Nodes[at]
}

// saved returns what the scheduler has counted so far.
func saved(t *testing.T) placements.Saved {
	t.Helper()
	var all placements.Savings
	must(t, lab.AskKubectlLayers(t.Context(), root, &all, "savings"))
	for _, p := range all.Profiles {
		if p.Profile == scenario.Layers {
			return p
		}
	}
	return placements.Saved{}
}

// TestSavings: pods of 20 images on five bases. What the chosen nodes lacked is what the registry
// sent, and what the mean node lacked is what the nodes lacked by the registry's manifests.
func TestSavings(t *testing.T) {
	type made struct {
		*images.Pushed
		layers livetest.Layers
	}
	var all []made
	var pushed []*images.Pushed
	for i := range 20 {
		image := push(t, fmt.Sprint("saved-", i), images.Layer{Name: fmt.Sprint("saved-base-", i%5), Size: int64(5_000_000 + i%5*1_000_000)}, images.Layer{Name: fmt.Sprint("saved-own-", i), Size: 1_200_000})
		layers, err := livetest.FromRegistry(t.Context(), image.Reference)
		must(t, err)
		all, pushed = append(all, made{image, layers}), append(pushed, image)
	}
	announce(t, "saved", pushed...)
	held := map[string]livetest.Layers{byKubelet: {}, byAgent: {}, joined: {}}
	missing := func(node string, image made) (bytes int64) {
		for digest, size := range image.layers {
			if _, here := held[node][digest]; !here {
				bytes += size
			}
		}
		return bytes
	}
	random := rand.New(rand.NewPCG(1, 2))
	before := saved(t)
	var sent int64
	var mean float64
	found, lacked := false, false
	for i := range pods() {
		image, name := all[random.IntN(len(all))], fmt.Sprint("saved-", i)
		for node := range held {
			mean += float64(missing(node, image)) / float64(len(held))
		}
		livetest.RemoveAtEnd(t, lab, name)
		var planned plan.Plan
		if i < plans {
			must(t, lab.AskKubectlLayers(t.Context(), root, &planned, "plan", "--image", image.Reference))
		}
		start, err := lab.Start(t.Context(), scenario.Pod{Name: name, Image: image.Reference, Scheduler: scenario.Layers}, image.Pushed)
		must(t, err)
		sent += start.Bytes
		maps.Copy(held[start.Node], image.layers)
		if i < plans {
			// The registry also sends the image's configuration. Nodes do not list layers below 1 MiB (here one
			// that all images have), so these count as missing, and are there or not.
			n, unlisted := lacks(t, planned, start.Node), int64(0)
			for _, size := range image.layers {
				if size < 1<<20 {
					unlisted += size
				}
			}
			const configuration = 2_000
			near := func(bytes int64) bool {
				return math.Abs(float64(bytes-start.Bytes)) <= .01*float64(max(bytes, start.Bytes))+configuration
			}
			if !near(n.MissingBytes) && !near(n.MissingBytes-unlisted) {
				t.Errorf("pod %d on %s: plan had %+v, the registry sent %d bytes; layers that no node lists have %d", i, start.Node, n, start.Bytes, unlisted)
			}
			found = found || n.MissingBytes < n.TotalBytes
			lacked = lacked || n.MissingBytes > 0
		}
	}
	if !found || !lacked {
		t.Errorf("of what plan was asked about, some was there: %t, some was not: %t", found, lacked)
	}
	after := saved(t)
	missed, meanLacked, n := after.MissingBytes-before.MissingBytes, after.MeanMissingBytes-before.MeanMissingBytes, after.Pods-before.Pods
	livetest.Table(t, []string{"", "pods", "pulled", "the mean node"},
		[]string{"kubectl layers savings", fmt.Sprint(n), livetest.Megabytes(missed), livetest.Megabytes(int64(meanLacked))},
		[]string{"the registry", fmt.Sprint(pods()), livetest.Megabytes(sent), livetest.Megabytes(int64(mean))})
	if n != int64(pods()) {
		t.Errorf("%d pods are counted, want %d", n, pods())
	}
	if !within(.05, missed, sent) {
		t.Errorf("pods lacked %d bytes, and the registry sent %d", missed, sent)
	}
	if !within(.05, int64(meanLacked)-missed, int64(mean)-sent) {
		t.Errorf("%.0f bytes are saved, want %.0f", meanLacked-float64(missed), mean-float64(sent))
	}
}
