//go:build e2e

package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// TestBurst creates 30 pods with one unknown image at once, on three nodes with
// room. At most 15 pods may wait on one node for the same pull.
func TestBurst(t *testing.T) {
	const pods, imageBytes = 30, 100_000_000
	use(t, "n1", "n2", "n3")
	rows := [][]string{{"", "pods", "bytes pulled", "until all run"}}
	pulled := map[string]int64{}
	for _, scheduler := range []string{scenario.Stock, gathering} {
		image := hubImage(t, "burst:"+scheduler, imageBytes, 4)
		before, err := scenario.Pulled(c, "library/burst")
		must(t, err)
		begin := time.Now()
		names := submit(t, "burst-"+scheduler, pods, scenario.Pod{Image: "burst:" + scheduler, Scheduler: scheduler})
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		must(t, lab.Ready(t.Context(), names...))
		seconds := time.Since(begin).Seconds()
		after, err := scenario.Pulled(c, "library/burst")
		must(t, err)

		perNode := scenario.PerNode(nodes)
		pulled[scheduler] = after.Total() - before.Total()
		rows = append(rows, []string{scheduler, spread(perNode), livetest.Megabytes(pulled[scheduler]), fmt.Sprintf("%.1f s", seconds)})
		for node, n := range perNode {
			if scheduler == gathering && n > bound {
				t.Errorf("%s: %d pods wait on %s, at most %d may", scheduler, n, node, bound)
			}
			// However many pods wait, a node pulls an image once.
			if got := after[node] - before[node]; got < size(image) || got > size(image)+64<<10 {
				t.Errorf("%s: %s pulled %d bytes for its %d pods, the image has %d", scheduler, node, got, n, size(image))
			}
		}
		must(t, lab.Remove(t.Context(), names...))
	}
	livetest.Table(t, rows...)
	if want := int64(pods/bound) * imageBytes; pulled[gathering] > want+want/20 {
		t.Errorf("%s: %d bytes pulled, %d are enough", gathering, pulled[gathering], want)
	}
	if pulled[gathering] >= pulled[scenario.Stock] {
		t.Errorf("%s pulled %d bytes, stock %d", gathering, pulled[gathering], pulled[scenario.Stock])
	}
}
