//go:build e2e

package layershare

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	base, own = 100_000_000, 5_000_000

	// around is what comes over a link besides layers: headers, manifests, and the
	// beginning of a base for each pull that proves its access.
	around = 3 // percent

	// What the nodes run.
	stock, patched, off = "n1", "n2", "n3"

	// A base takes four seconds.
	bandwidth = 200_000_000
)

var c *cluster.Cluster

func TestMain(m *testing.M) {
	config := cluster.Config{
		Name: livetest.ClusterName("layershare"), Nodes: 3, Flavour: cluster.Patched, Bandwidth: bandwidth,
		PerNode: func(node string, crio, _ *cluster.Component) {
			switch node {
			case stock:
				crio.Flavour = cluster.Stock
			case off:
				crio.Env = []string{"CRIO_SHARE_LAYERS=off"}
			}
		},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) { c = started }))
}

var must = testkit.Must

// bases are images of the base alone: making it takes seconds.
var bases = map[images.Compression]v1.Image{}

// push pushes images on the base, each in a repository of its own.
func push(t *testing.T, name string, count int, compression images.Compression) (names []string) {
	t.Helper()
	bottom, built := bases[compression]
	if !built {
		bottom = build(t, compression, images.Layer{Name: "base", Size: base})
		bases[compression] = bottom
	}
	return pushOn(t, bottom, name, count, compression)
}

// pushOn pushes images on the layers of another one.
func pushOn(t *testing.T, bottom v1.Image, name string, count int, compression images.Compression) (names []string) {
	t.Helper()
	for i := range count {
		top, err := build(t, compression, images.Layer{Name: fmt.Sprint(name, i), Size: own}).Layers()
		must(t, err)
		image, err := mutate.AppendLayers(bottom, top...)
		must(t, err)
		names = append(names, pushOne(t, fmt.Sprintf("%s-%d", name, i), image))
	}
	return names
}

func build(t *testing.T, compression images.Compression, layers ...images.Layer) v1.Image {
	t.Helper()
	image, err := images.Build(images.Image{Compression: compression, Entrypoint: []string{"/none"}, Layers: layers})
	must(t, err)
	return image
}

func pushOne(t *testing.T, name string, image v1.Image) string {
	t.Helper()
	pushed, err := images.Push(t.Context(), c.Registry().Address+"/layershare/"+name+":v1", image)
	must(t, err)
	return pushed.Reference
}

// pull pulls images at once, and returns the error of each, and how many bytes came over
// the node's link.
func pull(t *testing.T, ctx context.Context, node *cluster.Node, names ...string) (errs []error, bytes int64) {
	t.Helper()
	before, err := node.Received(t.Context())
	must(t, err)
	errs = make([]error, len(names))
	var group errgroup.Group
	for i, name := range names {
		group.Go(func() error {
			_, errs[i] = livetest.Pull(ctx, node, name)
			return nil
		})
	}
	_ = group.Wait()
	after, err := node.Received(t.Context())
	must(t, err)
	return errs, after - before
}

// complete checks that the images are there and read as they were pushed.
func complete(t *testing.T, node *cluster.Node, names ...string) {
	t.Helper()
	list, err := livetest.List(t.Context(), node)
	must(t, err)
	for _, name := range names {
		image := livetest.FindCRI(list, name)
		if image == nil {
			t.Errorf("%s: %s is not there", node.Name, name)
			continue
		}
		if want := uint64(base + own); image.GetSize() < want {
			t.Errorf("%s: %s has %d bytes, want more than %d", node.Name, name, image.GetSize(), want)
		}
	}
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// atMost checks that not many more bytes came than those of layers.
func atMost(t *testing.T, what string, got, layers int64) {
	t.Helper()
	between(t, what, got, layers, layers)
}

// between checks that at least the bytes of some layers came, and not many more than those of most.
func between(t *testing.T, what string, got, least, most int64) {
	t.Helper()
	if limit := most + most*around/100; got < least || got > limit {
		t.Errorf("%s: %d bytes came, want %d to %d", what, got, least, limit)
	}
}

// logged counts how often CRI-O has logged the text so far.
func logged(t *testing.T, node *cluster.Node, text string) int {
	t.Helper()
	log, err := os.ReadFile(node.Runtime().Log())
	must(t, err)
	return strings.Count(string(log), text)
}

// remove removes the images and all layers.
func remove(t *testing.T, node *cluster.Node, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := node.Exec(t.Context(), "crictl", "rmi", name)
		must(t, err)
	}
}

