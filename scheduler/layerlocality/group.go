//go:build !kubernetes1.35

package layerlocality

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

var _ fwk.PlacementScorePlugin = &LayerLocality{}

// groupOf returns the name of the group that a pod is scheduled with; empty if there is
// none.
func groupOf(pod *v1.Pod) string {
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		return pod.Namespace + "/" + *group.PodGroupName
	}
	return ""
}

// onTrial reports whether a cycle is that of a pod's group, which places all of its pods before any for good.
func onTrial(state fwk.CycleState) bool { return state.IsPodGroupSchedulingCycle() }

// ScorePlacement returns what a pod group would have to pull in a placement, in compressed
// kibibytes: each layer once a node, without what is arriving there. If only some of its pods fit, it is as
// much more as there are more of them.
func (pl *LayerLocality) ScorePlacement(_ context.Context, _ placementState, group fwk.PodGroupInfo, placement *fwk.PodGroupAssignments) (int64, *fwk.Status) {
	byNode := map[string][]*v1.Pod{}
	for _, a := range placement.ProposedAssignments {
		byNode[a.GetNodeName()] = append(byNode[a.GetNodeName()], a.GetPod())
	}
	// Most nodes get pods of one template.
	measured := map[string]*index.Measurement{}
	var missing float64
	for node, pods := range byNode {
		var signature []string
		for _, pod := range pods {
			signature = append(signature, pl.profile.Signature(pod)...)
		}
		slices.Sort(signature)
		key := strings.Join(slices.Compact(signature), "\n")
		m := measured[key]
		if m == nil {
			m = &index.Measurement{}
			pl.profile.Measure(pl.profile.Wanted(pods...), m)
			measured[key] = m
		}
		if bytes, ok := m.Node(node); ok {
			missing += float64(bytes.Missing())
		} else { // newer than the index: it has nothing
			missing += m.MeanTotal()
		}
	}
	assigned := max(1, len(placement.ProposedAssignments))
	return int64(missing/1024) * int64(max(assigned, len(group.GetUnscheduledPods()))) / int64(assigned), nil
}

// PlacementScoreExtensions returns the plugin, because the scores of placements depend on each other.
func (pl *LayerLocality) PlacementScoreExtensions() fwk.PlacementScoreExtensions { return pl }

// NormalizePlacementScore replaces what placements would have to pull by scores: 100 for nothing, 0 for as much as
// the worst of them, or minImageBytes if that is more.
func (pl *LayerLocality) NormalizePlacementScore(_ context.Context, _ fwk.PodGroupCycleState, _ fwk.PodGroupInfo, scores []fwk.PlacementScore) *fwk.Status {
	worst := max(1, pl.profile.Args.MinImageBytes>>10)
	for i := range scores {
		worst = max(worst, scores[i].Score)
	}
	for i := range scores {
		scores[i].Score = locality.MaxScore - locality.MaxScore*scores[i].Score/worst
	}
	return nil
}
