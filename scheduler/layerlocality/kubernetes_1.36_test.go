//go:build !kubernetes1.35 && !kubernetes1.37

package layerlocality

import (
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// scorePlacements has the plugins score placements of a pod group.
func scorePlacements(s *suite, all []*fwk.PodGroupAssignments) ([]fwk.PlacementPluginScores, *fwk.Status) {
	return s.framework.RunPlacementScorePlugins(s.ctx, framework.NewCycleState(), &framework.PodGroupInfo{}, all)
}
