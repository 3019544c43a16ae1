package qosaware

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// cluster plays a cluster in virtual time: queue, rules, admission, victims and the choice of
// nodes are the plugin's own; nodes have room for some pods of any kind, each pod is replaced when
// it is preempted, and is ready a second after it has a node.
type cluster struct {
	*ledger.Ledger
	fwk.Handle // for what is not needed here

	t         *testing.T
	args      *config.QosAwareArgs
	clock     *clocktesting.FakePassiveClock
	keys      *keys
	preemptor *preemptor
	nodes     []*framework.NodeInfo
	room      int // of a node
	waiting   []*framework.QueuedPodInfo
	ready     map[types.UID]time.Time
	made      int
	replicas  map[types.UID]int // of owners; of others 1
	preempted map[reason]int
	waited    map[string]time.Duration // of a pod that got a place, the longest by its workload
}

func newCluster(t *testing.T, nodes, room int, set func(*configv1.QosAwareArgs)) *cluster {
	c := &cluster{
		t: t, args: frameworktest.Args(t, &configv1.QosAwareArgs{}, &config.QosAwareArgs{}, set), clock: clocktesting.NewFakePassiveClock(start),
		room: room, ready: map[types.UID]time.Time{}, preempted: map[reason]int{}, waited: map[string]time.Duration{},
		replicas: map[types.UID]int{},
	}
	c.Ledger = ledger.New(ledger.Config{Args: c.args, Clock: c.clock, Owners: func(_ string, owner metav1.OwnerReference) (ledger.Owner, bool) {
		return ledger.Owner{Replicas: cmp.Or(c.replicas[owner.UID], 1)}, true
	}})
	r := newRules(c.args)
	c.keys = &keys{rules: r, respectPriority: c.args.RespectPriority, states: ledger.NewReader(c.args).States, judge: c.Judge, now: c.Now, byID: map[types.UID]*queueEntry{}}
	c.preemptor = &preemptor{handle: c, rules: r, judge: c.Judge, now: c.Now, limit: &limit{most: int(c.args.MaxPreemptionsPerMinute)}}
	for i := range nodes {
		node := framework.NewNodeInfo()
		node.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}})
		c.nodes = append(c.nodes, node)
	}
	return c
}

func (c *cluster) RunPreFilterExtensionRemovePod(context.Context, fwk.CycleState, *v1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status {
	return nil
}

func (c *cluster) RunPreFilterExtensionAddPod(context.Context, fwk.CycleState, *v1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status {
	return nil
}

func (c *cluster) RunFilterPluginsWithNominatedPods(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if len(node.GetPods()) < c.room {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, "full")
}

// add makes a pod of a workload; without SLO it has none.
func (c *cluster) add(workload, slo string, priority int32) *v1.Pod {
	c.made++
	name := fmt.Sprint(workload, "-", c.made)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID(name), ResourceVersion: "1", CreationTimestamp: metav1.NewTime(c.clock.Now()),
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: workload, UID: types.UID(workload), Controller: ptr.To(true)}},
	}}
	pod.Spec.Priority = ptr.To(priority)
	if slo != "" {
		pod.Annotations = map[string]string{ledger.AnnotationSLO: slo}
	}
	if err := c.Observe(pod); err != nil {
		c.t.Fatal(err)
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		c.t.Fatal(err)
	}
	waiting := &framework.QueuedPodInfo{PodInfo: info}
	waiting.Timestamp, waiting.InitialAttemptTimestamp = c.clock.Now(), ptr.To(c.clock.Now())
	c.waiting = append(c.waiting, waiting)
	return pod
}

// remove ends a pod that has a node.
func (c *cluster) remove(node fwk.NodeInfo, pod *v1.Pod) {
	if err := node.RemovePod(klog.Background(), pod); err != nil {
		c.t.Fatal(err)
	}
	c.Remove(pod)
	delete(c.ready, pod.UID)
}

// place gives a pod a node.
func (c *cluster) place(info *framework.QueuedPodInfo, node *framework.NodeInfo) {
	now := metav1.NewTime(c.clock.Now())
	c.keys.placed(info.Pod)
	c.served(info.Pod)
	pod := info.Pod.DeepCopy()
	pod.Spec.NodeName = node.Node().Name
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: now}}
	if err := c.Observe(pod); err != nil {
		c.t.Fatal(err)
	}
	node.AddPod(pod)
	c.ready[pod.UID] = now.Add(time.Second)
	c.waiting = slices.DeleteFunc(c.waiting, func(other *framework.QueuedPodInfo) bool { return other == info })
}

