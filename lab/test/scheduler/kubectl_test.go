//go:build e2e

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubectllayers "github.com/layer-locality/layer-locality/deploy/kubectl-layers"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// near reports whether numbers of bytes are the same but for one percent: a registry also sends
// the configuration of an image.
func near(a, b int64) bool { return math.Abs(float64(a-b)) <= math.Max(float64(a), float64(b))/100 }

// TestKubectlLayers: the bytes of plan are what the pod then pulls, by the registry's log, and those
// of why afterwards; for a pod that the default scheduler placed, why has what it pulled and
// what it would have saved elsewhere.
func TestKubectlLayers(t *testing.T) {
	if stock() {
		t.Skip("needs nodes that report layers in NodeStatus, as patched ones do; lab/test/kubectl/live has nodes of all kinds")
	}
	const layerBytes = 8_000_000
	family, err := scenario.PushFamily(t.Context(), c, "told", layerBytes)
	must(t, err)
	provide(t, placement{Node: "n2", Reference: family.One.Reference, Image: family.One}, placement{Node: "n3", Reference: family.Two.Reference, Image: family.Two})
	must(t, c.Apply(t.Context(), "kube-system", kubectllayers.SchedulerReader))
	must(t, c.Apply(t.Context(), "kube-system", kubectllayers.Policy))
	cordon := func(node string, unschedulable bool) {
		_, err := lab.Client.CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), node, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable), metav1.PatchOptions{})
		must(t, err)
	}
	cordon("n3", true)
	t.Cleanup(func() { cordon("n3", false) })
	type node struct {
		Node, Source                           string
		TotalBytes, PresentBytes, MissingBytes int64
		RuledOut                               []string
	}
	var nodes []struct{ Name, Source string }
	must(t, lab.AskKubectlLayers(t.Context(), "../../..", &nodes, "nodes"))
	for _, n := range nodes {
		if held := n.Name == "n2" || n.Name == "n3"; held && n.Source != "kubelet" {
			t.Errorf("%+v: the patched kubelet reports what the node holds", n)
		}
	}
	livetest.RemoveAtEnd(t, lab, "told", "told-stock")
	// The plan is of the moment, the decision of the next: the rest of the cluster has to rest.
	var plan struct{ Nodes []node }
	must(t, lab.AskKubectlLayers(t.Context(), "../../..", &plan, "plan", "--image", family.Two.Reference))
	start, err := lab.Start(t.Context(), scenario.Pod{Name: "told", Image: family.Two.Reference, Scheduler: onlyLayers, MilliCPU: 10}, family.Two)
	must(t, err)
	var planned node
	for _, n := range plan.Nodes {
		if n.Node == start.Node {
			planned = n
		}
		if (n.Node == "n3") != slices.Equal(n.RuledOut, []string{"cordoned"}) {
			t.Errorf("%+v: n3 is cordoned", n)
		}
	}
	var why []struct {
		Decision *struct{ Chosen node }
		Now      *struct {
			PulledBytes      *int64
			Best             *node
			MeanMissingBytes float64
		}
		Pulls []struct {
			Present bool
			Seconds float64
		}
		Words []string
	}
	must(t, lab.AskKubectlLayers(t.Context(), "../../..", &why, "why", "told", "--scheduler-url", c.SchedulerURL()))
	if start.Node != "n2" || why[0].Decision == nil || why[0].Decision.Chosen.Node != "n2" || len(why[0].Pulls) != 1 || why[0].Pulls[0].Present || why[0].Pulls[0].Seconds <= 0 {
		t.Fatalf("%+v: %+v", start, why[0])
	}
	t.Logf("plan %d, decision %d, registry %d bytes", planned.MissingBytes, why[0].Decision.Chosen.MissingBytes, start.Bytes)
	if planned.MissingBytes != why[0].Decision.Chosen.MissingBytes || !near(planned.MissingBytes, start.Bytes) || !near(planned.MissingBytes, layerBytes) {
		t.Errorf("plan has %d bytes, the decision %d, the registry's log %d", planned.MissingBytes, why[0].Decision.Chosen.MissingBytes, start.Bytes)
	}

	// The default scheduler does not count layers; this pod fits on a node that has none.
	cordon("n2", true)
	t.Cleanup(func() { cordon("n2", false) })
	stocks, err := lab.Start(t.Context(), scenario.Pod{Name: "told-stock", Image: family.Two.Reference, Scheduler: scenario.Stock, MilliCPU: 10}, family.Two)
	must(t, err)
	if stocks.Node != "n1" && stocks.Node != "n4" {
		t.Fatalf("the default scheduler took %s", stocks.Node)
	}
	cordon("n2", false)
	livetest.Eventually(t, settled, "why prints what a pod pulled that the scheduler does not remember", func(ctx context.Context) error {
		why = nil // a decoder would fill what is there already
		if err := lab.AskKubectlLayers(ctx, "../../..", &why, "why", "told-stock", "--scheduler-url", c.SchedulerURL()); err != nil {
			return err
		}
		if why[0].Decision != nil || why[0].Now == nil || why[0].Now.PulledBytes == nil {
			return fmt.Errorf("%+v", why[0])
		}
		if pulled := *why[0].Now.PulledBytes; !near(pulled, stocks.Bytes) {
			return fmt.Errorf("it pulled %d bytes, by the registry's log %d", pulled, stocks.Bytes)
		}
		if best := why[0].Now.Best; best == nil || best.Node != "n2" || best.MissingBytes != 0 {
			return fmt.Errorf("the best other node is %+v", best)
		}
		if words := strings.Join(why[0].Words, " "); !strings.Contains(words, "There it would have saved 2") {
			return errors.New(words)
		}
		return nil
	})
}
