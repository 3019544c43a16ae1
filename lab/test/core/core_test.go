//go:build e2e

package core

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

// All components have the settings of deploy/ and of their own defaults. The links of 100 Mbit/s and
// what Lab stands for are as in the demo.
func TestMain(m *testing.M) {
	schedulers := scenario.Schedulers()
	schedulers.Flavour = cluster.Patched
	config := cluster.Config{
		Name: "core", Flavour: cluster.Patched, Bandwidth: 100_000_000,
		Lab:       true,
		Scheduler: schedulers,
		Addons:    []cluster.Addon{addons.Resolver(cluster.Component{})},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
	}))
}

var must = testkit.Must

// TestCore is one story, because each part takes what the one before has left on the nodes.
func TestCore(t *testing.T) {
	family, err := scenario.PushFamily(t.Context(), c, "core", 8<<20)
	must(t, err)
	cpu, err := lab.FillingCPU(t.Context())
	must(t, err)
	// One pod fills n1 for the whole test, another one filled n2.
	held := scenario.Pod{Name: "held", Image: family.One.Reference, Node: "n1", MilliCPU: cpu}
	gone := scenario.Pod{Name: "gone", Image: family.Two.Reference, Node: "n2", MilliCPU: cpu}
	must(t, lab.Submit(t.Context(), held, gone))
	must(t, lab.Ready(t.Context(), held.Name, gone.Name))
	must(t, lab.Remove(t.Context(), gone.Name))
	holds := map[string]*images.Pushed{"n1": family.One, "n2": family.Two}

	ok := t.Run("CRI-O and the Node list layers", func(t *testing.T) {
		checkLayers(t, holds)
	}) && t.Run("a pod goes where two of three layers are", func(t *testing.T) {
		checkThird(t, "third", family, cpu)
	}) && t.Run("CRI-O restarts", func(t *testing.T) {
		for _, node := range c.Nodes() {
			must(t, node.Runtime().Restart(t.Context()))
		}
		checkLayers(t, holds)
	}) && t.Run("a pod of an image that no node has pulled goes where its base is", func(t *testing.T) {
		checkNeverPulled(t)
	}) && t.Run("all services restart", func(t *testing.T) {
		control := []*cluster.Process{c.Addon(addons.LayerResolver), c.Scheduler(), c.ControllerManager(), c.APIServer(), c.Etcd()}
		for _, node := range c.Nodes() {
			must(t, node.Kubelet().Stop(t.Context()))
			must(t, node.Runtime().Stop(t.Context()))
		}
		for _, process := range control {
			must(t, process.Stop(t.Context()))
		}
		for _, process := range slices.Backward(control) {
			must(t, process.Start(t.Context()))
		}
		for _, node := range c.Nodes() {
			must(t, node.Runtime().Start(t.Context()))
			must(t, node.Kubelet().Start(t.Context()))
		}
		for _, node := range c.Nodes() {
			must(t, c.WaitNodeReady(t.Context(), node.Name))
		}
		checkLayers(t, holds)
		must(t, lab.Present(t.Context(), family.One.Reference, "n2", shared(family)))
		checkThird(t, "after", family, cpu)
	})
	if !ok {
		t.Log("the parts after a failed one did not run")
	}
	pod, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), held.Name, metav1.GetOptions{})
	must(t, err)
	if status := pod.Status.ContainerStatuses[0]; pod.Status.Phase != corev1.PodRunning || status.RestartCount != 0 {
		t.Errorf("the pod on n1 did not live through the restarts: %s, %+v", pod.Status.Phase, status)
	}
}

