//go:build e2e

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestEveryDigest: of images in every format, each digest and size is as in the registry, with CRI-O
// and with each containerd.
func TestEveryDigest(t *testing.T) {
	agents(t, len(c.Nodes()))
	for _, node := range runtimes() {
		t.Run(c.Node(node).Runtime().Name(), func(t *testing.T) { testEveryDigest(t, node) })
	}
}

// runtimes returns a node with CRI-O and those with containerd.
func runtimes() []string { return append([]string{"n1"}, slices.Sorted(maps.Keys(containerds))...) }

func testEveryDigest(t *testing.T, node string) {
	most, reuse := 200, v1alpha1.ReuseByDigest
	has, other := containerds[node]
	if other {
		if reuse = has.reuse; os.Getenv("FULL") == "" {
			most = 20 // containerd takes long to unpack many
		}
	}
	repository := c.Registry().Address + "/digest-" + node
	pushed := []*images.Pushed{pushImage(t, "digest-"+node+"/repeated:v1", images.Image{Layers: slices.Repeat([]images.Layer{{Name: "digest-top", Size: 1_100_000}}, most/3)})}
	for _, format := range livetest.Formats(t, most) {
		pushed = append(pushed, format.Push(t, repository))
	}
	for _, image := range pushed {
		pull(t, image, node)
	}
	livetest.Eventually(t, 2*time.Minute, "how layers are used is known", func(ctx context.Context) error {
		object, err := nodeLayers(ctx, node)
		if err == nil && object.Spec.Reuse != reuse {
			err = fmt.Errorf("%s, want %s", object.Spec.Reuse, reuse)
		}
		return err
	})
	for _, image := range pushed {
		publishes(t, node, image)
	}
	object, err := nodeLayers(t.Context(), node)
	must(t, err)
	s, leavesOut := object.Spec, reuse == v1alpha1.ReuseByDigest // small layers
	if (s.Runtime == "cri-o") == other || s.Reuse != reuse || int(s.TotalImages) != len(s.Images) || (int(s.TotalLayers) > len(s.Layers)) != leavesOut || s.TotalBytes < 6_000_000 {
		t.Errorf("%+v", s)
	}

	// The tag moves, and the image with the same configuration gets layers of another form.
	moved := livetest.Recompressed(t).Push(t, repository)
	pull(t, moved, node)
	publishes(t, node, moved)

	// What is removed is gone.
	must(t, lab.RemoveImage(t.Context(), node, moved.Reference))
	livetest.Eventually(t, seen, "the image is gone", func(ctx context.Context) error {
		object, err := nodeLayers(ctx, node)
		if err != nil {
			return err
		}
		if _, err := livetest.FromNodeLayers(&object.Spec, moved.Reference); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// TestMissingBytesArePulled: A = [1 2], B = [1 3] and C = [4 1] are pulled in every order, each
// order with layers of its own, with CRI-O and with each containerd. What the scheduler calls
// missing before each pull is what the registry then sends, within 1 %.
func TestMissingBytesArePulled(t *testing.T) {
	for _, node := range runtimes() {
		t.Run(c.Node(node).Runtime().Name(), func(t *testing.T) { testMissingBytes(t, node) })
	}
}

func testMissingBytes(t *testing.T, node string) {
	var orders [][]*images.Pushed
	var references []string
	for i, order := range []string{"abc", "acb", "bac", "bca", "cab", "cba"} {
		layer := func(name string) images.Layer {
			return images.Layer{Name: fmt.Sprint("order-", node, i, name), Size: 1_200_000}
		}
		family := map[rune][]images.Layer{'a': {layer("1"), layer("2")}, 'b': {layer("1"), layer("3")}, 'c': {layer("4"), layer("1")}}
		var all []*images.Pushed
		for _, name := range order {
			all = append(all, pushImage(t, fmt.Sprintf("order-%s-%s-%c:v1", node, order, name), images.Image{Entrypoint: []string{"/none"}, Layers: family[name]}))
			references = append(references, all[len(all)-1].Reference)
		}
		orders = append(orders, all)
	}
	must(t, lab.Announce(t.Context(), scenario.Pod{Name: "orders-" + node, Image: references[0]}, references[1:]...))
	t.Cleanup(func() {
		if err := lab.Client.AppsV1().Deployments(metav1.NamespaceDefault).Delete(context.Background(), "orders-"+node, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	must(t, lab.Resolved(t.Context(), references...))
	rows := [][]string{{"image", "called missing", "pulled"}}
	for turn := range 3 {
		for _, order := range orders {
			image := order[turn]
			must(t, lab.Known(t.Context(), image.Reference))
			ratings, err := lab.Rate(t.Context(), image.Reference)
			must(t, err)
			rating, _ := ratings.Node(node)
			repository := scenario.Repository(image)
			pull(t, image, node)
			pulled, err := scenario.Pulled(c, repository)
			must(t, err)
			rows = append(rows, []string{repository, livetest.Megabytes(rating.MissingBytes), livetest.Megabytes(pulled[node])})
			if off := pulled[node] - rating.MissingBytes; off < -rating.MissingBytes/100 || off > rating.MissingBytes/100 {
				t.Errorf("the scheduler called %d bytes of %s missing, the registry sent %d", rating.MissingBytes, repository, pulled[node])
			}
		}
		for _, order := range orders {
			publishes(t, node, order[turn])
		}
	}
	livetest.Table(t, rows...)
}

// TestContainerds: a node with containerd reports which one, and how it uses layers.
func TestContainerds(t *testing.T) {
	image := push(t, "containerds:v1", images.Layer{Name: "containerds", Size: 2_000_000})
	for node, has := range containerds {
		t.Run(c.Node(node).Runtime().Name(), func(t *testing.T) {
			pull(t, image, node)
			publishes(t, node, image)
			runtime := "containerd " + strings.TrimPrefix(livetest.Pin(t, has.pin), "v")
			livetest.Eventually(t, seen, "how layers are used", func(ctx context.Context) error {
				object, err := nodeLayers(ctx, node)
				if err != nil {
					return err
				}
				if s := object.Spec; s.Reuse != has.reuse || !strings.HasPrefix(s.Runtime, runtime) || s.JoinsDownloads == nil || !*s.JoinsDownloads {
					return fmt.Errorf("%s of %s, joins downloads: %v", s.Reuse, s.Runtime, s.JoinsDownloads)
				}
				return nil
			})
			publishes(t, node, image)
		})
	}
}

// TestMoreImagesThanNodeStatusNames: a node has 60 images, and its NodeStatus names 50. A pod
// goes where its base is, although NodeStatus names no image with it, and pulls what the
// scheduler counted as missing.
func TestMoreImagesThanNodeStatusNames(t *testing.T) {
	const holder, n, baseBytes, ownBytes = "n3", 60, 20_000_000, 4_000_000
	base := images.Layer{Name: "many-base", Size: baseBytes}
	shared := push(t, "many-shared:v1", base)
	pull(t, shared, holder)
	// Larger on the disk, which is what the kubelet goes by.
	zeros := map[string][]byte{"/zeros": make([]byte, 40_000_000)}
	for i := range n {
		pull(t, push(t, fmt.Sprintf("many-%d:v1", i), images.Layer{Name: fmt.Sprint("many-", i), Size: 1000, Files: zeros}), holder)
	}
	livetest.Eventually(t, 90*time.Second, "NodeStatus names 50 images, and not the one with the base", func(ctx context.Context) error {
		list, err := nodeimages.Get(ctx, lab.Client, holder)
		if err != nil {
			return err
		}
		if _, named := livetest.FindNode(list, shared.Reference); named || len(list) != 50 {
			return fmt.Errorf("%d images, it is named: %t", len(list), named)
		}
		return nil
	})
	publishes(t, holder, shared)
	ratings, err := lab.Rate(t.Context(), shared.Reference)
	must(t, err)
	if rating, _ := ratings.Node(holder); rating.MissingBytes != 0 || len(rating.Has) != 1 || rating.Has[0].By != "layers" {
		t.Errorf("the scheduler has of the image on %s: %+v", holder, rating)
	}

	rows := [][]string{{"pod", "node", "called missing", "pulled"}}
	for _, name := range scenario.Names("many", 4) {
		wanted := push(t, name+"-wanted:v1", base, images.Layer{Name: name, Size: ownBytes})
		must(t, lab.Announce(t.Context(), scenario.Pod{Name: name, Image: wanted.Reference}))
		t.Cleanup(func() {
			if err := lab.Client.AppsV1().Deployments(metav1.NamespaceDefault).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		must(t, lab.Present(t.Context(), wanted.Reference, holder, baseBytes))
		ratings, err := lab.Rate(t.Context(), wanted.Reference)
		must(t, err)
		rating, _ := ratings.Node(holder)
		livetest.RemoveAtEnd(t, lab, name)
		start, err := lab.Try(t.Context(), scenario.Pod{Name: name, Image: wanted.Reference, Scheduler: onlyLayers}, wanted)
		must(t, err)
		rows = append(rows, []string{name, start.Node, livetest.Megabytes(rating.MissingBytes), livetest.Megabytes(start.Bytes)})
		if start.Node != holder {
			t.Errorf("the base is on %s, the pod went to %s", holder, start.Node)
		}
		// The program of every image is there, but too small to be listed.
		if off := start.Bytes - rating.MissingBytes; off < -rating.MissingBytes/100-small || off > rating.MissingBytes/100 {
			t.Errorf("the scheduler called %d bytes missing, the registry sent %d", rating.MissingBytes, start.Bytes)
		}
	}
	livetest.Table(t, rows...)
}
