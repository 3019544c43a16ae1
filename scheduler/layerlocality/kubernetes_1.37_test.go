//go:build kubernetes1.37

package layerlocality

import (
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// scorePlacements has the plugins score placements of a pod group.
func scorePlacements(s *suite, all []*fwk.PodGroupAssignments) ([]fwk.PlacementPluginScores, *fwk.Status) {
	states := make([]fwk.PlacementCycleState, len(all))
	for i := range states {
		states[i] = framework.NewCycleState()
	}
	return s.framework.RunPlacementScorePlugins(s.ctx, framework.NewCycleState(), &framework.PodGroupInfo{}, all, states)
}
