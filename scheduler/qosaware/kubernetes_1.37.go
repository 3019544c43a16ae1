//go:build kubernetes1.37

package qosaware

import (
	"context"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// queuedPod is a pod in the queue, which has groups of pods besides.
type queuedPod interface {
	fwk.QueuedEntityInfo
	GetPodInfo() fwk.PodInfo
}

// Less reports whether what is in the queue is served before something else there.
func (pl *QosAware) Less(a, b fwk.QueuedEntityInfo) bool {
	var x, y key
	return pl.host.keys.ofEntity(a, &x).before(pl.host.keys.ofEntity(b, &y))
}

// ofEntity returns the key of a pod. That of a group of pods, which has no SLO, is written to plain.
func (k *keys) ofEntity(entity fwk.QueuedEntityInfo, plain *key) *key {
	if pod, ok := entity.(queuedPod); ok {
		return k.of(pod, plain)
	}
	since := entity.GetTimestamp()
	*plain = key{priority: entity.GetPriority(), class: ordinary, deadline: since.UnixNano(), timestamp: since}
	return plain
}

// PreBindPreFlight notes that the binding of a pod begins.
func (pl *QosAware) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, pl.preFlight(state, pod)
}

// SelectVictimsOnNode returns the pods that have to go from a node so that a pod fits, and how many of them violate
// their disruption budgets. Pods that upstream ends only together with others are spared.
func (p *preemptor) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, possible []*preemption.DomainVictim, budgets []*policy.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	together := sets.New[types.UID]()
	for _, victim := range possible {
		if victim.Type() == fwk.PodKeyType {
			continue
		}
		for _, info := range victim.Pods() {
			together.Insert(info.GetPod().UID)
		}
	}
	return p.selectVictims(ctx, state, pod, node, budgets, func(pod *v1.Pod) bool { return together.Has(pod.UID) })
}

// count has what upstream preempts counted.
func (p *preemptor) count(upstream *defaultpreemption.DefaultPreemption) {
	preempt := upstream.Executor.PreemptPod
	upstream.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, by preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) (inMemory bool, err error) {
		err = p.counted(ctx, c.Name(), single(by), victim, func() error {
			inMemory, err = preempt(ctx, c, by, victim, plugin)
			return err
		})
		return inMemory, err
	}
}
