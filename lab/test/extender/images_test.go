//go:build e2e

package extender

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	// holder has the image held, which tests use to show where scores lead.
	holder, held = "n2", "held:v1"
	// ninetyHolder has the image ninety, of 90 MB.
	ninetyHolder, ninety = "n3", "ninety:v1"
	// hub is what nodes make of these names.
	hub = "docker.io/library/"
)

// brought are the images that a node is to have before a test, by test.
type brought struct {
	families              []scenario.Family // by run of TestAncestor
	ofFamilies            []placement
	ofHolder, ofOtherNode placement // held, ninety
}

var (
	bring   sync.Once
	onNodes *brought
)

// bringImages has nodes pull the images of all tests, once: a kubelet lists images every 30 s, so
// that the first test waits for them, and the others do not. A test goes on with provide.
func bringImages(t *testing.T) *brought {
	t.Helper()
	bring.Do(func() {
		b := &brought{families: make([]scenario.Family, ancestorRuns())}
		group, ctx := errgroup.WithContext(t.Context())
		group.SetLimit(2)
		for i := range b.families {
			group.Go(func() (err error) {
				b.families[i], err = scenario.PushFamily(ctx, c, fmt.Sprintf("family-%d", i+1), layerBytes)
				return err
			})
		}
		must(t, group.Wait())
		for i, f := range b.families {
			n1, n2 := roles(i)
			b.ofFamilies = append(b.ofFamilies,
				placement{Node: n1, Reference: f.One.Reference, Image: f.One}, placement{Node: n2, Reference: f.Two.Reference, Image: f.Two})
		}
		b.ofHolder = placement{Node: holder, Reference: hub + held, Image: livetest.HubImage(t, c, held, 100_000_000, 2)}
		b.ofOtherNode = placement{Node: ninetyHolder, Reference: hub + ninety, Image: livetest.HubImage(t, c, ninety, 90_000_000, 1)}
		for _, node := range c.Nodes() { // only later pulls matter
			must(t, node.SetBandwidth(0))
		}
		pulled := func(context.Context, placement) error { return nil }
		livetest.Provide(t, lab, settled, "all images are on nodes", pulled, append(b.ofFamilies, b.ofHolder, b.ofOtherNode)...)
		for _, node := range c.Nodes() {
			must(t, node.SetBandwidth(bandwidth))
		}
		onNodes = b
	})
	if onNodes == nil {
		t.Fatal("an earlier test could not bring the images to nodes")
	}
	return onNodes
}

// provide makes nodes pull images that they do not have yet, and waits until layer-extender
// has them.
func provide(t *testing.T, all ...placement) {
	t.Helper()
	livetest.Provide(t, lab, settled, fmt.Sprintf("%d images on nodes are known", len(all)), known, all...)
}

// ancestorRuns is how often TestAncestor is done: each run takes some ten seconds.
func ancestorRuns() int {
	if os.Getenv("FULL") != "" {
		return 10
	}
	return 2
}

// roles returns the nodes that have the two images of a family.
func roles(run int) (n1, n2 string) { return c.Nodes()[run%3].Name, c.Nodes()[(run+1)%3].Name }
