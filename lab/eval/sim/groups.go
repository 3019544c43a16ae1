package sim

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// gather places a pod of a group with the others, which come at the same moment.
func (r *run) gather(p *pod) {
	r.groups[p.group] = append(r.groups[p.group], p)
	if len(r.groups[p.group]) > 1 {
		return
	}
	r.q.at(r.q.now, func() {
		pods := r.groups[p.group]
		delete(r.groups, p.group)
		objects := make([]*v1.Pod, len(pods))
		for i := range pods {
			objects[i] = pods[i].object
		}
		nodes, err := r.scheduler.ScheduleGroup(objects)
		if err == nil && nodes == nil {
			err = fmt.Errorf("group %s of %d pods fits in no rack", p.group, len(pods))
		}
		if r.fail(err); err != nil {
			return
		}
		for i := range pods {
			r.bind(pods[i], nodes[i])
		}
	})
}