// second lets a second pass: pods become ready, and those that wait are tried, all of them if there
// is room and otherwise, every five seconds, those that the plugin has tried again.
func (c *cluster) second() {
	c.clock.SetTime(c.clock.Now().Add(time.Second))
	now := c.clock.Now()
	free := false
	for _, node := range c.nodes {
		free = free || len(node.GetPods()) < c.room
		for _, info := range node.GetPods() {
			pod := info.GetPod()
			if at, starts := c.ready[pod.UID]; starts && !now.Before(at) {
				pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)})
				_ = c.Observe(pod)
				delete(c.ready, pod.UID)
			}
		}
	}
	again := int(now.Sub(start).Seconds())%5 == 0
	if again {
		c.Admit()
		c.keys.sweep(func(uid types.UID, _ types.NamespacedName) bool {
			return slices.ContainsFunc(c.waiting, func(i *framework.QueuedPodInfo) bool { return i.Pod.UID == uid })
		})
	}
	queue := slices.Clone(c.waiting)
	if !free { // new ones and, every five seconds, those that reconsider has tried again
		var names []types.NamespacedName
		if again {
			wanted := func(j *ledger.Judgement) bool { return c.keys.rules.urgent(j) || c.keys.rules.turn(j) }
			names = c.Waiting(wanted, c.keys.rules.compare)
			names = names[:min(len(names), maxActivated)]
		}
		queue = slices.DeleteFunc(queue, func(info *framework.QueuedPodInfo) bool {
			return info.Attempts > 0 && !slices.Contains(names, types.NamespacedName{Namespace: info.Pod.Namespace, Name: info.Pod.Name})
		})
	}
	for _, info := range queue {
		info.Attempts++
	}
	slices.SortFunc(queue, func(a, b *framework.QueuedPodInfo) int { return boolean(c.keys.less(a, b), -1, 1) })
	for i, info := range queue {
		node := slices.MinFunc(c.nodes, func(a, b *framework.NodeInfo) int { return cmp.Compare(len(a.GetPods()), len(b.GetPods())) })
		if len(node.GetPods()) == c.room {
			node = c.preempt(info.Pod)
		}
		if node != nil {
			c.place(info, node)
		} else {
			info.Timestamp = now.Add(time.Duration(i)) // it goes to the end of its kind, as upstream has it
		}
	}
}

// preempt makes room for a pod, and returns the node; nil if nobody has to go.
func (c *cluster) preempt(pod *v1.Pod) *framework.NodeInfo {
	c.NoRoom(pod.UID, true)
	p, ctx := c.preemptor, c.t.Context()
	p.choices.begin(pod.UID, c.clock.Now())
	victims := map[string]*extenderv1.Victims{}
	for _, node := range c.nodes {
		pods, _, status := p.selectVictims(ctx, nil, pod, node.SnapshotConcrete(), nil, func(*v1.Pod) bool { return false })
		if status.IsSuccess() {
			victims[node.Node().Name] = &extenderv1.Victims{Pods: pods}
		}
	}
	var best *framework.NodeInfo
	scores := p.OrderedScoreFuncs(ctx, victims)
	for _, node := range c.nodes {
		if victims[node.Node().Name] == nil {
			continue
		}
		if best == nil {
			best = node
			continue
		}
		for _, score := range scores {
			if a, b := score(node.Node().Name), score(best.Node().Name); a != b {
				if a > b {
					best = node
				}
				break
			}
		}
	}
	if best == nil {
		return nil
	}
	p.preempted = func(why reason) { c.preempted[why]++ }
	for _, victim := range victims[best.Node().Name].Pods {
		if err := p.counted(ctx, best.Node().Name, pod, victim, func() error {
			c.remove(best, victim)
			c.add(victim.OwnerReferences[0].Name, victim.Annotations[ledger.AnnotationSLO], *victim.Spec.Priority)
			return nil
		}); err != nil {
			c.t.Fatal(err)
		}
	}
	return best
}

// TestOverload plays the published experiment, with as many workloads as there is room for and
// with more: 100 of SLO 1 and a higher priority, others of SLO .5, room for 200, half an hour.
func TestOverload(t *testing.T) {
	for _, silver := range []int{160, 200} {
		c := newCluster(t, 20, 10, func(a *configv1.QosAwareArgs) { a.MinimumRunningTime = &metav1.Duration{Duration: 30 * time.Second} })
		random := rand.New(rand.NewPCG(1, uint64(silver)))
		for _, i := range random.Perm(100 + silver) {
			if i < 100 {
				c.add(fmt.Sprint("gold-", i), "1", 1)
			} else {
				c.add(fmt.Sprint("silver-", i), "0.5", 0)
			}
		}
		for range 1800 {
			c.second()
		}
		met, starved, gold := 0, 0, 1.
		for _, row := range c.Rows(false) {
			switch got := row.Sums.Service(); {
			case row.Terms.SLO == 1:
				gold = min(gold, got)
			case got >= row.Terms.SLO:
				met++
			case got == 0:
				starved++
			}
		}
		t.Logf("100 + %d: overload_met=%d gold_min=%.4f starved=%d; %+v; preempted %v; longest wait %v",
			silver, met, gold, starved, c.Admission(), c.preempted, slices.Max(slices.Collect(maps.Values(c.waited))))
		if want := map[int]int{160: 160, 200: 140}[silver]; met < want || gold < .995 || starved > 0 {
			t.Errorf("100 + %d: %d of SLO .5 got it, want %d; SLO 1 got %.4f, want .995; %d got nothing", silver, met, want, gold, starved)
		}
	}
}

