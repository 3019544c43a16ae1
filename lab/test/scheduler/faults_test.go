//go:build e2e

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestSchedulerKilled kills the scheduler in the middle of a burst. The next one
// has from the Nodes what is there and from the pods what is on its way, and
// continues where the first one stopped.
func TestSchedulerKilled(t *testing.T) {
	const pods = 30
	use(t, "n1", "n2", "n3")
	image := hubImage(t, "killed:v1", 60_000_000, 3)
	pod := scenario.Pod{Image: "killed:v1", Scheduler: gathering}

	// Nothing arrives before all are placed.
	setBandwidth(t, 8_000_000)
	first := scenario.Names("before", pods/2)
	removeAtEnd(t, first...)
	var all []scenario.Pod
	for _, pod.Name = range first {
		all = append(all, pod)
	}
	submitted := make(chan error, 1)
	go func() {
		submitted <- lab.Submit(t.Context(), all...)
	}()
	_, err := lab.Placed(t.Context(), first[0])
	must(t, err)
	must(t, c.Scheduler().Kill(t.Context()))
	must(t, <-submitted)
	placed := 0
	for _, name := range first {
		pod, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if pod.Spec.NodeName != "" {
			placed++
		}
	}
	second := submit(t, "after", pods/2, pod)
	must(t, c.Scheduler().Start(t.Context()))
	pid := c.Scheduler().PID()
	names := slices.Concat(first, second)
	nodes, err := lab.Placed(t.Context(), names...)
	must(t, err)
	t.Logf("%d of %d pods were placed when the scheduler was killed, %d waited; in the end: %s", placed, pods, len(first)-placed, spread(scenario.PerNode(nodes)))
	for node, n := range scenario.PerNode(nodes) {
		if n > bound {
			t.Errorf("%d pods wait on %s, at most %d may: the new scheduler does not count what the first placed", n, node, bound)
		}
	}
	checkIndex(t, pods)

	setBandwidth(t, bandwidth)
	must(t, lab.Ready(t.Context(), names...))
	pulled, err := scenario.Pulled(c, "library/killed")
	must(t, err)
	// Once the link is fast, a pull that waits for a slow one may download on its own; as stock, which never waits.
	if len(pulled) > pods/bound || pulled.Total() > 2*pods/bound*size(image) {
		t.Errorf("want the image on %d nodes, twice at most on each: %v", pods/bound, pulled)
	}
	must(t, lab.Remove(t.Context(), names...))
	checkIndex(t, 0)
	schedulerHealthy(t, pid)
}

// TestAPIServerRestart restarts the apiserver while pods are being placed: the
// scheduler keeps running, and its index stays correct.
func TestAPIServerRestart(t *testing.T) {
	const holder, pods = "n2", 10
	pid := c.Scheduler().PID()
	pushed := hubImage(t, "restart:v1", 90_000_000, 1)
	provide(t, placement{Node: holder, Reference: "docker.io/library/restart:v1", Image: pushed})
	pod := scenario.Pod{Image: "restart:v1", Scheduler: scenario.Layers}

	first := submit(t, "restart-before", pods/2, pod)
	must(t, c.APIServer().Kill(t.Context()))
	must(t, c.APIServer().Start(t.Context()))
	second := submit(t, "restart-after", pods/2, pod)
	names := slices.Concat(first, second)
	must(t, lab.Ready(t.Context(), names...))
	nodes, err := lab.Placed(t.Context(), names...)
	must(t, err)
	if perNode := scenario.PerNode(nodes); perNode[holder] != pods {
		t.Errorf("the image is on %s, the pods went to %s", holder, spread(perNode))
	}
	must(t, lab.Remove(t.Context(), names...))

	// The scheduler still learns of new images.
	news := hubImage(t, "restart:v2", 30_000_000, 1)
	provide(t, placement{Node: "n3", Reference: "docker.io/library/restart:v2", Image: news})
	livetest.Eventually(t, settled, "the index has what came after the restart", func(ctx context.Context) error {
		return holds(ctx, "restart:v2", "n3")
	})
	checkIndex(t, 0)
	schedulerHealthy(t, pid)
}

