package qosaware

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// preemptor decides who is preempted for whom. Upstream's Evaluator and Executor do the rest:
// the search over nodes, extenders, nominations, API calls, asynchronously or not.
type preemptor struct {
	*defaultpreemption.DefaultPreemption // numbers of candidates
	handle                               fwk.Handle
	rules                                rules
	judge                                func(*v1.Pod, time.Time) (ledger.Judgement, bool)
	now                                  func() time.Time
	limit                                *limit
	choices                              choices
	preempted                            func(reason)
}

var _ preemption.Interface = &preemptor{}

// newPreemptor puts the rules into upstream's preemption.
func newPreemptor(handle fwk.Handle, upstream *defaultpreemption.DefaultPreemption, p *preemptor) {
	p.handle, p.DefaultPreemption = handle, upstream
	upstream.Evaluator.PluginName, upstream.Evaluator.Interface = Name, p
	p.count(upstream)
}

// counted preempts a pod on a node for another one, or for a group of pods, and counts it if that did not fail. It
// does not look at the limit, which counted when the victims were chosen: of those that make room
// together all have to go, or some went for nothing.
func (p *preemptor) counted(ctx context.Context, node string, by klog.KMetadata, victim *v1.Pod, preempt func() error) error {
	now, why := p.now(), byPriority
	if pod, ok := by.(*v1.Pod); ok && corev1helpers.PodPriority(pod) <= corev1helpers.PodPriority(victim) {
		why = p.choices.why(pod.UID, victim.UID)
		p.limit.take(now)
		if why == byTurn {
			p.rules.turns.take()
		}
	}
	err := preempt()
	switch {
	case err == nil:
		p.preempted(why)
		klog.FromContext(ctx).V(decisions.Refusals).Info("Preempted a pod", "plugin", Name, "preemptor", klog.KObj(by), "victim", klog.KObj(victim), "node", klog.KRef("", node), "reason", why)
	case why != byPriority:
		p.limit.giveBack(now)
	}
	return err
}

// executed is what upstream's Executor preempts for.
type executed interface {
	klog.KMetadata
	Type() string
	Pods() map[string]*v1.Pod
}

// single returns the pod that preempts, or the group of pods.
func single(by executed) klog.KMetadata {
	if by.Type() == "pod" {
		for _, pod := range by.Pods() {
			return pod
		}
	}
	return by
}

var errLimit = errors.New("as many pods were preempted for SLOs in the last minute as maxPreemptionsPerMinute allows")

// choices have why pods may be preempted for the SLO of another one, as it was when they were
// looked for: the end of the first victim changes what is true of the next.
type choices struct {
	mu    sync.Mutex
	byPod map[types.UID]choice
}

// choice is why which victims may be preempted for one pod.
type choice struct {
	since time.Time
	why   map[types.UID]reason
}

// keepChoices is for how long a preemption may take until it is not known any more why.
const keepChoices = time.Minute

// begin forgets what was true of a pod before, and what is old of others.
func (c *choices) begin(pod types.UID, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.byPod, func(_ types.UID, old choice) bool { return now.Sub(old.since) >= keepChoices })
	if c.byPod == nil {
		c.byPod = map[types.UID]choice{}
	}
	c.byPod[pod] = choice{since: now, why: map[types.UID]reason{}}
}

// note notes why a victim may be preempted.
func (c *choices) note(pod, victim types.UID, why reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.byPod[pod]; ok {
		known.why[victim] = why
	}
}

// why returns why; secure, the usual reason, if that is not known any more.
func (c *choices) why(pod, victim types.UID) reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.byPod[pod].why[victim], secure)
}

// candidateVictim is a pod that may be preempted.
type candidateVictim struct {
	info     fwk.PodInfo
	pod      *v1.Pod
	priority int32
	// judged is nil if the pod has no SLO.
	judged *ledger.Judgement
	// bySLO is why it may be preempted although its priority is not lower.
	bySLO    reason
	endsSoon bool
}

