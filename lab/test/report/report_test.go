//go:build e2e

package report

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

// Besides the report after a pull, the kubelet writes its status every hour only, instead of every
// ten seconds: with the default, an image is also reported without, up to 40 s after its pull.
func TestMain(m *testing.M) {
	schedulers := scenario.Schedulers()
	schedulers.Flavour = cluster.Patched
	config := cluster.Config{Name: livetest.ClusterName("report"), Nodes: 1, Flavour: cluster.Patched, Scheduler: schedulers,
		Kubelet: cluster.Component{Config: map[string]any{"nodeStatusUpdateFrequency": "1h"}}}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
	}))
}

var must = testkit.Must

// TestPulled has pods pull images at intervals. The plugin's index gets each of them; how long that
// took is printed. No scheduler placed the pods, so the index learns of them from the node only.
func TestPulled(t *testing.T) {
	const pods, interval = 5, 13 * time.Second
	node := c.Nodes()[0]
	rows := [][]string{{"image", "from the end of its pull to the plugin's index"}}
	for i := range pods {
		image := livetest.HubImage(t, c, fmt.Sprintf("soon-%d", i), 8<<20, 3)
		name := fmt.Sprintf("soon-%d", i)
		must(t, lab.Submit(t.Context(), scenario.Pod{Name: name, Image: image.Reference, Node: node.Name}))
		livetest.RemoveAtEnd(t, lab, name)
		must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
			found, err := livetest.Status(ctx, node, image.Reference)
			if err == nil && found == nil {
				err = fmt.Errorf("%s is not pulled", image.Reference)
			}
			return err
		}))
		pulled := time.Now()
		must(t, lab.Present(t.Context(), image.Reference, node.Name, livetest.Size(image)))
		rows = append(rows, []string{name, time.Since(pulled).Round(10 * time.Millisecond).String()})
		time.Sleep(interval - time.Since(pulled))
	}
	livetest.Table(t, rows...)
}