// TestNodeRemovedAndBack removes a node with an image, and adds it again with its
// images.
func TestNodeRemovedAndBack(t *testing.T) {
	livetest.Long(t, "the unit tests of the index, and lab/test/agent for Nodes that come back")
	const name, image = "n4", "gone:v1"
	node, pid := c.Node(name), c.Scheduler().PID()
	provide(t, placement{Node: name, Reference: "docker.io/library/" + image, Image: hubImage(t, image, 90_000_000, 3)})
	livetest.Eventually(t, settled, "the index has the image", func(ctx context.Context) error { return holds(ctx, image, name) })

	must(t, node.Kubelet().Stop(t.Context()))
	t.Cleanup(func() {
		if node.Kubelet().PID() == 0 {
			if err := node.Kubelet().Start(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	must(t, lab.Client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	livetest.Eventually(t, settled, "the index has forgotten the node", func(ctx context.Context) error {
		ratings, err := lab.Rate(ctx, image)
		if err != nil {
			return err
		}
		if rating, ok := ratings.Node(name); ok {
			return fmt.Errorf("%+v", rating)
		}
		if known := ratings.Images[0].Known; known != "unknown" {
			return fmt.Errorf("%s, which nobody has, is known: %s", image, known)
		}
		return nil
	})
	checkIndex(t, 0)

	must(t, node.Kubelet().Start(t.Context()))
	must(t, c.WaitNodeReady(t.Context(), name))
	livetest.Eventually(t, settled, "the index has the node and its image again", func(ctx context.Context) error { return holds(ctx, image, name) })
	names := submit(t, "back", 3, scenario.Pod{Image: image, Scheduler: scenario.Layers})
	must(t, lab.Ready(t.Context(), names...))
	nodes, err := lab.Placed(t.Context(), names...)
	must(t, err)
	if perNode := scenario.PerNode(nodes); perNode[name] != len(names) {
		t.Errorf("the image is on %s, the pods went to %s", name, spread(perNode))
	}
	must(t, lab.Remove(t.Context(), names...))
	checkIndex(t, 0)
	schedulerHealthy(t, pid)
}

// holds returns no error if the scheduler counts the whole image as present on
// the node, and on no other node.
func holds(ctx context.Context, image, node string) error {
	ratings, err := lab.Rate(ctx, image)
	if err != nil {
		return err
	}
	var errs []error
	if _, ok := ratings.Node(node); !ok {
		errs = append(errs, fmt.Errorf("no node %s", node))
	}
	for _, r := range ratings.Nodes {
		want := int64(0)
		if r.Node == node {
			want = r.TotalBytes
		}
		if r.TotalBytes == 0 || r.PresentBytes != want {
			errs = append(errs, fmt.Errorf("%s of %s: %+v", image, r.Node, r))
		}
	}
	return errors.Join(errs...)
}

// checkIndex compares the scheduler's index with what the Nodes report, and the
// number of reservations with the number of pods that should be waiting.
func checkIndex(t *testing.T, reservations int) {
	t.Helper()
	livetest.Eventually(t, settled, "the index equals what the Nodes state", func(ctx context.Context) error {
		nodes, err := lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		want := map[string]int{"nodes": len(nodes.Items), "reservations": reservations}
		names := map[imageref.Canonical]bool{}
		for _, node := range nodes.Items {
			list, err := nodeimages.Get(ctx, lab.Client, node.Name)
			if err != nil {
				return err
			}
			layers := map[string]bool{}
			for _, image := range list {
				for _, name := range image.Names {
					canonical, err := imageref.Parse(name)
					if err != nil {
						return err
					}
					names[canonical] = true
				}
				for _, layer := range image.Layers {
					layers[layer.Digest] = true
				}
				if len(image.Layers) == 0 { // one indivisible piece
					layers[strings.Join(image.Names, " ")] = true
				}
			}
			want["layer_nodes"] += len(layers)
		}
		want["names"] = len(names)
		got, err := lab.IndexSize(ctx)
		if err != nil {
			return err
		}
		maps.DeleteFunc(got, func(of string, _ int) bool { _, ok := want[of]; return !ok })
		if !maps.Equal(got, want) {
			return fmt.Errorf("the index has %v, the Nodes %v; log: %s", got, want, c.Scheduler().Log())
		}
		return nil
	})
}
