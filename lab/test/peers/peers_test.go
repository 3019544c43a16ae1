//go:build e2e

package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	root   = "../../.."
	within = 90 * time.Second

	// On a link as users have it: who reads the head of a layer and hangs up gets what is on its way, too.
	bandwidth = 100_000_000

	bytes = 20_000_000
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
		Name: "peers", Nodes: 3, Flavour: cluster.Patched, Bandwidth: bandwidth,
		PerNode: func(_ string, crio, _ *cluster.Component) {
			crio.Env = []string{"CRIO_LAYER_PEERS=on"}
			// The store of these nodes is a mount of its own, into which no link leads from /var/tmp.
			crio.Config = map[string]any{"crio": map[string]any{"image": map[string]any{"big_files_temporary_dir": "/var/lib/containers/storage"}}}
		},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		if err := errors.Join(shrink(context.Background()), install(context.Background())); err != nil {
			panic(err)
		}
	}))
}

// shrink gives nodes file systems for images that have room, whatever is free on this machine: CRI-O keeps no layers where less than
// a quarter is free.
func shrink(ctx context.Context) error {
	for _, node := range c.Nodes() {
		if err := livetest.SmallStorage(ctx, node, 2<<30); err != nil {
			return err
		}
	}
	return nil
}

// install installs layer-agent as a user does, but for the times.
func install(ctx context.Context) (err error) {
	if lab, err = scenario.NewLab(c); err != nil {
		return err
	}
	image, err := scenario.PushProgram(ctx, c, root, scenario.Agent)
	if err != nil {
		return err
	}
	agent := filepath.Join(root, "deploy", "agent")
	built, err := kustomize.Build(filepath.Join(agent, "cri-o"), map[string]any{
		"images":     []any{kustomize.Image(kustomize.Shipped+scenario.Agent, image.Reference+"@"+image.Digest.String())},
		"components": []string{filepath.Join(agent, "components", "peers")},
	})
	if err != nil {
		return err
	}
	if err := scenario.AgentArgs(built, "publish", "--renew=10s", "--spread=1s"); err != nil {
		return err
	}
	var text []byte
	for _, object := range built {
		one, err := yaml.Marshal(object.Object)
		if err != nil {
			return err
		}
		text = append(append(text, one...), "---\n"...)
	}
	return c.Apply(ctx, scenario.AgentNamespace, text)
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

// serves waits until the NodeLayers of a node have a layer of that size, and where it is served.
func serves(t *testing.T, node string, image *images.Pushed) {
	t.Helper()
	livetest.Eventually(t, within, node+" serves "+image.Reference, func(ctx context.Context) error {
		var of v1alpha1.NodeLayers
		if err := lab.Objects.Get(ctx, client.ObjectKey{Name: node}, &of); err != nil {
			return err
		}
		if of.Spec.Peer == nil {
			return errors.New("no address")
		}
		if _, err := livetest.FromNodeLayers(&of.Spec, image.Reference); err != nil {
			return fmt.Errorf("%s: %w", image.Reference, err)
		}
		return nil
	})
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
	serves(t, "n1", image)
	serves(t, "n2", image2(t))
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
