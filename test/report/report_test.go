//go:build e2e

package report

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/cluster"
	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

// The kubelet's frequencies are the defaults: with them, an image used to be reported 20 s after
// its pull on average, and 40 s at most.
func TestMain(m *testing.M) {
	schedulers := scenario.Schedulers()
	schedulers.Flavour = cluster.Patched
	config := cluster.Config{Name: livetest.ClusterName("report"), Nodes: 1, Flavour: cluster.Patched, Scheduler: schedulers}
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

// TestPulledSoon has pods pull images at intervals, and looks how long after the pull's end the
// plugin's index has the layers on the node. No scheduler placed the pods, so the index learns
// of them from the node only.
func TestPulledSoon(t *testing.T) {
	const pods, interval = 5, 13 * time.Second
	node := c.Nodes()[0]
	rows := [][]string{{"image", "from the end of its pull to the plugin's index"}}
	var took []time.Duration
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
		took = append(took, time.Since(pulled))
		rows = append(rows, []string{name, took[i].Round(10 * time.Millisecond).String()})
		time.Sleep(interval - time.Since(pulled))
	}
	livetest.Table(t, rows...)
	// A report may be late on a busy machine; half of them are not.
	slices.Sort(took)
	if median := took[pods/2]; median > 5*time.Second {
		t.Errorf("median %v, want far less than the 20 s that listing from time to time takes", median)
	}
}
