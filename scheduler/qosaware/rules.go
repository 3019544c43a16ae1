package qosaware

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// rules decide who is served before whom, and who may be preempted for whom, without
// priorities, nodes and budgets.
type rules struct {
	// margin is the metric, in seconds, below which a workload is urgent.
	margin float64
	// minimum is how long ago a pod began to run before most rules let it be preempted.
	minimum time.Duration
	// longWait is after how long a pod to which nothing is promised has its turn.
	longWait time.Duration
	turns    *turns
}

func newRules(args *config.QosAwareArgs) rules {
	return rules{margin: args.SafetyMargin.Seconds(), minimum: args.MinimumRunningTime.Duration, longWait: args.LongWait.Duration, turns: &turns{}}
}

func (r rules) urgent(j *ledger.Judgement) bool { return !j.Refused && j.Metric < r.margin }

// inVain reports whether a running pod gains nothing, and has not for so long that nobody can say
// its workload is only being placed, one pod after the other.
func (r rules) inVain(j *ledger.Judgement) bool { return j.GainsNothing && j.Ran >= r.minimum }

// turn reports whether it is the turn of a pod whose SLO is not admitted.
func (r rules) turn(j *ledger.Judgement) bool {
	return j.Refused && j.Waited >= r.longWait && r.turns.open()
}

// turns give one of every so many places to pods that have waited for long: others would always
// be more urgent.
type turns struct{ others atomic.Int32 }

// oneOf is of how many places one is theirs.
const oneOf = 10

// open reports whether the next place is theirs.
func (t *turns) open() bool { return t.others.Load() >= oneOf-1 }

// take notes that one of them got a place. More than one may get it at once: then the others have
// as many places more before the next turn.
func (t *turns) take() { t.others.Add(1 - oneOf) }

// pass notes that another pod got a place.
func (t *turns) pass() {
	if !t.open() {
		t.others.Add(1)
	}
}

// compare returns a negative number if the first is served before the second, 0 if neither.
func (r rules) compare(a, b *ledger.Judgement) int {
	switch {
	case a.Refused != b.Refused:
		return boolean(b.Refused, -1, 1)
	case a.Refused && a.Waited != b.Waited:
		return cmp.Compare(b.Waited, a.Waited)
	case r.urgent(a) && r.urgent(b) && a.Terms.SLO != b.Terms.SLO:
		return cmp.Compare(b.Terms.SLO, a.Terms.SLO)
	default:
		return cmp.Compare(a.Metric, b.Metric)
	}
}

// reason is why a pod may be preempted.
type reason string

// The reasons, as in the metric.
const (
	// notAllowed: it may not.
	notAllowed reason = ""
	// byPriority: it has a lower priority, upstream's own rule.
	byPriority reason = "priority"
	// inVain: it gains nothing by running.
	inVain reason = "in-vain"
	// secure: its own SLO is not in danger.
	secure reason = "secure"
	// largerSLO: the other one was promised more.
	largerSLO reason = "larger-slo"
	// overhead: preemptions cost it little so far.
	overhead reason = "overhead"
	// refused: its SLO is not admitted, and the other one is urgent.
	refused reason = "refused"
	// byTurn: its own SLO is not in danger, and the other one has waited for long.
	byTurn reason = "turn"
)

var reasons = []reason{byPriority, inVain, secure, largerSLO, overhead, refused, byTurn}

// preempts returns why a running pod v may be preempted for a waiting pod p, both with an SLO
// and v with no higher priority.
func (r rules) preempts(p, v *ledger.Judgement) reason {
	if v.Workload == p.Workload && p.Terms.Measuring != account.Independent {
		return notAllowed
	}
	ran := v.Ran >= r.minimum
	switch {
	case r.turn(p) && (ran && !r.urgent(v) || v.Refused && v.Held >= r.minimum):
		return byTurn
	case p.Refused:
		return notAllowed
	case v.Refused && r.urgent(p) && v.Held >= r.minimum:
		return refused
	case v.Refused:
		return notAllowed
	}
	first := r.compare(p, v) < 0
	// Two workloads of which neither is complete would take turns for ever.
	if r.inVain(v) && r.urgent(p) && (first || p.Terms.Measuring != account.Concurrent) {
		return inVain
	}
	if !first {
		return notAllowed
	}
	switch {
	case ran && !r.urgent(v):
		return secure
	case p.Terms.SLO > v.Terms.SLO:
		return largerSLO
	case ran && v.Accepts():
		return overhead
	default:
		return notAllowed
	}
}
