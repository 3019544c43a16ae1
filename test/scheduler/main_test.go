//go:build e2e

package scheduler

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/internal/cluster"
	"github.com/layer-locality/layer-locality/internal/cluster/images"
	"github.com/layer-locality/layer-locality/internal/nodeimages"
	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
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
	schedulers.Args = []string{scenario.LogScores}
	config := cluster.Config{
		Name: "sched", Nodes: 4, Bandwidth: bandwidth, Flavour: cluster.Patched,
		Scheduler: schedulers,
		Kubelet: cluster.Component{Config: map[string]any{
			// Ten times as often as usual, so that tests wait less.
			"nodeStatusUpdateFrequency": "1s",
			"nodeStatusMaxImages":       -1,
		}},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
	}))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// use cordons all nodes except the named ones, until the end of the test.
func use(t *testing.T, names ...string) {
	t.Helper()
	cordon := func(ctx context.Context, node string, yes bool) error {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, yes)
		_, err := lab.Client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	for _, node := range c.Nodes() {
		if !slices.Contains(names, node.Name) {
			must(t, cordon(t.Context(), node.Name, true))
			t.Cleanup(func() {
				if err := cordon(context.Background(), node.Name, false); err != nil {
					t.Error(err)
				}
			})
		}
	}
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

// hubImage pushes an image with about this many compressed bytes, in layers of
// about equal size that no other image has. Nodes find it as
// docker.io/library/NAME.
func hubImage(t *testing.T, name string, size int64, layers int) *images.Pushed {
	t.Helper()
	binary, compressed := pause(t)
	each := size / int64(layers)
	spec := images.Image{Entrypoint: []string{"/pause"}}
	for i := range layers {
		layer := images.Layer{Name: fmt.Sprintf("%s-%d", name, i), Size: each}
		if i == 0 {
			layer.Files, layer.Size = map[string][]byte{"/pause": binary}, each-compressed
		}
		spec.Layers = append(spec.Layers, layer)
	}
	image, err := images.Build(spec)
	must(t, err)
	pushed, err := images.Push(t.Context(), c.Registry().Address+"/library/"+name, image)
	must(t, err)
	return pushed
}

// pause returns the program that test images run, and its approximate size in a
// layer.
func pause(t *testing.T) (binary []byte, compressed int64) {
	t.Helper()
	image, err := images.Build(images.Image{})
	must(t, err)
	layers, err := image.Layers()
	must(t, err)
	compressed, err = layers[0].Size()
	must(t, err)
	content, err := layers[0].Uncompressed()
	must(t, err)
	defer content.Close()
	archive := tar.NewReader(content)
	_, err = archive.Next()
	must(t, err)
	binary, err = io.ReadAll(archive)
	must(t, err)
	return binary, compressed
}

// size returns what a node without any layer of an image downloads: the
// compressed bytes of its layers.
func size(image *images.Pushed) int64 {
	var sum int64
	for _, layer := range image.Layers {
		sum += layer.Size
	}
	return sum
}

// placement is an image and a node that should have it.
type placement struct {
	node      string
	reference string
	image     *images.Pushed
}

// provide makes nodes pull images, and waits until their Nodes report them.
func provide(t *testing.T, all ...placement) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for _, p := range all {
		group.Go(func() error {
			_, err := livetest.Pull(ctx, c.Node(p.node), p.reference)
			return err
		})
	}
	must(t, group.Wait())
	livetest.Eventually(t, settled, fmt.Sprintf("Nodes state %d images", len(all)), func(ctx context.Context) error {
		for _, p := range all {
			if err := stated(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// stated returns an error unless the Node reports the layers of an image,
// except those below 1 MiB, which the kubelet leaves out by default.
func stated(ctx context.Context, p placement) error {
	list, err := nodeimages.Get(ctx, lab.Client, p.node)
	if err != nil {
		return err
	}
	image, ok := livetest.FindNode(list, p.reference)
	if !ok {
		return fmt.Errorf("node %s: no image %s", p.node, p.reference)
	}
	for _, layer := range p.image.Layers {
		if layer.Size >= 1<<20 && !slices.Contains(image.Layers, nodeimages.Layer{Digest: layer.Digest.String(), SizeBytes: layer.Size}) {
			return fmt.Errorf("node %s: image %s: no layer %s", p.node, p.reference, layer.Digest)
		}
	}
	return nil
}

// removeAtEnd removes pods when the test ends, whatever their state.
func removeAtEnd(t *testing.T, names ...string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := lab.Remove(ctx, names...); err != nil {
			t.Error(err)
		}
	})
}

// submit creates pods NAME-1 to NAME-n with an image, and removes them at the
// end of the test.
func submit(t *testing.T, name string, n int, pod scenario.Pod) []string {
	t.Helper()
	names := scenario.Names(name, n)
	removeAtEnd(t, names...)
	for _, pod.Name = range names {
		must(t, lab.Submit(t.Context(), pod))
	}
	return names
}

// spread tells in words how many of the pods each schedulable node got.
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

func nodeImages(t *testing.T, node string) []corev1.ContainerImage {
	t.Helper()
	object, err := lab.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	must(t, err)
	return object.Status.Images
}
