//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	// The profiles besides scenario.Stock and scenario.Layers.
	onlyLayers = "only-layer-locality"
	onlyImages = "only-image-locality"
	gathering  = "layer-locality-15" // with maxWaitingPods: bound
	bound      = 15

	bandwidth = 100_000_000

	// settled is the time after which a Node must report what its CRI-O has:
	// the kubelet lists images every 30 s; the rest is for a busy machine.
	settled = 75 * time.Second
)

// groupGates and groupArgs turn on pod groups, where TestGroup is compiled.
var (
	groupGates map[string]bool
	groupArgs  []string
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

func TestMain(m *testing.M) {
	schedulers := scenario.Schedulers(
		scenario.Only(onlyLayers, "LayerLocality"),
		scenario.Only(onlyImages, "ImageLocality"),
		scenario.Recommended(gathering, map[string]any{"maxWaitingPods": bound}),
	)
	schedulers.Args, schedulers.Flavour, schedulers.FeatureGates = []string{scenario.LogScores}, cluster.Patched, groupGates
	config := cluster.Config{
		Name: livetest.ClusterName("sched"), Nodes: 4, Bandwidth: bandwidth, Flavour: livetest.Flavour(),
		Scheduler: schedulers,
		APIServer: cluster.Component{FeatureGates: groupGates, Args: groupArgs},
		Kubelet: cluster.Component{Config: map[string]any{
			// Ten times as often as usual, so that tests wait less.
			"nodeStatusUpdateFrequency": "1s",
			"nodeStatusMaxImages":       -1,
		}},
	}
	if stock() {
		config.Addons = []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*"}})}
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
	}))
}

// stock reports whether nodes and control plane are stock: then layers are known from
// ImageManifests.
func stock() bool { return livetest.Flavour() == cluster.Stock }

var must = testkit.Must

// use cordons all nodes except the named ones; see livetest.Use.
func use(t *testing.T, names ...string) {
	t.Helper()
	livetest.Use(t, lab, names...)
}

// setBandwidth changes the links of all nodes, until the end of the test.
func setBandwidth(t *testing.T, bitsPerSecond uint64) {
	t.Helper()
	for _, node := range c.Nodes() {
		must(t, node.SetBandwidth(bitsPerSecond))
		t.Cleanup(func() {
			if err := node.SetBandwidth(bandwidth); err != nil {
				t.Error(err)
			}
		})
	}
}

// hubImage pushes an image that no node has; see livetest.HubImage.
func hubImage(t *testing.T, name string, size int64, layers int) *images.Pushed {
	t.Helper()
	return livetest.HubImage(t, c, name, size, layers)
}

// size returns what a node without any layer of an image downloads.
func size(image *images.Pushed) int64 { return livetest.Size(image) }

// placement is an image and a node that should have it.
type placement = livetest.Placement

// provide makes nodes pull images, and waits until their Nodes report them.
func provide(t *testing.T, all ...placement) {
	t.Helper()
	livetest.Provide(t, lab, settled, fmt.Sprintf("Nodes state %d images", len(all)), stated, all...)
}

// stated returns an error unless the Node reports the layers of an image,
// except those below 1 MiB, which the kubelet leaves out by default. Of a stock node, the
// scheduler has to have them from its name for the image and an ImageManifest.
func stated(ctx context.Context, p placement) error {
	if stock() {
		return lab.Joined(ctx, p.Reference, p.Node)
	}
	list, err := nodeimages.Get(ctx, lab.Client, p.Node)
	if err != nil {
		return err
	}
	image, ok := livetest.FindNode(list, p.Reference)
	if !ok {
		return fmt.Errorf("node %s: no image %s", p.Node, p.Reference)
	}
	for _, layer := range p.Image.Layers {
		if layer.Size >= 1<<20 && !slices.Contains(image.Layers, nodeimages.Layer{Digest: layer.Digest.String(), SizeBytes: layer.Size}) {
			return fmt.Errorf("node %s: image %s: no layer %s", p.Node, p.Reference, layer.Digest)
		}
	}
	return nil
}

// removeAtEnd removes pods when the test ends, whatever their state.
func removeAtEnd(t *testing.T, names ...string) { livetest.RemoveAtEnd(t, lab, names...) }

// submit creates pods NAME-1 to NAME-n; see livetest.Submit.
func submit(t *testing.T, name string, n int, pod scenario.Pod) []string {
	t.Helper()
	return livetest.Submit(t, lab, name, n, pod)
}

// spread describes how many of the pods each schedulable node got.
func spread(perNode map[string]int) string {
	var text []string
	for _, node := range c.Nodes() {
		if n := perNode[node.Name]; n > 0 {
			text = append(text, fmt.Sprintf("%s: %d", node.Name, n))
		}
	}
	return strings.Join(text, ", ")
}

// schedulerHealthy checks that the scheduler is the same process as before, and
// that its log shows no crash.
func schedulerHealthy(t *testing.T, pid int) {
	t.Helper()
	if now := c.Scheduler().PID(); now != pid {
		t.Errorf("the scheduler was process %d and is %d", pid, now)
	}
	log, err := os.ReadFile(c.Scheduler().Log())
	must(t, err)
	for line := range strings.Lines(string(log)) {
		crash := strings.Contains(line, "panic") || strings.Contains(line, "fatal error") || strings.HasPrefix(line, "F")
		complaint := strings.HasPrefix(line, "E") && strings.Contains(line, "LayerLocality")
		if crash || complaint {
			t.Errorf("%s: %s", c.Scheduler().Log(), line)
		}
	}
}
