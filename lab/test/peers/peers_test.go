//go:build e2e

package peers

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	root   = "../../.."
	within = 90 * time.Second

	// On a link as users have it: who reads the head of a layer and hangs up gets what is on its way, too. The registry's
	// is that of a thin one, so that neighbours are faster, also on a machine that does much else.
	bandwidth, between = 20_000_000, 1_000_000_000

	bytes = 10_000_000
	// around is for heads, manifests, configurations, and the program in each image, a layer too small to be listed.
	around = 4_000_000
)

var (
	c    *cluster.Cluster
	lab  *scenario.Lab
	must = testkit.Must
)

func TestMain(m *testing.M) {
	config := cluster.Config{
		Name: "peers", Nodes: 3, Flavour: cluster.Patched, Bandwidth: bandwidth, BetweenNodes: between, PerNode: scenario.WithPeers,
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		if err := install(context.Background()); err != nil {
			panic(err)
		}
	}))
}

func install(ctx context.Context) (err error) {
	if lab, err = scenario.NewLab(c); err != nil {
		return err
	}
	if err := scenario.RoomForLayers(ctx, c); err != nil {
		return err
	}
	return lab.InstallAgent(ctx, root, "peers")
}

// run runs a pod of an image on a node, and returns what the node took from the registry for it.
func run(t *testing.T, repository, reference, node string) int64 {
	t.Helper()
	before, err := scenario.Pulled(c, repository)
	must(t, err)
	pod := scenario.Pod{Name: repository + "-" + node, Image: reference, Node: node}
	t.Cleanup(func() { must(t, lab.Remove(context.Background(), pod.Name)) })
	must(t, lab.Submit(t.Context(), pod))
	must(t, lab.Ready(t.Context(), pod.Name))
	after, err := scenario.Pulled(c, repository)
	must(t, err)
	return after[node] - before[node]
}

func push(t *testing.T, name string) *images.Pushed {
	t.Helper()
	return livetest.Push(t, c.Registry().Address+"/"+name+":v1", images.Image{Layers: []images.Layer{{Name: name, Size: bytes}, {Name: "more of " + name, Size: bytes}}})
}

// TestNeighbour: the second node takes an image's layers from the first. Without layer-agent, the third takes them from the
// registry.
func TestNeighbour(t *testing.T) {
	image := push(t, "first")
	if took := run(t, "first", image.Reference, "n1"); took < 2*bytes || took > 2*bytes+around {
		t.Errorf("n1 took %d bytes from the registry, want %d", took, 2*bytes)
	}
	must(t, lab.Serves(t.Context(), "n1", image.Reference, true))
	must(t, lab.Serves(t.Context(), "n2", image2(t).Reference, true))
	if took := run(t, "first", image.Reference, "n2"); took > around {
		t.Errorf("n2 took %d bytes from the registry, want next to nothing: n1 has the layers", took)
	}
	must(t, lab.Client.AppsV1().DaemonSets(scenario.AgentNamespace).Delete(t.Context(), scenario.Agent, metav1.DeleteOptions{}))
	livetest.Eventually(t, within, "no agent is left", func(ctx context.Context) error {
		pods, err := lab.Client.CoreV1().Pods(scenario.AgentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + scenario.Agent})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
	if took := run(t, "first", image.Reference, "n3"); took < 2*bytes {
		t.Errorf("n3 took %d bytes from the registry, want %d", took, 2*bytes)
	}
}

// image2 is an image that n2 has, so that its agent is known to run.
func image2(t *testing.T) *images.Pushed {
	t.Helper()
	image := push(t, "second")
	run(t, "second", image.Reference, "n2")
	return image
}
