package kubescheduler

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
)

// RackLabel has the rack of a Node.
const RackLabel = "rack"

// tried is a pod of a group on a node that was found for it.
type tried struct {
	pod   *v1.Pod
	state *framework.CycleState
}

// GetPod implements fwk.ProposedAssignment.
func (t tried) GetPod() *v1.Pod { return t.pod }

// GetNodeName implements fwk.ProposedAssignment.
func (t tried) GetNodeName() string { return t.pod.Spec.NodeName }

// ScheduleGroup places pods in the rack that has the highest score of those in which all of them fit, and returns their
// nodes; nil if there is none. It is podGroupSchedulingPlacementAlgorithm in
// k8s.io/kubernetes/pkg/scheduler/schedule_one_podgroup.go.
func (s *Scheduler) ScheduleGroup(pods []*v1.Pod) ([]string, error) {
	logger := klog.FromContext(s.ctx)
	if err := s.Made.Cache.UpdateSnapshot(logger, s.Snapshot); err != nil {
		return nil, err
	}
	all, err := s.Snapshot.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	racks := map[string][]fwk.NodeInfo{}
	for _, n := range all {
		rack := n.Node().Labels[RackLabel]
		racks[rack] = append(racks[rack], n)
	}
	cycle := framework.NewCycleState()
	var fit []*fwk.PodGroupAssignments
	for _, rack := range slices.Sorted(maps.Keys(racks)) {
		proposed, err := s.try(cycle, pods, racks[rack])
		if err != nil {
			return nil, err
		}
		if len(proposed) == len(pods) {
			fit = append(fit, &fwk.PodGroupAssignments{Placement: &fwk.Placement{Name: rack, Nodes: racks[rack]}, ProposedAssignments: proposed})
		}
	}
	if len(fit) == 0 {
		return nil, nil
	}
	group := &framework.PodGroupInfo{Namespace: pods[0].Namespace, Name: pods[0].Name, UnscheduledPods: pods}
	scores, status := s.Framework.RunPlacementScorePlugins(s.ctx, cycle, group, fit)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	best := choose(s.random, len(scores), func(i int) int64 { return scores[i].TotalScore })
	var nodes []string
	for _, proposed := range fit[best].ProposedAssignments {
		t := proposed.(tried)
		t.state.SetPodGroupSchedulingCycle(nil)
		if err := s.assume(t.state, t.pod); err != nil {
			return nil, err
		}
		nodes = append(nodes, t.GetNodeName())
	}
	return nodes, nil
}

// try finds nodes for as many of the pods as fit in a rack, and leaves everything as it was.
func (s *Scheduler) try(cycle *framework.CycleState, pods []*v1.Pod, nodes []fwk.NodeInfo) (proposed []fwk.ProposedAssignment, err error) {
	next := s.next // of all nodes
	defer func() { s.next = next }()
	s.next = 0
	for _, pod := range pods {
		state := framework.NewCycleState()
		state.SetPodGroupSchedulingCycle(cycle)
		feasible, err := s.Filter(state, pod, nodes)
		if err != nil || len(feasible) == 0 {
			return proposed, err
		}
		best, err := s.best(state, pod, feasible)
		if err != nil {
			return nil, err
		}
		t := tried{pod.DeepCopy(), state}
		t.pod.Spec.NodeName = feasible[best].Node().Name
		info, err := framework.NewPodInfo(t.pod)
		if err != nil {
			return nil, err
		}
		if err := s.Snapshot.AssumePod(info); err != nil {
			return nil, err
		}
		defer func() {
			s.Framework.RunReservePluginsUnreserve(s.ctx, state, t.pod, t.GetNodeName())
			if failed := s.Snapshot.ForgetPod(klog.FromContext(s.ctx), t.pod); err == nil {
				err = failed
			}
		}()
		if status := s.Framework.RunReservePluginsReserve(s.ctx, state, t.pod, t.GetNodeName()); !status.IsSuccess() {
			return nil, status.AsError()
		}
		proposed = append(proposed, t)
	}
	return proposed, nil
}

// choose returns the index of the highest score. In a tie, chance decides.
func choose(random *rand.Rand, n int, score func(i int) int64) int {
	best, equal := 0, 0
	for i := range n {
		switch {
		case i == 0 || score(i) > score(best):
			best, equal = i, 1
		case score(i) == score(best):
			if equal++; random.IntN(equal) == 0 {
				best = i
			}
		}
	}
	return best
}

// PlacementFit is the name of the plugin that scores racks for groups as NodeResourcesFit does with the feature gate
// TopologyAwareWorkloadScheduling. The gate is that of the whole process, and adds more than that.
const PlacementFit = "PlacementFit"

// NewPlacementFit makes that plugin.
func NewPlacementFit(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args := &config.NodeResourcesFitArgs{ScoringStrategy: &config.ScoringStrategy{
		Type: config.LeastAllocated, Resources: []config.ResourceSpec{{Name: string(v1.ResourceCPU), Weight: 1}, {Name: string(v1.ResourceMemory), Weight: 1}},
	}}
	pl, err := noderesources.NewFit(ctx, args, handle, feature.Features{EnableTopologyAwareWorkloadScheduling: true})
	if err != nil {
		return nil, err
	}
	return fitOfRacks{pl.(fwk.PlacementScorePlugin)}, nil
}

type fitOfRacks struct{ fwk.PlacementScorePlugin }

// Name returns another name than that of the plugin in the default profile.
func (fitOfRacks) Name() string { return PlacementFit }
