//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestBurst creates 30 pods with one unknown image at once, on three nodes with room. At most 15
// pods may wait on one node for the same pull, also where kubelets pull one image after another.
func TestBurst(t *testing.T) {
	use(t, "n1", "n2", "n3")
	t.Run("pulls in parallel", func(t *testing.T) { burst(t, "burst") })
	t.Run("serializeImagePulls", func(t *testing.T) {
		livetest.Long(t, "the same with pulls in parallel")
		for _, n := range c.Nodes() {
			must(t, n.Kubelet().Restart(t.Context(), serialPulls(true)))
			t.Cleanup(func() {
				if err := n.Kubelet().Restart(context.Background(), serialPulls(false)); err != nil {
					t.Error(err)
				}
			})
		}
		burst(t, "burst-serial")
	})
}

// burst creates the pods, first with the default profile and then with ours.
func burst(t *testing.T, name string) {
	const pods, imageBytes = 30, 100_000_000
	rows := [][]string{{"", "pods", "bytes pulled", "until all run"}}
	pulled := map[string]int64{}
	for _, scheduler := range []string{scenario.Stock, gathering} {
		image := hubImage(t, name+":"+scheduler, imageBytes, 4)
		before, err := scenario.Pulled(c, "library/"+name)
		must(t, err)
		begin := time.Now()
		names := submit(t, name+"-"+scheduler, pods, scenario.Pod{Image: name + ":" + scheduler, Scheduler: scheduler})
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		must(t, lab.Ready(t.Context(), names...))
		seconds := time.Since(begin).Seconds()
		after, err := scenario.Pulled(c, "library/"+name)
		must(t, err)

		perNode := scenario.PerNode(nodes)
		pulled[scheduler] = after.Total() - before.Total()
		rows = append(rows, []string{scheduler, spread(perNode), livetest.Megabytes(pulled[scheduler]), fmt.Sprintf("%.1f s", seconds)})
		for node, n := range perNode {
			if scheduler == gathering && n > bound {
				t.Errorf("%s: %d pods wait on %s, at most %d may", scheduler, n, node, bound)
			}
			// However many pods wait, a node pulls an image once.
			if got := after[node] - before[node]; got < size(image) || got > size(image)+scenario.Measured {
				t.Errorf("%s: %s pulled %d bytes for its %d pods, the image has %d", scheduler, node, got, n, size(image))
			}
		}
		must(t, lab.Remove(t.Context(), names...))
	}
	livetest.Table(t, rows...)
	if want := int64(pods/bound) * imageBytes; pulled[gathering] > want+want/20+pods/bound*scenario.Measured {
		t.Errorf("%s: %d bytes pulled, %d are enough", gathering, pulled[gathering], want)
	}
	if pulled[gathering] >= pulled[scenario.Stock] {
		t.Errorf("%s pulled %d bytes, stock %d", gathering, pulled[gathering], pulled[scenario.Stock])
	}
}
