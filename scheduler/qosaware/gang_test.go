//go:build !kubernetes1.35

package qosaware

import (
	"fmt"
	"maps"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// grouped makes a pod one of a PodGroup, all of which have to run at once.
func grouped(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
	return pod
}

// TestGangIsBeingPlaced checks who may end a ready pod of a group, with the arguments' defaults: while the
// others of it are on their way nobody but who has a larger SLO and is urgent, and when one of them has had no
// node for minimumRunningTime, whoever needs the place.
func TestGangIsBeingPlaced(t *testing.T) {
	c := newCluster(t, 2, 10, nil)
	c.replicas["gang"] = 3
	gang := make([]*v1.Pod, 3)
	for i := range gang {
		gang[i] = grouped(c.add(fmt.Sprint("gang-", i), "0.5", 0))
		gang[i].OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "gang", UID: "gang", Controller: ptr.To(true)}}
		c.Remove(gang[i]) // it was made without them
		gang[i].UID += "-of-gang"
		gang[i].Annotations[ledger.AnnotationMeasuring] = string(account.Concurrent)
		_ = c.Observe(gang[i])
	}
	ready := func(pod *v1.Pod) {
		pod.Spec.NodeName = "node-0"
		for _, condition := range []v1.PodConditionType{v1.PodScheduled, v1.PodReady} {
			pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: condition, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.clock.Now())})
		}
		_ = c.Observe(pod)
	}
	ready(gang[0])
	urgent, larger := c.add("urgent", "0.4", 0), c.add("larger", "0.9", 0)
	lazy := c.add("lazy", "0.4", 0)
	ready(c.add("lazy", "0.4", 0)) // so the other one can wait
	check := func(when string, preemptor *v1.Pod, want reason) {
		t.Helper()
		p, _ := c.Judge(preemptor, c.Now())
		v, _ := c.Judge(gang[0], c.Now())
		if got := c.keys.rules.preempts(&p, &v); got != want {
			t.Errorf("%s, for %s: %q, want %q; urgent %t, victim gains nothing %t and ran for %v", when, preemptor.Name, got, want, c.keys.rules.urgent(&p), v.GainsNothing, v.Ran)
		}
	}
	to := func(d time.Duration) { c.clock.SetTime(start.Add(d)) }
	to(2 * time.Second)
	check("one has just become ready", urgent, notAllowed)
	check("one has just become ready", larger, largerSLO)
	to(299 * time.Second)
	check("after 299 s", urgent, notAllowed)
	to(301 * time.Second)
	check("after 301 s", urgent, inVain)
	check("after 301 s", lazy, notAllowed)
	gang[1].Status.NominatedNodeName = "node-0" // its victim ends
	_ = c.Observe(gang[1])
	check("one of two is nominated", urgent, inVain)
	c.Reserved(gang[2].UID) // it waits at Permit for the others of its PodGroup
	check("all are on their way", urgent, notAllowed)
	c.Unreserved(gang[2].UID)
	check("one was not permitted after all", urgent, inVain)
}

// group is a PodGroup that preempts others.
type group struct{}

func (group) GetNamespace() string { return "default" }
func (group) GetName() string      { return "gang" }

// TestPodGroupsPreemptByPriority checks that what is preempted for a group is upstream's choice: it
// is no preemption for an SLO, and no limit counts it.
func TestPodGroupsPreemptByPriority(t *testing.T) {
	counts := map[reason]int{}
	p := &preemptor{limit: &limit{most: 1}, now: func() time.Time { return start }, preempted: func(why reason) { counts[why]++ }}
	for range 3 {
		if err := p.counted(t.Context(), "n1", group{}, queued("victim", 5, 0, "0.5").Pod, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if !maps.Equal(counts, map[reason]int{byPriority: 3}) || p.limit.left(start) != 1 {
		t.Errorf("counted %v, %d are left", counts, p.limit.left(start))
	}
}
