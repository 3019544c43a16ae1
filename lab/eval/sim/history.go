package sim

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// replaceScheduler does what an administrator does who changes the policy: the new scheduler
// reads what nodes report, and which pods there are.
func (r *run) replaceScheduler(ctx context.Context, policy Policy, random *rand.Rand) error {
	old := r.scheduler
	if err := r.startScheduler(ctx, policy, random); err != nil {
		return err
	}
	for _, set := range old.Sets.List() {
		if err := r.scheduler.Sets.Add(set); err != nil {
			return err
		}
	}
	for _, m := range r.order {
		if err := r.scheduler.Nodes.Set(nil, r.objects[m.Name]); err != nil {
			return err
		}
	}
	var pods []*v1.Pod
	for _, object := range old.Pods.GetIndexer().List() {
		pods = append(pods, object.(*v1.Pod)) // nothing else is put there
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	for _, pod := range pods {
		if err := r.scheduler.Pods.Set(nil, pod); err != nil {
			return err
		}
	}
	return nil
}

// count begins what metrics are about: what was before is history.
func (r *run) count(plan *workload.Plan) {
	r.from, r.before = r.q.now, r.created
	r.startups, r.balance = nil, evaluation.Balance{}
	for _, m := range r.order {
		m.pulled, m.fromPeers, m.removed = 0, 0, 0
	}
	r.distinct = r.missingAnywhere(plan)
}

// missingAnywhere returns the bytes of the layers that pods of the plan need from now on and
// that no node has or will bring along, each layer once.
func (r *run) missingAnywhere(plan *workload.Plan) (bytes int64) {
	there := map[string]bool{}
	for _, m := range r.order {
		for b := range m.present {
			there[b.digest] = true
		}
	}
	add := func(name string) {
		for _, b := range r.images[name].layers {
			if !there[b.digest] {
				there[b.digest] = true
				bytes += b.size
			}
		}
	}
	for _, e := range plan.Events {
		if e.At >= plan.History && e.Join != nil {
			for _, name := range e.Join.Holds {
				add(name)
			}
		}
	}
	bytes = 0 // what nodes bring is not missing
	for _, e := range plan.Events {
		switch {
		case e.At < plan.History:
		case e.Pod != nil:
			add(e.Pod.Image)
		case e.Deploy != nil && e.Deploy.Replicas > 0:
			add(e.Deploy.Image)
		}
	}
	return bytes
}
