//go:build e2e

package resolver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// tolerance is how much a pull may bring in addition to the image's own layer:
// its configuration, and what tar and gzip add.
const tolerance = ownBytes / 10

// TestNeverPulled starts pods with images that no node has pulled, but whose base
// one node has, in three ways of scheduling.
func TestNeverPulled(t *testing.T) {
	const holder, pods = "n1", 3
	shared := base("never")
	holds(t, holder, shared)

	rows := [][]string{{"scheduler", "nodes", "pulled", "by node"}}
	t.Cleanup(func() { startResolver(t) })
	for _, way := range scenario.Ways {
		name := "never-" + way.Short
		if way.Resolver {
			livetest.WithdrawAtEnd(t, lab, name)
		}
		images, err := lab.NeverPulled(t.Context(), way, name, pods, shared, ownBytes, holder)
		must(t, err)
		removeAtEnd(t, scenario.Names(name, pods)...)
		started, err := lab.Together(t.Context(), name, way.Scheduler, images)
		must(t, err)
		pulled := started.Pulled.Total()
		rows = append(rows, []string{way.Name, strings.Join(started.Nodes, ", "), livetest.Megabytes(pulled), started.Pulled.String()})
		switch {
		case way.Resolver && slices.ContainsFunc(started.Nodes, func(node string) bool { return node != holder }):
			t.Errorf("%s: the base is on %s, pods went to %v", way.Name, holder, started.Nodes)
		case way.Resolver && (pulled < pods*ownBytes || pulled > pods*(ownBytes+tolerance)):
			t.Errorf("%s: %d bytes pulled, the images have %d of their own", way.Name, pulled, pods*ownBytes)
		case !way.Resolver && pulled < baseBytes:
			t.Errorf("%s: %d bytes pulled: nothing shows where the base is, and yet all pods went there", way.Name, pulled)
		}
	}
	livetest.Table(t, rows...)
}

// TestNeverPulledOneByOne does the same ten times, one pod after the other.
func TestNeverPulledOneByOne(t *testing.T) {
	livetest.Long(t, "TestNeverPulled")
	const holder, rounds = "n2", 10
	shared := base("single")
	holds(t, holder, shared)
	images := push(t, "single", rounds, shared)
	announce(t, scenario.Pod{Name: "single", Image: images[0].Reference}, references(images[1:])...)
	rows := [][]string{{"image", "node", "pulled", "in"}}
	for i, image := range images {
		must(t, lab.Resolved(t.Context(), image.Reference))
		must(t, lab.Present(t.Context(), image.Reference, holder, baseBytes))
		name := fmt.Sprintf("single-%d", i+1)
		removeAtEnd(t, name)
		start, err := lab.Try(t.Context(), scenario.Pod{Name: name, Image: image.Reference, Scheduler: scenario.Layers}, image)
		must(t, err)
		rows = append(rows, []string{scenario.Repository(image), start.Node, livetest.Megabytes(start.Bytes), fmt.Sprintf("%.1f s", start.Pull.Seconds())})
		if start.Node != holder || start.Bytes < ownBytes || start.Bytes > ownBytes+tolerance {
			t.Errorf("the base is on %s, the pod went to %s and %d bytes were pulled", holder, start.Node, start.Bytes)
		}
	}
	livetest.Table(t, rows...)
}

// TestWaitForManifest starts the first pods with unknown images: a profile with
// waitForManifest gives the resolver time to ask.
func TestWaitForManifest(t *testing.T) {
	const holder, rounds = "n3", 5
	shared := base("patient")
	holds(t, holder, shared)
	for i, image := range push(t, "patient", rounds, shared) {
		name := fmt.Sprintf("patient-%d", i+1)
		removeAtEnd(t, name)
		start, err := lab.Try(t.Context(), scenario.Pod{Name: name, Image: image.Reference, Scheduler: patient}, image)
		must(t, err)
		t.Logf("%s: %s, %s", scenario.Repository(image), start.Node, livetest.Megabytes(start.Bytes))
		if start.Node != holder || start.Bytes > ownBytes+tolerance {
			t.Errorf("the base is on %s, the pod went to %s and %d bytes were pulled", holder, start.Node, start.Bytes)
		}
	}
}

// TestEveryLinkIsBehind starts pods while every node still has to pull twice the bytes of
// their images: the base counts all the same.
func TestEveryLinkIsBehind(t *testing.T) {
	livetest.Long(t, "TestNeverPulled, and the unit tests of scores")
	const holder, pods, fillBytes = "n3", 3, 2*baseBytes + 10*ownBytes
	shared := base("behind")
	holds(t, holder, shared)
	livetest.WithdrawAtEnd(t, lab, "behind", "fill")
	behind, err := lab.NeverPulled(t.Context(), scenario.Ways[0], "behind", pods, shared, ownBytes, holder)
	must(t, err)
	var fill []string
	for i := range c.Nodes() {
		image, err := scenario.PushOnBase(t.Context(), c, fmt.Sprintf("fill-%d:v1", i+1), images.Layer{Name: "fill-base"}, fillBytes)
		must(t, err)
		fill = append(fill, image.Reference)
	}
	must(t, lab.Announce(t.Context(), scenario.Pod{Name: "fill", Image: fill[0]}, fill[1:]...))
	must(t, lab.Resolved(t.Context(), fill...))

	removeAtEnd(t, scenario.Names("fill", len(fill))...)
	for i, node := range c.Nodes() {
		must(t, lab.Submit(t.Context(), scenario.Pod{Name: fmt.Sprintf("fill-%d", i+1), Image: fill[i], Node: node.Name}))
	}
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		ratings, err := lab.Rate(ctx, behind[0].Reference)
		if err != nil {
			return err
		}
		for _, rating := range ratings.Nodes {
			if rating.PendingBytes < 2*rating.TotalBytes {
				return fmt.Errorf("%s has %d bytes to pull, less than twice the %d of the image: the test is wrong", rating.Node, rating.PendingBytes, rating.TotalBytes)
			}
		}
		return nil
	}))
	removeAtEnd(t, scenario.Names("behind", pods)...)
	started, err := lab.Together(t.Context(), "behind", scenario.Layers, behind)
	must(t, err)
	t.Logf("%v: %s", started.Nodes, started.Pulled)
	if slices.ContainsFunc(started.Nodes, func(node string) bool { return node != holder }) {
		t.Errorf("the base is on %s, pods went to %v", holder, started.Nodes)
	}
	must(t, lab.Ready(t.Context(), scenario.Names("fill", len(fill))...))
}

// startResolver starts the resolver again after a test that ended it.
func startResolver(t *testing.T) {
	if c.Addon(addons.LayerResolver).PID() != 0 {
		return
	}
	if err := c.Addon(addons.LayerResolver).Start(context.Background()); err != nil {
		t.Error(err)
	}
}