// rank puts pods that are to be spared before others.
func (p *preemptor) rank(a, b *candidateVictim) int {
	if a.endsSoon != b.endsSoon {
		return boolean(a.endsSoon, 1, -1)
	}
	if a.priority != b.priority {
		return cmp.Compare(b.priority, a.priority)
	}
	inVain := func(v *candidateVictim) bool { return v.judged != nil && p.rules.inVain(v.judged) }
	if inVain(a) != inVain(b) {
		return boolean(inVain(a), 1, -1)
	}
	class := func(v *candidateVictim) int { // an urgent SLO, none, one that can wait, one that is not admitted
		switch {
		case v.judged != nil && v.judged.Refused:
			return 3
		case v.judged == nil:
			return 1
		case p.rules.urgent(v.judged):
			return 0
		default:
			return 2
		}
	}
	if order := cmp.Compare(class(a), class(b)); order != 0 {
		return order
	}
	if a.judged != nil {
		if order := p.rules.compare(a.judged, b.judged); order != 0 {
			return order
		}
	}
	return boolean(util.MoreImportantPod(a.pod, b.pod), -1, boolean(util.MoreImportantPod(b.pod, a.pod), 1, 0))
}

func boolean(condition bool, yes, no int) int {
	if condition {
		return yes
	}
	return no
}

// victims returns the pods of a node that may be preempted for a pod and are not spared: upstream's choice, and
// beyond it what the SLOs allow.
func (p *preemptor) victims(pod *v1.Pod, node fwk.NodeInfo, spared func(*v1.Pod) bool) []candidateVictim {
	now, priority := p.now(), corev1helpers.PodPriority(pod)
	own, hasSLO := p.judge(pod, now)
	bySLO := hasSLO && (!own.Refused || p.rules.turn(&own)) && p.limit.left(now) > 0
	var all []candidateVictim
	for _, info := range node.GetPods() {
		v := candidateVictim{info: info, pod: info.GetPod(), priority: corev1helpers.PodPriority(info.GetPod())}
		if v.priority > priority || v.priority == priority && !bySLO || spared(v.pod) {
			continue
		}
		v.endsSoon = p.endsSoon(v.pod, now)
		if j, ok := p.judge(v.pod, now); ok {
			v.judged = &j
		}
		if v.priority == priority {
			if v.judged == nil {
				continue
			}
			// A pod that is terminating anyway costs nothing.
			if v.bySLO = p.rules.preempts(&own, v.judged); v.bySLO == notAllowed && !terminating(v.pod) {
				continue
			}
		}
		all = append(all, v)
	}
	slices.SortStableFunc(all, func(a, b candidateVictim) int { return p.rank(&a, &b) })
	return all
}

func terminating(pod *v1.Pod) bool { return pod.DeletionTimestamp != nil }

// endsSoon reports whether a pod makes room by itself within the safety margin: nothing is gained by sparing it, and
// nothing lost. One with a longer grace period holds its node for that long, and one that should have ended long ago
// may never do.
func (p *preemptor) endsSoon(pod *v1.Pod, now time.Time) bool {
	return terminating(pod) && math.Abs(pod.DeletionTimestamp.Sub(now).Seconds()) <= p.rules.margin
}

// selectVictims finds the pods that have to go from a node so that a pod fits: it takes
// away all that may be preempted, and puts them back one by one as long as the pod fits,
// first those whose disruption budget would be violated, then who is most to be spared.
func (p *preemptor) selectVictims(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, budgets []*policy.PodDisruptionBudget, spared func(*v1.Pod) bool) ([]*v1.Pod, int, *fwk.Status) {
	room := &room{handle: p.handle, state: state, pod: pod, node: node}
	all := p.victims(pod, node, spared)
	if len(all) == 0 {
		return nil, 0, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "no pod of the node may be preempted for this one")
	}
	for _, v := range all {
		if err := room.take(ctx, v.info); err != nil {
			return nil, 0, fwk.AsStatus(err)
		}
	}
	if status := room.fits(ctx); !status.IsSuccess() {
		return nil, 0, status
	}
	var chosen []candidateVictim
	violations, bySLO := 0, 0
	protected, others := splitByBudget(all, budgets)
	for i, v := range append(protected, others...) {
		back, err := room.giveBack(ctx, v.info)
		if err != nil {
			return nil, 0, fwk.AsStatus(err)
		}
		if back {
			continue
		}
		chosen = append(chosen, v)
		violations += boolean(i < len(protected), 1, 0)
		if v.bySLO != notAllowed && !terminating(v.pod) {
			bySLO++
			p.choices.note(pod.UID, v.pod.UID, v.bySLO)
		}
	}
	logger := klog.FromContext(ctx).WithValues("plugin", Name, "pod", klog.KObj(pod), "node", klog.KObj(node.Node()))
	if bySLO > p.limit.left(p.now()) {
		logger.V(decisions.Nodes).Info("No victims on a node", "reason", errLimit.Error())
		return nil, 0, fwk.NewStatus(fwk.Unschedulable, errLimit.Error())
	}
	// The Evaluator expects those with the highest priority first.
	slices.SortStableFunc(chosen, func(a, b candidateVictim) int { return p.rank(&a, &b) })
	pods := make([]*v1.Pod, len(chosen))
	for i, v := range chosen {
		pods[i] = v.pod
	}
	logger.V(decisions.Nodes).Info("Victims on a node", "victims", klog.KObjSlice(pods), "forSLO", bySLO)
	return pods, violations, nil
}

