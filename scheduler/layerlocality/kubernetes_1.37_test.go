//go:build kubernetes1.37

package layerlocality

import (
	"fmt"
	"testing"

	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// scorePlacements has the plugins score placements of a pod group.
func scorePlacements(s *suite, all []*fwk.PodGroupAssignments) ([]fwk.PlacementPluginScores, *fwk.Status) {
	states := make([]fwk.PlacementCycleState, len(all))
	for i := range states {
		states[i] = framework.NewCycleState()
	}
	return s.framework.RunPlacementScorePlugins(s.ctx, framework.NewCycleState(), &framework.PodGroupInfo{}, all, states)
}

// A pod that is placed in a batch, for which kube-scheduler scores the last node once more, goes to a node that has the
// highest score without batches; its images count once, and its decision is remembered once.
func TestBatch(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2", "n3", "n4"))
	for i, n := range s.nodes {
		s.agent.Sink.SetImages("test", n.Name, []index.Image{nodeImage("quay.io/a:1", layers{"base": 300, "top": int64(10 * i)})})
	}
	infos, err := s.framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	all := func(state fwk.CycleState, name string) []fwk.NodePluginScores {
		p := pod(name, "quay.io/a:1")
		if status := s.framework.RunPreScorePlugins(s.ctx, state, p, infos); !status.IsSuccess() {
			t.Fatal(status)
		}
		scores, status := s.framework.RunScorePlugins(s.ctx, state, p, infos)
		if !status.IsSuccess() {
			t.Fatal(status)
		}
		return scores
	}
	best := func(scores []fwk.NodePluginScores) (best int) {
		for i := range scores {
			if scores[i].TotalScore > scores[best].TotalScore {
				best = i
			}
		}
		return best
	}
	observed := func() float64 {
		v, _ := testutil.GetCounterMetricValue(s.plugin.metrics.images.WithLabelValues(string(index.ByLayers)))
		return v
	}
	batched := 0
	// A batch ends after half a second: on a busy machine, that is before the second pod.
	for cycle := int64(1); batched < 5 && cycle < 200; cycle++ {
		p := pod(fmt.Sprint("p", cycle), "quay.io/a:1")
		state, before := framework.NewCycleState(), observed()
		s.plugin.PreFilter(s.ctx, state, p, nil)
		signature := s.framework.SignPod(s.ctx, p)
		if signature == nil {
			t.Fatal("no signature: nothing is placed in batches")
		}
		hint := s.framework.GetNodeHint(s.ctx, p, signature, state, cycle)
		node := hint
		var others framework.SortedScoredNodes
		if hint == "" {
			scores := all(state, p.Name)
			i := best(scores)
			node = scores[i].Name
			others = framework.NewSortedScoredNodes(append(scores[:i:i], scores[i+1:]...))
		}
		if got := observed() - before; got != 1 {
			t.Errorf("%s, hint %q: its image counts %.0f times", p.Name, hint, got)
		}
		if hint != "" {
			batched++
			scores := all(framework.NewCycleState(), "another")
			if i := best(scores); scoreOf(scores, hint) != scores[i].TotalScore {
				t.Errorf("%s goes to %s in a batch; without: %v", p.Name, hint, scores)
			}
		}
		s.framework.StoreScheduleResults(s.ctx, signature, hint, node, others, cycle)
		s.plugin.Reserve(s.ctx, state, p, node)
		if remembered := s.factory.placements.Of(p.Namespace, p.Name).Placements; len(remembered) != 1 || remembered[0].Chosen.Node != node {
			t.Errorf("%s, hint %q: %+v", p.Name, hint, remembered)
		}
	}
	if batched == 0 {
		t.Error("nothing was placed in a batch")
	}
}

func scoreOf(scores []fwk.NodePluginScores, node string) int64 {
	for _, s := range scores {
		if s.Name == node {
			return s.TotalScore
		}
	}
	return -1
}
