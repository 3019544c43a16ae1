// Package safe is a kube-scheduler plugin that keeps nodes from being overloaded, by what was
// measured of their use and not by what pods request: it computes the risk that a node uses
// more of its CPU or memory than it should.
package safe

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/internal/problems"
	"github.com/layer-locality/layer-locality/scheduler/safe/risk"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "Safe"

// Safe filters and scores nodes by the risk that they are overloaded.
type Safe struct {
	args     *config.SafeArgs
	memory   memory
	problems *problems.Reporter
	// The arguments as shares, and why a node is rejected, for each resource.
	threshold, accepted, weight float64
	reasons                     [len(resources)]string
}

var (
	_ fwk.PreFilterPlugin   = &Safe{}
	_ fwk.FilterPlugin      = &Safe{}
	_ fwk.EnqueueExtensions = &Safe{}
	_ fwk.PreScorePlugin    = &Safe{}
	_ fwk.ScorePlugin       = &Safe{}
	_ fwk.SignPlugin        = &Safe{}
)

// resources are those that nodes are rated by.
var resources = [...]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

func newPlugin(args *config.SafeArgs, reporter *problems.Reporter) *Safe {
	share := func(percent int32) float64 { return float64(percent) / 100 }
	pl := &Safe{
		args: args, problems: reporter,
		threshold: share(args.UtilizationPercent), accepted: share(args.RiskPercent), weight: share(args.ForecastPercent),
	}
	for i, resource := range resources {
		name := strings.ToUpper(string(resource))
		if resource == v1.ResourceMemory {
			name = string(resource)
		}
		// The same for all nodes, so that the event of the pod has it once. Without a percent
		// sign: kube-scheduler 1.36 takes the text of events for a format.
		pl.reasons[i] = fmt.Sprintf("node(s) had a risk above %g of using more than %g of their %s", pl.accepted, pl.threshold, name)
	}
	return pl
}

// Name returns the name of the plugin.
func (pl *Safe) Name() string { return Name }

// demand is what a pod requests of each resource: millicores, bytes.
type demand [len(resources)]float64

// demandOf returns what a pod requests.
func demandOf(pod *v1.Pod) demand {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return demand{float64(requests.Cpu().MilliValue()), float64(requests.Memory().Value())}
}

// cycle is what is the same for all nodes that are rated for a pod.
type cycle struct {
	demand demand
	now    time.Time
	// logger is for each node, if logs is true.
	logger klog.Logger
	logs   bool
}

// Clone returns the same: nothing changes it.
func (c *cycle) Clone() fwk.StateData { return c }

const stateKey fwk.StateKey = Name

// begin begins to rate nodes for a pod.
func (pl *Safe) begin(logger klog.Logger, pod *v1.Pod) *cycle {
	logger = logger.V(decisions.Nodes)
	return &cycle{demandOf(pod), time.Now(), logger, logger.Enabled()}
}

// PreFilter computes what the pod requests. It excludes no node.
func (pl *Safe) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(stateKey, pl.begin(klog.FromContext(ctx), pod))
	return nil, nil
}

// PreFilterExtensions returns nil: other pods do not change what was measured.
func (pl *Safe) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// read returns what PreFilter or PreScore computed.
func (pl *Safe) read(ctx context.Context, state fwk.CycleState, pod *v1.Pod) *cycle {
	if data, err := state.Read(stateKey); err == nil {
		return data.(*cycle)
	}
	return pl.begin(klog.FromContext(ctx), pod)
}

// part is how a node is rated by one of the resources.
type part struct {
	risk.Usage
	// problem is why it is not rated, and of what has the problem.
	problem usage.Problem
	of      string
}

// rate rates a node by the i-th resource, if the pod came to it.
func (pl *Safe) rate(c *cycle, k *known, i int) part {
	statistics := &k.statistics[i]
	if k.capacity[i] <= 0 {
		return part{problem: usage.NoCapacity, of: string(resources[i])}
	}
	if statistics.Problem != usage.None {
		return part{problem: statistics.Problem, of: statistics.Of}
	}
	if !statistics.Until.IsZero() && c.now.After(statistics.Until) {
		return part{problem: usage.Unavailable, of: usage.Until}
	}
	n := risk.Node{Capacity: k.capacity[i], Free: statistics.Free, Deviation: statistics.Deviation}
	if statistics.Forecasts {
		n.Forecast, n.Weight = statistics.Forecast, pl.weight
	}
	return part{Usage: n.With(c.demand[i])}
}

// risk returns how probable it is that the node uses more than it should; 0 if it is not rated.
// It takes longer than everything else: neither a filter nor a balance always needs it.
func (pl *Safe) risk(p *part) float64 {
	if p.problem != usage.None {
		return 0
	}
	return p.Above(pl.threshold)
}

