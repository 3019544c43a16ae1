package qosaware

import (
	"cmp"
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
	// admit has the least behind come first of those that are below their SLO.
	admit bool
}

func newRules(args *config.QosAwareArgs) rules {
	return rules{margin: args.SafetyMargin.Seconds(), minimum: args.MinimumRunningTime.Duration, admit: args.Overload == config.OverloadAdmit}
}

func (r rules) urgent(j *ledger.Judgement) bool { return j.Metric < r.margin }

// compare returns a negative number if the first is served before the second, 0 if neither.
func (r rules) compare(a, b *ledger.Judgement) int {
	if r.urgent(a) != r.urgent(b) {
		return cmp.Compare(a.Metric, b.Metric)
	}
	if r.urgent(a) {
		if order := cmp.Compare(b.Terms.SLO, a.Terms.SLO); order != 0 {
			return order
		}
		if r.admit {
			return compareAdmit(a.Metric, b.Metric)
		}
	}
	return cmp.Compare(a.Metric, b.Metric)
}

// compareAdmit puts those first that can still keep their SLO, the most urgent first; then
// those that are below it, the least behind first.
func compareAdmit(a, b float64) int {
	switch behindA, behindB := a < 0, b < 0; {
	case behindA && behindB:
		return cmp.Compare(b, a)
	case behindA:
		return 1
	case behindB:
		return -1
	default:
		return cmp.Compare(a, b)
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
)

var reasons = []reason{byPriority, inVain, secure, largerSLO, overhead}

// preempts returns why a running pod v may be preempted for a waiting pod p, both with an SLO
// and v with no higher priority.
func (r rules) preempts(p, v *ledger.Judgement) reason {
	if v.Workload == p.Workload && p.Terms.Measuring != account.Independent {
		return notAllowed
	}
	first := r.compare(p, v) < 0
	// Two workloads of which neither is complete would take turns for ever.
	if v.GainsNothing && (first || p.Terms.Measuring != account.Concurrent) {
		return inVain
	}
	if !first {
		return notAllowed
	}
	ran := v.Ran >= r.minimum
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
