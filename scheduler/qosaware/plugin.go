// Package qosaware is a kube-scheduler plugin that keeps promises of availability: a workload
// states which share of its time its pods shall run, and who is about to miss that is served
// first.
package qosaware

import (
	"context"
	"io"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"

	"github.com/layer-locality/layer-locality/scheduler/decisions"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "QosAware"

// QosAware sorts the queue and preempts by promises. Upstream's preemption is embedded: what
// it does for groups of pods and while victims end stays as it is.
type QosAware struct {
	*defaultpreemption.DefaultPreemption
	host *host
}

var (
	_ fwk.QueueSortPlugin   = &QosAware{}
	_ fwk.PreEnqueuePlugin  = &QosAware{}
	_ fwk.PreFilterPlugin   = &QosAware{}
	_ fwk.PostFilterPlugin  = &QosAware{}
	_ fwk.EnqueueExtensions = &QosAware{}
	_ fwk.ReservePlugin     = &QosAware{}
	_ fwk.PreBindPlugin     = &QosAware{}
	_ fwk.PostBindPlugin    = &QosAware{}
	_ io.Closer             = &QosAware{}
)

func newPlugin(h *host, upstream *defaultpreemption.DefaultPreemption, handle fwk.Handle) *QosAware {
	newPreemptor(handle, upstream, &preemptor{
		rules: h.rules, judge: h.judgeRunning, now: h.ledger.Now, limit: h.limit,
		preempted: func(why reason) { h.metrics.preemptions.WithLabelValues(string(why)).Inc() },
	})
	return &QosAware{DefaultPreemption: upstream, host: h}
}

// Name returns the name of the plugin.
func (pl *QosAware) Name() string { return Name }

// Close is called when the scheduler ends, and returns when it is saved what workloads got.
func (pl *QosAware) Close() error { return pl.host.close() }

// attempt is when the attempt to place a pod began.
type attempt struct{ began time.Time }

const attemptKey fwk.StateKey = Name + "/attempt"

// Clone implements fwk.StateData.
func (a attempt) Clone() fwk.StateData { return a }

// PreFilter notes when the attempt to place a pod begins, if it may have an SLO, and filters nothing.
func (pl *QosAware) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if pl.host.keys.states(pod) {
		state.Write(attemptKey, attempt{time.Now()})
	}
	return nil, fwk.NewStatus(fwk.Skip)
}

// PreFilterExtensions returns nil: there are none.
func (pl *QosAware) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// PostFilter preempts for a pod that fits nowhere, and notes whether that could help, and what the
// attempt took.
func (pl *QosAware) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	full, err := nodes.NodesForStatusCode(pl.host.handle.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	pl.host.ledger.NoRoom(pod.UID, err == nil && len(full) > 0)
	result, status := pl.DefaultPreemption.PostFilter(ctx, state, pod, nodes)
	if logger := klog.FromContext(ctx).V(decisions.Pods); logger.Enabled() {
		pl.logDecision(logger, pod, result, status)
	}
	if data, err := state.Read(attemptKey); err == nil {
		pl.host.attempts.took(time.Since(data.(attempt).began))
	}
	return result, status
}

// logDecision logs what the preemption for a pod came to, and the state of the pod's SLO by which it was decided.
func (pl *QosAware) logDecision(logger klog.Logger, pod *v1.Pod, result *fwk.PostFilterResult, status *fwk.Status) {
	node := ""
	if result != nil && result.NominatingInfo != nil {
		node = result.NominatedNodeName
	}
	logger = logger.WithValues("plugin", Name, "pod", klog.KObj(pod), "node", klog.KRef("", node), "reason", status.Message())
	if j, hasSLO := pl.host.judgeRunning(pod, pl.host.ledger.Now()); hasSLO {
		logger = logger.WithValues("slo", j.Terms.SLO, "ttv", duration(j.Metric), "urgent", pl.host.rules.urgent(&j), "refused", j.Refused)
	}
	logger.Info("Looked for pods to preempt")
}

// bindingBegins is in the state of an attempt to place a pod once its binding has begun: a
// profile may enable several of the extension points that show it.
type bindingBegins struct{}

const bindingKey fwk.StateKey = Name + "/binding"

// Clone implements fwk.StateData.
func (b bindingBegins) Clone() fwk.StateData { return b }

// begin notes that the binding of a pod begins, once in an attempt.
func (pl *QosAware) begin(state fwk.CycleState, pod *v1.Pod) {
	if _, err := state.Read(bindingKey); err != nil {
		state.Write(bindingKey, bindingBegins{})
		pl.host.ledger.Reserved(pod.UID)
		pl.host.begins()
	}
}

// Reserve notes that the binding of a pod begins.
func (pl *QosAware) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	pl.begin(state, pod)
	return nil
}

// Unreserve notes that the pod goes on waiting.
func (pl *QosAware) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	pl.host.ledger.Unreserved(pod.UID)
}

// preFlight notes that the binding of a pod begins, for profiles without Reserve. It
// returns Skip: if it did not, the scheduler would write the node's name into each pod
// beforehand.
func (pl *QosAware) preFlight(state fwk.CycleState, pod *v1.Pod) *fwk.Status {
	pl.begin(state, pod)
	return fwk.NewStatus(fwk.Skip)
}

// PreBind does the same where the scheduler does not call PreBindPreFlight (feature gate
// NominatedNodeNameForExpectation).
func (pl *QosAware) PreBind(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	pl.begin(state, pod)
	return nil
}

// PostBind notes that the binding of a pod has ended.
func (pl *QosAware) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	pl.host.ledger.Bound(pod.UID)
	pl.host.keys.placed(pod)
	if pl.host.store != nil {
		pl.host.store.binds.Store(true)
	}
}
