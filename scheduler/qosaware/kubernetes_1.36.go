//go:build !kubernetes1.35 && !kubernetes1.37

package qosaware

import (
	"context"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// queuedPod is a pod in the queue.
type queuedPod = fwk.QueuedPodInfo

// Less reports whether a pod in the queue is served before another one.
func (pl *QosAware) Less(a, b fwk.QueuedPodInfo) bool { return pl.host.keys.less(a, b) }

// PreBindPreFlight notes that the binding of a pod begins.
func (pl *QosAware) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, pl.preFlight(state, pod)
}

// SelectVictimsOnNode returns the pods that have to go from a node so that a pod fits, and how many of them violate
// their disruption budgets.
func (p *preemptor) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, budgets []*policy.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	return p.selectVictims(ctx, state, pod, node, budgets, func(*v1.Pod) bool { return false })
}

// count has what upstream preempts counted.
func (p *preemptor) count(upstream *defaultpreemption.DefaultPreemption) {
	preempt := upstream.Executor.PreemptPod
	upstream.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, by preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) error {
		return p.counted(ctx, c.Name(), single(by), victim, func() error { return preempt(ctx, c, by, victim, plugin) })
	}
}
