//go:build e2e

package extender

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
)

const (
	// holder has the image held, which tests use to show where scores lead.
	holder, held = "n2", "held:v1"
	// ninetyHolder has the image ninety, of 90 MB.
	ninetyHolder, ninety = "n3", "ninety:v1"
	// hub is what nodes make of these names.
	hub = "docker.io/library/"
)

// families are the images of TestAncestor, by its runs.
var families []scenario.Family

// onNodes has nodes pull the images of all tests that a node is to have before, and waits
// until they are known. That is done once: a kubelet lists images every 30 s.
func onNodes(t *testing.T) {
	t.Helper()
	pullOnce.Do(func() {
		families = make([]scenario.Family, ancestorRuns())
		group, ctx := errgroup.WithContext(t.Context())
		group.SetLimit(2)
		for i := range families {
			group.Go(func() (err error) {
				families[i], err = scenario.PushFamily(ctx, c, fmt.Sprintf("family-%d", i+1), layerBytes)
				return err
			})
		}
		must(t, group.Wait())
		all := []placement{
			{Node: holder, Reference: hub + held, Image: livetest.HubImage(t, c, held, 100_000_000, 2)},
			{Node: ninetyHolder, Reference: hub + ninety, Image: livetest.HubImage(t, c, ninety, 90_000_000, 1)},
		}
		for i, f := range families {
			n1, n2 := roles(i)
			all = append(all, placement{Node: n1, Reference: f.One.Reference, Image: f.One}, placement{Node: n2, Reference: f.Two.Reference, Image: f.Two})
		}
		for _, node := range c.Nodes() { // only later pulls matter
			must(t, node.SetBandwidth(0))
		}
		livetest.Provide(t, lab, settled, fmt.Sprintf("%d images on nodes are known", len(all)), known, all...)
		for _, node := range c.Nodes() {
			must(t, node.SetBandwidth(bandwidth))
		}
		pulled = true
	})
	if !pulled {
		t.Fatal("an earlier test could not bring the images to nodes")
	}
}

var (
	pullOnce sync.Once
	pulled   bool
)

// ancestorRuns is how often TestAncestor is done: each run takes some ten seconds.
func ancestorRuns() int {
	if os.Getenv("FULL") != "" {
		return 10
	}
	return 4
}

// roles returns the nodes that have the two images of a family.
func roles(run int) (n1, n2 string) { return c.Nodes()[run%3].Name, c.Nodes()[(run+1)%3].Name }
