//go:build e2e

package extender

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// The resources by which pods choose a foreign extender.
const (
	byNodes corev1.ResourceName = "example.com/by-nodes"
	byNames corev1.ResourceName = "example.com/by-names"
)

// foreign are entries of two extenders of others, which filter and exclude no node: one that
// is sent whole Nodes, as is the default, and one that is sent their names. Both are asked
// only for pods that request their resource.
func foreign(t *testing.T) []map[string]any {
	t.Helper()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{Nodes: args.Nodes, NodeNames: args.NodeNames})
	})
	entry := func(resource corev1.ResourceName, names bool) map[string]any {
		return map[string]any{
			"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": names,
			"managedResources": []map[string]any{{"name": string(resource), "ignoredByScheduler": true}},
		}
	}
	return []map[string]any{entry(byNodes, false), entry(byNames, true)}
}

// TestForeign measures what an extender of others does that filters and has no
// nodeCacheCapable: kube-scheduler replaces what it has of each node by what that extender
// returns, without pods (kubernetes#141781). One node has the image and is busy. Its load has
// to count, for NodeResourcesFit as for LayerLocality. layer-extender watches the nodes itself.
func TestForeign(t *testing.T) {
	if stock() {
		t.Skip("STOCK_NODES=1 has no kube-scheduler with the plugin, which a foreign extender could disturb")
	}
	const busy = "foreign-busy"
	provide(t, bringImages(t).ofHolder)
	filling, err := lab.FillingCPU(t.Context()) // three quarters of a node
	must(t, err)
	removeAtEnd(t, busy)
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: busy, Image: held, Node: holder, MilliCPU: filling * 2 / 5}))
	must(t, lab.Ready(t.Context(), busy))

	rows := [][]string{{"scheduler", "foreign extender", "layers: score of the node with the image", "NodeResourcesFit: there", "elsewhere", "pod goes"}}
	for _, scheduler := range []struct {
		name     string
		settings cluster.Component
		layers   string // who scores layers
		disturbs bool
	}{
		{"LayerLocality", withPlugin(nil), "LayerLocality", true},
		{"layer-extender", extended(nil), addons.ExtenderURL(c) + "/scheduler", false},
	} {
		own, _ := scheduler.settings.Config["extenders"].([]map[string]any)
		scheduler.settings.Config["extenders"] = append(foreign(t), own...)
		restore := withScheduler(t, scheduler.settings)
		// try places a pod and returns its scores: for layers that of the busy node, of
		// NodeResourcesFit also that of another node.
		try := func(name string, extended corev1.ResourceName) (layers, there, elsewhere int64) {
			t.Helper()
			removeAtEnd(t, name)
			must(t, lab.Submit(t.Context(), scenario.Pod{Name: name, Image: held, PullPolicy: corev1.PullNever, Scheduler: scenario.Layers, MilliCPU: filling / 5, Extended: extended}))
			nodes, err := lab.Placed(t.Context(), name)
			must(t, err)
			must(t, lab.Remove(t.Context(), name))
			byLayers, err := lab.Scores(name, scheduler.layers)
			must(t, err)
			byFit, err := lab.Scores(name, "NodeResourcesFit")
			must(t, err)
			if len(byLayers) != len(c.Nodes()) || len(byFit) != len(c.Nodes()) {
				t.Fatalf("%s scored %v, NodeResourcesFit %v", scheduler.layers, byLayers, byFit)
			}
			layers, there, elsewhere = byLayers[holder], byFit[holder], byFit["n1"]
			rows = append(rows, []string{scheduler.name, cmp.Or(string(extended), "none"), fmt.Sprint(layers), fmt.Sprint(there), fmt.Sprint(elsewhere), nodes[name]})
			return layers, there, elsewhere
		}
		name := "foreign-" + strings.ToLower(scheduler.name)
		layers, there, elsewhere := try(name+"-none", "")
		if there >= elsewhere {
			t.Errorf("%s: the load of %s does not count: NodeResourcesFit gives %d there, %d elsewhere", scheduler.name, holder, there, elsewhere)
		}
		same := func(score int64) bool { return max(score-layers, layers-score) <= layers/8 }
		// keeps tries until the score for layers is that without a foreign extender: layer-extender
		// may see the end of the pod before a little later than the scheduler.
		keeps := func(name string, extended corev1.ResourceName) (there, elsewhere int64) {
			t.Helper()
			attempt := 0
			livetest.Eventually(t, time.Minute, name+": the score for layers is kept", func(context.Context) error {
				attempt++
				var score int64
				score, there, elsewhere = try(fmt.Sprintf("%s-%d", name, attempt), extended)
				if !same(score) {
					return fmt.Errorf("it is %d, without a foreign extender %d", score, layers)
				}
				return nil
			})
			return there, elsewhere
		}
		if b, e := keeps(name+"-names", byNames); b != there || e != elsewhere {
			t.Errorf("%s: with names, a foreign extender changes NodeResourcesFit: %d %d, without it %d %d", scheduler.name, b, e, there, elsewhere)
		}
		var b, e int64
		if scheduler.disturbs {
			var a int64
			if a, b, e = try(name+"-nodes", byNodes); a <= layers {
				t.Errorf("%s: the score for layers is %d, %d with a foreign extender that is sent Nodes", scheduler.name, layers, a)
			}
		} else {
			b, e = keeps(name+"-nodes", byNodes)
		}
		if b != e {
			t.Errorf("%s: NodeResourcesFit sees the load of %s, %d there and %d elsewhere: kubernetes#141781 is mended, and docs/extender.md has to state it", scheduler.name, holder, b, e)
		}
		restore()
	}
	livetest.Table(t, rows...)
}