// room is a copy of a node, from which pods are taken away to see whether a pod fits then.
type room struct {
	handle fwk.Handle
	state  fwk.CycleState
	pod    *v1.Pod
	node   fwk.NodeInfo
}

func (r *room) take(ctx context.Context, info fwk.PodInfo) error {
	if err := r.node.RemovePod(klog.FromContext(ctx), info.GetPod()); err != nil {
		return err
	}
	return r.handle.RunPreFilterExtensionRemovePod(ctx, r.state, r.pod, info, r.node).AsError()
}

func (r *room) fits(ctx context.Context) *fwk.Status {
	return r.handle.RunFilterPluginsWithNominatedPods(ctx, r.state, r.pod, r.node)
}

// giveBack puts a pod back, unless the other one does not fit any more.
func (r *room) giveBack(ctx context.Context, info fwk.PodInfo) (bool, error) {
	r.node.AddPodInfo(info)
	if err := r.handle.RunPreFilterExtensionAddPod(ctx, r.state, r.pod, info, r.node).AsError(); err != nil {
		return false, err
	}
	if r.fits(ctx).IsSuccess() {
		return true, nil
	}
	return false, r.take(ctx, info)
}

// splitByBudget returns the pods whose end would violate a PodDisruptionBudget, if all before
// them ended, too, and the others, both in the same order.
func splitByBudget(all []candidateVictim, budgets []*policy.PodDisruptionBudget) (violating, others []candidateVictim) {
	type budget struct {
		namespace string
		selector  labels.Selector
		disrupted map[string]metav1.Time
		left      int32
	}
	var known []budget
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() { // selects nothing, as everywhere
			continue
		}
		known = append(known, budget{b.Namespace, selector, b.Status.DisruptedPods, b.Status.DisruptionsAllowed})
	}
	for _, v := range all {
		if v.endsSoon { // with or without its budget
			others = append(others, v)
			continue
		}
		violates := false
		for i := range known {
			b := &known[i]
			if b.namespace != v.pod.Namespace || len(v.pod.Labels) == 0 || !b.selector.Matches(labels.Set(v.pod.Labels)) {
				continue
			}
			if _, counted := b.disrupted[v.pod.Name]; counted {
				continue
			}
			b.left--
			violates = violates || b.left < 0
		}
		if violates {
			violating = append(violating, v)
		} else {
			others = append(others, v)
		}
	}
	return violating, others
}

// PodEligibleToPreemptOthers returns false, and why, for a pod that may not preempt, and for
// one whose victims are still terminating.
func (p *preemptor) PodEligibleToPreemptOthers(ctx context.Context, pod *v1.Pod, nominated *fwk.Status) (bool, string) {
	if ok, why := p.DefaultPreemption.PodEligibleToPreemptOthers(ctx, pod, nominated); !ok {
		return false, why
	}
	p.choices.begin(pod.UID, p.now())
	name := pod.Status.NominatedNodeName
	if name == "" || nominated.Code() == fwk.UnschedulableAndUnresolvable {
		return true, ""
	}
	now := p.now()
	if _, hasSLO := p.judge(pod, now); !hasSLO {
		return true, ""
	}
	node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(name)
	if err != nil {
		return true, "" // it is gone
	}
	for _, info := range node.GetPods() {
		other := info.GetPod()
		if !preemptedBefore(other) || corev1helpers.PodPriority(other) > corev1helpers.PodPriority(pod) {
			continue
		}
		if _, ok := p.judge(other, now); ok {
			return false, "a preempted pod on the nominated node has not ended yet"
		}
	}
	return true, ""
}

