//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestImagesBeyondTheList gives a node more images than its kubelet states, with the
// kubelet's default: what is no longer listed is still there, and counts.
func TestImagesBeyondTheList(t *testing.T) {
	const holder, listed, baseBytes = "n4", 50, 16_000_000
	n := c.Node(holder)
	settings, err := n.Kubelet().Settings()
	must(t, err)
	t.Cleanup(func() {
		if err := n.Kubelet().Restart(context.Background(), func(s *cluster.Component) { *s = settings }); err != nil {
			t.Error(err)
		}
	})
	must(t, n.Kubelet().Restart(t.Context(), func(s *cluster.Component) {
		s.Config = with(s.Config, "nodeStatusMaxImages", listed)
	}))

	// Three images on one base, smaller than all that follow: the holder has one that nobody
	// runs and one of a pod; another node has the third.
	shared := images.Layer{Name: "unlisted-base", Size: baseBytes}
	push := func(name string) *images.Pushed {
		image, err := scenario.PushOnBase(t.Context(), c, "unlisted-"+name+":v1", shared, 200_000)
		must(t, err)
		return image
	}
	idle, running, elsewhere := push("idle"), push("running"), push("elsewhere")
	names := submit(t, "unlisted", 1, scenario.Pod{Image: running.Reference, Node: holder, MilliCPU: 10})
	must(t, lab.Ready(t.Context(), names...))
	provide(t, placement{Node: holder, Reference: idle.Reference, Image: idle}, placement{Node: holder, Reference: running.Reference, Image: running}, placement{Node: "n3", Reference: elsewhere.Reference, Image: elsewhere})

	// They are larger on the disk, which is what the kubelet goes by, and soon pulled.
	zeros := map[string][]byte{"/zeros": make([]byte, 20_000_000)}
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for i := range listed {
		group.Go(func() error {
			image, err := images.Build(images.Image{Layers: []images.Layer{{Name: fmt.Sprintf("beyond-%d", i), Size: 1000, Files: zeros}}})
			if err != nil {
				return err
			}
			pushed, err := images.Push(ctx, c.Registry().Address+fmt.Sprintf("/beyond-%d:v1", i), image)
			if err != nil {
				return err
			}
			_, err = livetest.Pull(ctx, n, pushed.Reference)
			return err
		})
	}
	must(t, group.Wait())
	livetest.Eventually(t, settled, fmt.Sprintf("Node %s no longer lists the small images", holder), func(ctx context.Context) error {
		list, err := nodeimages.Get(ctx, lab.Client, holder)
		if err != nil {
			return err
		}
		for _, image := range []*images.Pushed{idle, running} {
			if _, ok := livetest.FindNode(list, image.Reference); ok || len(list) != listed {
				return fmt.Errorf("the Node has %d images, %s among them: %t", len(list), image.Reference, ok)
			}
		}
		return nil
	})

	// On two nodes with nothing and the holder, the base decides.
	use(t, "n1", "n2", holder)
	for _, image := range []*images.Pushed{idle, running, elsewhere} {
		must(t, lab.Present(t.Context(), image.Reference, holder, baseBytes))
	}
	for i := range 3 {
		names := submit(t, fmt.Sprintf("beyond-%d", i+1), 1, scenario.Pod{Image: elsewhere.Reference, Scheduler: onlyLayers, MilliCPU: 10})
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		must(t, lab.Ready(t.Context(), names...))
		must(t, lab.Remove(t.Context(), names...))
		if nodes[names[0]] != holder {
			t.Errorf("the base is on %s, the pod went to %s", holder, nodes[names[0]])
		}
		must(t, lab.RemoveImage(t.Context(), nodes[names[0]], elsewhere.Reference))
	}

	// Images that are removed make room in the list; what is there is stated again.
	for i := range listed {
		must(t, lab.RemoveImage(t.Context(), holder, fmt.Sprintf("%s/beyond-%d:v1", c.Registry().Address, i)))
	}
	livetest.Eventually(t, settled, fmt.Sprintf("Node %s lists the small images again", holder), func(ctx context.Context) error {
		list, err := nodeimages.Get(ctx, lab.Client, holder)
		if err != nil {
			return err
		}
		if _, ok := livetest.FindNode(list, idle.Reference); !ok {
			return fmt.Errorf("%d images, not %s", len(list), idle.Reference)
		}
		return nil
	})
}
