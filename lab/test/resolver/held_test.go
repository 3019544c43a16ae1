//go:build e2e

package resolver

import (
	"testing"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestHeldImages pulls an image on a node without a pod, so that no workload names it. The
// resolver asks for it all the same, and the scheduler counts the base of another image as
// present there.
func TestHeldImages(t *testing.T) {
	const holder = "n2"
	shared := base("held")
	all := push(t, "held", 2, shared)
	_, err := livetest.Pull(t.Context(), c.Node(holder), all[0].Reference)
	must(t, err)
	must(t, lab.Resolved(t.Context(), all[0].ByDigest))
	announce(t, scenario.Pod{Name: "held", Image: all[1].Reference})
	must(t, lab.Present(t.Context(), all[1].Reference, holder, baseBytes))
	removeAtEnd(t, "held-1")
	start, err := lab.Try(t.Context(), scenario.Pod{Name: "held-1", Image: all[1].Reference, Scheduler: scenario.Layers}, all[1])
	must(t, err)
	if start.Node != holder || start.Bytes < ownBytes || start.Bytes > ownBytes+tolerance {
		t.Errorf("the base is on %s, the pod went to %s and %d bytes were pulled", holder, start.Node, start.Bytes)
	}
}