// risky reports whether the risk is larger than what is accepted.
func (pl *Safe) risky(p *part) bool {
	return p.problem == usage.None && p.Exceeds(pl.threshold, pl.accepted)
}

// Filter rejects a node for which the risk is too large. Nodes without statistics pass. It
// does not help to preempt pods there: what was measured stays.
func (pl *Safe) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	c := pl.read(ctx, state, pod)
	known := pl.memory.of(info)
	var reasons []string
	for i := range resources {
		p := pl.rate(c, known, i)
		if p.problem != usage.None {
			pl.problems.Note(klog.FromContext(ctx), info.Node(), p.problem, p.of)
			continue
		}
		if pl.risky(&p) {
			reasons = append(reasons, pl.reasons[i])
		}
	}
	if c.logs {
		c.logger.Info("Rated a node", "plugin", Name, "pod", klog.KObj(pod), "rating", pl.ratings(c, []fwk.NodeInfo{info})[0])
	}
	if len(reasons) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	}
	return nil
}

// EventsToRegister returns the events after which a rejected pod may fit: other statistics,
// another capacity or another node, and a pod that requests less.
func (pl *Safe) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAnnotation | fwk.UpdateNodeAllocatable}, QueueingHintFn: pl.fits},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodScaleDown}, QueueingHintFn: isOf},
	}, nil
}

// fits reports whether a pod is worth another attempt after a node has changed.
func (pl *Safe) fits(logger klog.Logger, pod *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	_, node, err := util.As[*v1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	info := framework.NewNodeInfo()
	info.SetNode(node)
	c := pl.begin(logger, pod)
	known := pl.memory.of(info)
	for i := range resources {
		if p := pl.rate(c, known, i); pl.risky(&p) {
			return fwk.QueueSkip, nil
		}
	}
	return fwk.Queue, nil
}

// isOf reports whether it is the pod itself that has changed.
func isOf(_ klog.Logger, pod *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	_, changed, err := util.As[*v1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if changed.UID == pod.UID {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// maxLogged is how many nodes the log has for a pod.
const maxLogged = 100

// PreScore computes what the pod requests, where no PreFilter did, and logs ratings.
func (pl *Safe) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if _, err := state.Read(stateKey); err != nil {
		state.Write(stateKey, pl.begin(klog.FromContext(ctx), pod))
	}
	c := pl.read(ctx, state, pod)
	if c.logs || pl.args.LogRatings {
		rating := pl.ratings(c, nodes[:min(len(nodes), maxLogged)])
		klog.FromContext(ctx).Info("Rated nodes", "plugin", Name, "pod", klog.KObj(pod), "nodes", len(nodes), "ratings", rating)
	}
	decisions.LogPlugin(ctx, Name, pod, nodes, func(info fwk.NodeInfo) int64 { return pl.ratings(c, []fwk.NodeInfo{info})[0].Score })
	return nil
}

// Score returns the smaller of the scores of CPU and memory. A resource without statistics does not
// count; a node without any gets 0.
func (pl *Safe) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	c := pl.read(ctx, state, pod)
	known := pl.memory.of(info)
	var parts [len(resources)]part
	n := 0
	for i := range resources {
		p := &parts[n]
		if *p = pl.rate(c, known, i); p.problem != usage.None {
			pl.problems.Note(klog.FromContext(ctx), info.Node(), p.problem, p.of)
			continue
		}
		n++
	}
	if n == 0 {
		return 0, nil
	}
	most, least := &parts[0], &parts[n-1]
	if pl.args.Score == config.ScoreBalance {
		return points(min(most.Balance(), least.Balance())), nil
	}
	// The smaller score is that of the larger risk. What is used most has it, mostly: then the other
	// one takes no distribution.
	if least.Mean > most.Mean {
		most, least = least, most
	}
	return points(risk.Overload(least.Worst(pl.threshold, most.Above(pl.threshold)), pl.accepted)), nil
}

// score returns the score of a resource, from 0 to 1.
func (pl *Safe) score(p *part) float64 {
	if pl.args.Score == config.ScoreBalance {
		return p.Balance()
	}
	return risk.Overload(pl.risk(p), pl.accepted)
}

// points returns a score from 0 to 100, rounded down; what is a whole number but for the last
// digit of a double stays.
func points(score float64) int64 { return int64(score*float64(fwk.MaxScore) + 1e-9) }

// ScoreExtensions returns nil: scores mean the same for every pod.
func (pl *Safe) ScoreExtensions() fwk.ScoreExtensions { return nil }

// SignPod makes opportunistic batching possible: pods with the same requests are rated alike.
func (pl *Safe) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: Name + ".Request", Value: demandOf(pod)}}, nil
}