// checkLayers checks that every answer of CRI-O has exactly the layers of the registry's manifest, and that the Node
// lists those of at least 1 MiB, which is the kubelet's default.
func checkLayers(t *testing.T, holds map[string]*images.Pushed) {
	t.Helper()
	for name, image := range holds {
		node := c.Node(name)
		want, err := livetest.FromRegistry(t.Context(), image.Reference)
		must(t, err)
		list, err := livetest.List(t.Context(), node)
		must(t, err)
		crictl, err := livetest.Crictl(t.Context(), node)
		must(t, err)
		status, err := livetest.Status(t.Context(), node, image.Reference)
		must(t, err)
		for where, found := range map[string]*runtimeapi.Image{
			"ListImages": livetest.FindCRI(list, image.Reference), "ImageStatus": status,
			"crictl images -o json": livetest.FindCRI(crictl, image.Reference),
		} {
			if found == nil {
				t.Errorf("%s: %s lacks %s", name, where, image.Reference)
				continue
			}
			got, _, err := livetest.FromCRI(found)
			must(t, err)
			if diff := livetest.Diff(got, want); diff != "" {
				t.Errorf("%s: %s of %s:%s", name, where, image.Reference, diff)
			}
		}
		maps.DeleteFunc(want, func(_ string, bytes int64) bool { return bytes < 1<<20 })
		livetest.Eventually(t, 3*time.Minute, "Node "+name+" lists the layers of "+image.Reference, func(ctx context.Context) error {
			all, err := nodeimages.Get(ctx, lab.Client, name)
			if err != nil {
				return err
			}
			listed, ok := livetest.FindNode(all, image.Reference)
			if !ok {
				return fmt.Errorf("it does not list the image")
			}
			got, err := livetest.FromNode(listed)
			if err != nil {
				return err
			}
			if diff := livetest.Diff(got, want); diff != "" {
				return fmt.Errorf("its layers:%s", diff)
			}
			return nil
		})
	}
}

// checkThird checks that another pod of the first image, which fills a node, goes to n2 and pulls only the layer that
// the second image lacks. It removes pod and image.
func checkThird(t *testing.T, name string, family scenario.Family, cpu int64) {
	t.Helper()
	start, err := lab.Try(t.Context(), scenario.Pod{Name: name, Image: family.One.Reference, Scheduler: scenario.Layers, MilliCPU: cpu}, family.One)
	must(t, err)
	if start.Node != "n2" {
		ratings, err := lab.Rate(t.Context(), family.One.Reference)
		t.Errorf("the pod went to %s and not to n2: %+v %v", start.Node, ratings, err)
	}
	checkPulled(t, start.Bytes, lacked(family.One, family.Two))
}

// checkNeverPulled checks where pods go whose images layer-resolver has read in the registry.
func checkNeverPulled(t *testing.T) {
	t.Helper()
	const holder, n = "n3", 2
	base, own := images.Layer{Name: "core-base", Size: 30_000_000}, int64(1_000_000)
	first, err := scenario.PushOnBase(t.Context(), c, "core-first:v1", base, own)
	must(t, err)
	must(t, lab.Hold(t.Context(), scenario.Pod{Name: "core-first", Image: first.Reference, Node: holder}, base.Size))
	way := scenario.Ways[0]
	all, err := lab.NeverPulled(t.Context(), way, "core-new", n, base, own, holder)
	must(t, err)
	started, err := lab.Together(t.Context(), "core-new", way.Scheduler, all)
	must(t, err)
	var bytes int64
	for i, image := range all {
		if started.Nodes[i] != holder {
			t.Errorf("the pod of %s went to %s and not to %s", image.Reference, started.Nodes[i], holder)
		}
		bytes += lacked(image, first)
	}
	checkPulled(t, started.Pulled.Total(), bytes)
}

// checkPulled checks that so much was pulled; the configuration of an image comes on top.
func checkPulled(t *testing.T, got, want int64) {
	t.Helper()
	const configs = 128 << 10
	if got < want || got > want+configs {
		t.Errorf("%d bytes were pulled, want %d", got, want)
	}
}

// lacked returns the compressed bytes of the layers of an image that another one does not have.
func lacked(image, other *images.Pushed) (sum int64) {
	for _, layer := range image.Layers {
		if !slices.ContainsFunc(other.Layers, func(d v1.Descriptor) bool { return d.Digest == layer.Digest }) {
			sum += layer.Size
		}
	}
	return sum
}

// shared returns the compressed bytes of the layers of both images that nodes report.
func shared(family scenario.Family) (sum int64) {
	for _, layer := range family.Shared() {
		sum += layer.Size
	}
	return sum
}