// preemptedBefore reports whether a pod is terminating because a scheduler preempted it.
func preemptedBefore(pod *v1.Pod) bool {
	return terminating(pod) && slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
	})
}

// OrderedScoreFuncs returns by what a node is chosen: the fewest violated budgets, the lowest
// priority, and then whose end costs least: victims that all lose nothing; SLO by SLO from
// the largest, how far its victims are from safety; the same for all victims; the fewest
// victims. Without a victim that has an SLO, upstream chooses.
func (p *preemptor) OrderedScoreFuncs(_ context.Context, victims map[string]*extenderv1.Victims) []func(string) int64 {
	now := p.now()
	costs := map[string]*cost{}
	classes := map[float64]bool{}
	for node, v := range victims {
		c := &cost{bySLO: map[float64]float64{}, nothing: true}
		costs[node] = c
		for _, pod := range v.Pods {
			j, ok := p.judge(pod, now)
			if ok {
				classes[j.Terms.SLO] = true
			}
			if p.endsSoon(pod, now) {
				continue
			}
			if ok && !p.losesNothing(&j) {
				c.add(&j, p.rules.margin)
			}
			c.nothing = c.nothing && ok && p.losesNothing(&j)
		}
	}
	if len(classes) == 0 {
		return nil
	}
	scores := []func(string) int64{
		func(node string) int64 { return -victims[node].NumPDBViolations },
		func(node string) int64 { return -int64(corev1helpers.PodPriority(victims[node].Pods[0])) },
		func(node string) int64 { return int64(boolean(costs[node].nothing, 1, 0)) },
	}
	slos := make([]float64, 0, len(classes))
	for slo := range classes {
		slos = append(slos, slo)
	}
	slices.SortFunc(slos, func(a, b float64) int { return cmp.Compare(b, a) })
	for _, slo := range slos {
		scores = append(scores, func(node string) int64 { return milliseconds(costs[node].bySLO[slo]) })
	}
	return append(scores,
		func(node string) int64 { return milliseconds(costs[node].all) },
		func(node string) int64 { return -int64(len(victims[node].Pods)) })
}

// cost is what is lost if the victims of a node end, in seconds: the smaller, the worse.
type cost struct {
	// bySLO are the sums of how far urgent victims are below the safety margin.
	bySLO map[float64]float64
	// all is the sum over all victims.
	all float64
	// nothing means that all victims lose nothing of what they were promised.
	nothing bool
}

// losesNothing reports whether a victim gains nothing, or was promised nothing.
func (p *preemptor) losesNothing(j *ledger.Judgement) bool { return p.rules.inVain(j) || j.Refused }

// add adds a victim that loses something.
func (c *cost) add(j *ledger.Judgement, margin float64) {
	distance := j.Metric - margin
	if distance < 0 {
		c.bySLO[j.Terms.SLO] += distance
	}
	c.all += distance
}

// milliseconds returns seconds as a score.
func milliseconds(seconds float64) int64 {
	const most = 1 << 53
	return int64(math.Max(-most, math.Min(most, seconds*1000)))
}

// limit allows so many preemptions in a minute. It is looked at before victims are chosen, so
// a choice that follows before the one before it is carried out may exceed it.
type limit struct {
	most int

	mu    sync.Mutex
	times []time.Time // of the last minute, in order
}

// left returns how many are allowed now; negative if there were too many.
func (l *limit) left(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most - l.recentLocked(now)
}

// take notes one.
func (l *limit) take(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recentLocked(now)
	l.times = append(l.times, now)
}

// giveBack forgets one that was noted at a time, and failed.
func (l *limit) giveBack(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.times, at); i >= 0 {
		l.times = slices.Delete(l.times, i, i+1)
	}
}

func (l *limit) recentLocked(now time.Time) int {
	old := 0
	for old < len(l.times) && now.Sub(l.times[old]) >= time.Minute {
		old++
	}
	l.times = l.times[old:]
	return len(l.times)
}