// TestBaseOnce pulls two, five and twenty images at once: the base comes once. Stock pulls
// it for each, and so does ours if that is wanted.
func TestBaseOnce(t *testing.T) {
	rows := [][]string{{"CRI-O", "images", "layers of all, once", "came over the link"}}
	for _, tc := range []struct {
		node         string
		count, bases int64
		compression  images.Compression
	}{
		{patched, 2, 1, images.Gzip},
		{patched, 5, 1, images.Zstd},
		{patched, 20, 1, images.Gzip},
		{stock, 5, 5, images.Gzip},
		{off, 2, 2, images.Gzip},
	} {
		names := push(t, fmt.Sprintf("once-%s-%d", tc.node, tc.count), int(tc.count), tc.compression)
		errs, bytes := pull(t, t.Context(), c.Node(tc.node), names...)
		noErrors(t, errs)
		complete(t, c.Node(tc.node), names...)
		atMost(t, fmt.Sprintf("%s, %d images", tc.node, tc.count), bytes, tc.bases*base+tc.count*own)
		rows = append(rows, []string{map[string]string{stock: "stock", patched: "ours", off: "ours, CRIO_SHARE_LAYERS=off"}[tc.node],
			fmt.Sprint(tc.count), livetest.Megabytes(base + tc.count*own), livetest.Megabytes(bytes)})
		remove(t, c.Node(tc.node), names...)
	}
	livetest.Table(t, rows...)
}

// TestNothingShared: images with nothing in common do not wait for each other.
func TestNothingShared(t *testing.T) {
	livetest.Long(t, "TestBaseOnce")
	var names []string
	for i := range 3 {
		name := fmt.Sprintf("alone-%d", i)
		names = append(names, pushOne(t, name, build(t, images.Gzip, images.Layer{Name: name, Size: base / 2})))
	}
	const waits = "bytes of layers that other pulls download"
	before := logged(t, c.Node(patched), waits)
	errs, bytes := pull(t, t.Context(), c.Node(patched), names...)
	noErrors(t, errs)
	atMost(t, "three images", bytes, 3*base/2)
	if now := logged(t, c.Node(patched), waits); now != before {
		t.Errorf("%d pulls waited", now-before)
	}
	remove(t, c.Node(patched), names...)
}

// TestFirstPullIsCancelled ends the request of the first pull in its base, as the kubelet
// does when the pod is deleted: the others get their images, the base once more.
func TestFirstPullIsCancelled(t *testing.T) {
	node, names := c.Node(patched), push(t, "cancelled", 5, images.Gzip)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := begin(t, ctx, node, names[0])
	time.AfterFunc(time.Second, cancel)
	errs, bytes := pull(t, t.Context(), node, names[1:]...)
	noErrors(t, errs)
	complete(t, node, names[1:]...)
	between(t, "with a cancelled pull", bytes, base+4*own, 2*base+5*own)
	if err := <-begun; err == nil {
		t.Error("the cancelled pull got its image: nothing was shown")
	}
	remove(t, node, names[1:]...)
}

// TestCRIOIsKilled in the base: after its restart, all images can be pulled, the base once.
func TestCRIOIsKilled(t *testing.T) {
	node, names := c.Node(patched), push(t, "killed", 5, images.Gzip)
	time.AfterFunc(2*time.Second, func() {
		if err := node.Runtime().Kill(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	errs, _ := pull(t, t.Context(), node, names...)
	for i, err := range errs {
		if err == nil {
			t.Errorf("pull %d succeeded in spite of it", i)
		}
	}
	must(t, node.Runtime().Start(t.Context()))
	errs, bytes := pull(t, t.Context(), node, names...)
	noErrors(t, errs)
	complete(t, node, names...)
	atMost(t, "the second attempt", bytes, base+5*own)
	remove(t, node, names...)
}

// TestLinkIsCutOff in the base for longer than a pull waits, which is 19 s for this base: the
// next pull downloads the base itself. Everybody gets the image when the link is back, which is
// before its connection fails, as it would alone.
func TestLinkIsCutOff(t *testing.T) {
	livetest.Long(t, "TestCRIOIsKilled, and the unit tests of crio/layershare")
	const cut, back = 2 * time.Second, 27 * time.Second
	const resigns = "other pulls do not get on"
	node, names := c.Node(patched), push(t, "cut", 5, images.Gzip)
	before := logged(t, node, resigns)
	registry, _, _ := strings.Cut(c.Registry().Address, ":")
	drop := func(action string) func() {
		return func() {
			if _, err := node.Exec(context.WithoutCancel(t.Context()), "iptables", "-w", action, "INPUT", "-s", registry, "-j", "DROP"); err != nil {
				t.Error(err)
			}
		}
	}
	time.AfterFunc(cut, drop("-A"))
	time.AfterFunc(back, drop("-D"))
	errs, bytes := pull(t, t.Context(), node, names...)
	noErrors(t, errs)
	complete(t, node, names...)
	if logged(t, node, resigns) == before {
		t.Errorf("no pull went on by itself: CRI-O did not log %q", resigns)
	}
	between(t, "with a link that is cut off", bytes, base+5*own, 2*base+5*own)
	remove(t, node, names...)
}

// begin begins a pull, and returns when its base has begun to come.
func begin(t *testing.T, ctx context.Context, node *cluster.Node, name string) <-chan error {
	t.Helper()
	before, err := node.Received(t.Context())
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := livetest.Pull(ctx, node, name)
		ended <- err
	}()
	livetest.Eventually(t, time.Minute, "the first pull has begun", func(ctx context.Context) error {
		now, err := node.Received(ctx)
		if err == nil && now < before+base/50 {
			err = fmt.Errorf("%d bytes came", now-before)
		}
		return err
	})
	return ended
}