// TestNobodyStarves has a full cluster in which a pod ends every minute, and a workload comes. Neither
// a pod without SLO nor any workload waits for ever, and who deletes a pod and makes it again is served
// later than who came after it.
func TestNobodyStarves(t *testing.T) {
	for _, slo := range []string{"0.5", "0.9", "1"} {
		t.Run(slo, func(t *testing.T) { nobodyStarves(t, slo, false, true) })
	}
	// The pods that end are made again, and nobody is preempted.
	t.Run("made again", func(t *testing.T) { nobodyStarves(t, "0.64", true, false) })
	// As many urgent ones come as places become free: without turns, no other pod would ever get one.
	t.Run("always urgent", func(t *testing.T) { nobodyStarves(t, "0.5", false, false) })
}

// plain is how many pods without an SLO wait in nobodyStarves.
const plain = 3

func nobodyStarves(t *testing.T, slo string, again, preempts bool) {
	c := newCluster(t, 2, 10, func(a *configv1.QosAwareArgs) {
		if !preempts {
			a.MaxPreemptionsPerMinute = ptr.To[int32](0)
		}
	})
	for i := range 20 {
		c.add(fmt.Sprint("first-", i), slo, 0)
	}
	c.second()
	for _, workload := range []string{"a", "b", "c", "d", "hasty", "patient", "e", "f"} {
		c.add(workload, slo, 0)
	}
	for range plain {
		c.add("plain", "", 0)
	}
	backlog := len(c.waiting)
	served := map[string]int{} // in which minute
	for minute := range 12 * 60 {
		if i := slices.IndexFunc(c.waiting, func(info *framework.QueuedPodInfo) bool { return info.Pod.OwnerReferences[0].Name == "hasty" }); i >= 0 && served["hasty"] == 0 {
			c.Remove(c.waiting[i].Pod)
			c.waiting = slices.Delete(c.waiting, i, i+1)
			c.add("hasty", slo, 0)
		}
		node := c.nodes[minute%2]
		oldest := slices.MinFunc(node.GetPods(), func(a, b fwk.PodInfo) int {
			return a.GetPod().CreationTimestamp.Compare(b.GetPod().CreationTimestamp.Time)
		}).GetPod()
		c.remove(node, oldest)
		if again {
			c.add(oldest.OwnerReferences[0].Name, oldest.Annotations[ledger.AnnotationSLO], 0)
		} else {
			c.add(fmt.Sprint("w-", minute), slo, 0)
		}
		for range 60 {
			c.second()
		}
		for workload := range c.waited {
			if served[workload] == 0 {
				served[workload] = minute + 1
			}
		}
	}
	for _, info := range c.waiting {
		c.served(info.Pod) // until now, at least
	}
	longest := slices.Max(slices.Collect(maps.Values(c.waited)))
	t.Logf("longest wait %v, without SLO %v; patient was served in minute %d, hasty in %d; %+v; preempted %v", longest, c.waited["plain"], served["patient"], served["hasty"], c.Admission(), c.preempted)
	// After longWait, one of ten places is for who waits longest: each of them is served after ten places for
	// each that waited before it, at a place a minute.
	if most := c.args.LongWait.Duration + time.Duration(oneOf*(backlog+1))*time.Minute; longest > most {
		t.Errorf("the longest wait was %v, want at most %v", longest, most)
	}
	// A pod without an SLO gets only places that become free.
	if most := c.args.LongWait.Duration + plain*oneOf*time.Minute; c.waited["plain"] > most {
		t.Errorf("pods without SLO waited %v, want at most %v", c.waited["plain"], most)
	}
	if served["hasty"] < served["patient"] {
		t.Errorf("who makes its pod again each minute is served in minute %d, who does not in %d", served["hasty"], served["patient"])
	}
}

// served notes how long a pod waited.
func (c *cluster) served(pod *v1.Pod) {
	workload := pod.OwnerReferences[0].Name
	c.waited[workload] = max(c.waited[workload], c.clock.Now().Sub(pod.CreationTimestamp.Time))
}
