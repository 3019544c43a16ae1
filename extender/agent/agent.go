// Package agent runs a plugin of the scheduling framework for the requests of schedulers
// elsewhere. An agent is a small profile of kube-scheduler: the plugin, and what every
// profile needs.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/extender/cluster"
	"github.com/layer-locality/layer-locality/extender/expectedpods"
	"github.com/layer-locality/layer-locality/extender/metrics"
)

// Kind is a kind of agent.
type Kind struct {
	// Name of the agent, in paths and in --agents, and further names of it.
	Name    string
	Aliases []string
	// Plugin is the name of the plugin, and New makes it.
	Plugin string
	New    frameworkruntime.PluginFactory
	// Expects means that the plugin looks at the pods of nodes: a pod counts on the best node
	// of its answer until its binding shows. Of nodes that are equal when rounded, that one
	// gets a step more.
	Expects bool
	// ScoresOnly means that it does not filter, although the plugin could.
	ScoresOnly bool
	// RoundsDown means that scores are rounded down for schedulers, and not half up.
	RoundsDown bool
}

// Names returns all names of the agent.
func (k *Kind) Names() []string { return append([]string{k.Name}, k.Aliases...) }

// Agent scores and filters nodes for one pod at a time, as a scheduler does.
type Agent struct {
	Kind

	cluster   *cluster.Cluster
	framework framework.Framework
	score     fwk.ScorePlugin // nil if it does not score
	filters   bool
	synced    func() bool
	endCycle  func(fwk.CycleState)
	round     func(int64) int64

	mu       sync.Mutex
	snapshot *schedulercache.Snapshot
	expected *expectedpods.Table
	// assumed are the expected pods that the snapshot has.
	assumed []assumed
}

// Config is what agents need of their host.
type Config struct {
	Cluster *cluster.Cluster
	// Client and REST are handed to plugins.
	Client kubernetes.Interface
	REST   *rest.Config
	// PluginConfig are the entries of pluginConfig for the plugins, as
	// PluginConfigs returns them.
	PluginConfig []PluginConfig
	// Round returns the answer for a score from 0 to 100. Nodes with the same rounded score are
	// equal for the scheduler. nil leaves scores as they are.
	Round func(score int64) int64
	// Clock is for the time that answers count; nil means the real one.
	Clock clock.PassiveClock
}

// PluginConfig is an entry of pluginConfig in a KubeSchedulerConfiguration.
type PluginConfig struct {
	Name string         `json:"name"`
	Args map[string]any `json:"args,omitempty"`
}

// PluginConfigs reads the list pluginConfig, as in a profile of a
// KubeSchedulerConfiguration: either the list alone, or a document with that field.
func PluginConfigs(text []byte) ([]PluginConfig, error) {
	var document struct {
		PluginConfig []PluginConfig `json:"pluginConfig"`
	}
	var form any
	err := yaml.Unmarshal(text, &form)
	if _, list := form.([]any); list { // so that the error is about the form that was written
		err = yaml.UnmarshalStrict(text, &document.PluginConfig)
	} else if err == nil {
		err = yaml.UnmarshalStrict(text, &document)
	}
	if err != nil {
		return nil, fmt.Errorf("want the list pluginConfig of a KubeSchedulerConfiguration: %w", err)
	}
	return document.PluginConfig, nil
}

// New makes an agent. The plugin adds its handlers to the informers of the cluster, which
// must not have been started.
func New(ctx context.Context, kind Kind, c Config) (*Agent, error) {
	profile, err := profileOf(kind, c.PluginConfig)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", kind.Name, err)
	}
	a := &Agent{Kind: kind, cluster: c.Cluster, snapshot: schedulercache.NewEmptySnapshot()}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	a.expected = expectedpods.New(c.Clock)
	c.Cluster.OnEnd(a.end)
	if a.round = c.Round; a.round == nil {
		a.round = func(score int64) int64 { return score }
	}
	var plugin fwk.Plugin
	registry := frameworkruntime.Registry{
		queuesort.Name:     queuesort.New,
		defaultbinder.Name: defaultbinder.New,
		kind.Plugin: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (_ fwk.Plugin, err error) {
			plugin, err = kind.New(ctx, args, handle)
			return plugin, err
		},
	}
	a.framework, err = frameworkruntime.NewFramework(ctx, registry, profile,
		frameworkruntime.WithClientSet(c.Client), frameworkruntime.WithKubeConfig(c.REST),
		frameworkruntime.WithInformerFactory(c.Cluster.Informers), frameworkruntime.WithSnapshotSharedLister(a.snapshot))
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", kind.Name, err)
	}
	a.score, _ = plugin.(fwk.ScorePlugin)
	_, filters := plugin.(fwk.FilterPlugin)
	a.filters = filters && !kind.ScoresOnly
	a.synced = func() bool { return true }
	if s, ok := plugin.(interface{ HasSynced() bool }); ok {
		a.synced = s.HasSynced
	}
	a.endCycle = func(fwk.CycleState) {}
	if p, ok := plugin.(interface{ EndCycle(fwk.CycleState) }); ok {
		a.endCycle = p.EndCycle
	}
	metrics.Start(kind.Name)
	return a, nil
}

// profileOf returns the profile of an agent, with the arguments of its plugin decoded,
// defaulted and validated as kube-scheduler does it.
func profileOf(kind Kind, configs []PluginConfig) (*config.KubeSchedulerProfile, error) {
	type named struct {
		Name   string `json:"name"`
		Weight int    `json:"weight,omitempty"`
	}
	own := []PluginConfig{}
	for _, c := range configs {
		if c.Name == kind.Plugin {
			own = append(own, c)
		}
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"profiles": []any{map[string]any{
			"schedulerName": kind.Name,
			"plugins": map[string]any{"multiPoint": map[string]any{
				"enabled":  []named{{Name: queuesort.Name}, {Name: defaultbinder.Name}, {Name: kind.Plugin, Weight: 1}},
				"disabled": []named{{Name: "*"}},
			}},
			"pluginConfig": own,
		}},
	})
	if err != nil {
		return nil, err
	}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("pluginConfig of %s, not as kube-scheduler reads it: %w", kind.Plugin, err)
	}
	decoded, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok || len(decoded.Profiles) != 1 {
		return nil, fmt.Errorf("pluginConfig of %s: %T", kind.Plugin, object)
	}
	return &decoded.Profiles[0], nil
}

// Scores reports whether the agent can score nodes.
func (a *Agent) Scores() bool { return a.score != nil }

// Filters reports whether the agent can filter nodes.
func (a *Agent) Filters() bool { return a.filters }

// HasSynced reports whether the agent has what it needs to answer.
func (a *Agent) HasSynced() bool { return a.cluster.HasSynced() && a.synced() }

// Scores are an agent's scores of nodes.
type Scores struct {
	// Of has the scores, from 0 to 100, in the order of the names that were asked for.
	Of []int64
	// Best is the index of the best node; -1 if no node is known, or if the agent does not
	// expect pods. Of equal nodes it is the one with the least requests, which the default
	// profile prefers, other things being equal. The pod is expected there.
	Best int
	// Tied means that another node is as good for a scheduler, which sees rounded scores.
	Tied bool
}

// Score returns the scores of nodes for a pod. The names must differ. The error is that of
// the plugin, or of the context: when the caller has gone.
func (a *Agent) Score(ctx context.Context, pod *v1.Pod, names []string) (*Scores, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.withdrawLocked(pod)
	nodes, indexes, err := a.nodesLocked(ctx, pod, names)
	if err != nil {
		return nil, err
	}
	scores := make([]int64, len(names))
	result := &Scores{Of: scores, Best: -1}
	if len(nodes) == 0 {
		return result, nil
	}
	state := framework.NewCycleState()
	err = a.rateLocked(ctx, state, pod, nodes, indexes, scores)
	if err == nil {
		err = ctx.Err() // nobody reads the answer: the pod is expected nowhere
	}
	if err == nil && a.Expects {
		best, tied := a.choose(nodes, indexes, scores)
		result.Best, result.Tied = indexes[best], tied
		a.expectLocked(ctx, state, pod, nodes[best].Node().Name)
	}
	// Reserve does not always come. Not after a panic: the state may be anything then.
	a.endCycle(state)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Round returns the answer for a score from 0 to 100.
func (a *Agent) Round(score int64) int64 { return a.round(score) }

// choose returns the best of the nodes, and whether another one is as good when rounded. It
// does not depend on the order in which a scheduler asks for them.
func (a *Agent) choose(nodes []fwk.NodeInfo, indexes []int, scores []int64) (best int, tied bool) {
	top := scores[indexes[0]]
	for _, at := range indexes {
		top = max(top, scores[at])
	}
	best = -1
	most, rounded, alike := 0.0, a.round(top), 0
	for i, at := range indexes {
		if a.round(scores[at]) == rounded {
			alike++
		}
		if scores[at] < top {
			continue // what is free there is not looked up, which costs more than a score
		}
		share := free(nodes[i])
		if best < 0 || cmp.Or(cmp.Compare(share, most), cmp.Compare(nodes[best].Node().Name, nodes[i].Node().Name)) > 0 {
			best, most = i, share
		}
	}
	return best, alike > 1
}

// rateLocked scores the nodes, each at its index in scores; without the framework's goroutines: a
// panic in them would end the process.
func (a *Agent) rateLocked(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, indexes []int, scores []int64) error {
	if status := a.framework.RunPreScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
		return status.AsError()
	}
	if state.GetSkipScorePlugins().Has(a.Plugin) {
		return nil
	}
	return a.scoreAllLocked(ctx, state, pod, nodes, indexes, scores)
}

// scoreAllLocked scores the nodes, each at its index in scores.
func (a *Agent) scoreAllLocked(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, indexes []int, scores []int64) error {
	extensions := a.score.ScoreExtensions()
	var list fwk.NodeScoreList
	for i, node := range nodes {
		score, status := a.score.Score(ctx, state, pod, node)
		if !status.IsSuccess() {
			return fmt.Errorf("node %s: %w", node.Node().Name, status.AsError())
		}
		scores[indexes[i]] = score
		if extensions != nil {
			list = append(list, fwk.NodeScore{Name: node.Node().Name, Score: score})
		}
	}
	if extensions != nil {
		if status := extensions.NormalizeScore(ctx, state, pod, list); !status.IsSuccess() {
			return status.AsError()
		}
		for i := range list {
			scores[indexes[i]] = list[i].Score
		}
	}
	for _, at := range indexes {
		if scores[at] < fwk.MinScore || scores[at] > fwk.MaxScore {
			return fmt.Errorf("plugin %s gave a score of %d, want %d to %d", a.Plugin, scores[at], fwk.MinScore, fwk.MaxScore)
		}
	}
	return nil
}

// Rejection is why a pod cannot go to a node.
type Rejection struct {
	// Reason is empty if it can go there.
	Reason string
	// Unresolvable means that it does not help to remove other pods from the node.
	Unresolvable bool
}

// Filter returns for each node why the pod cannot go there. A node that is not known is one
// that it cannot go to.
func (a *Agent) Filter(ctx context.Context, pod *v1.Pod, names []string) ([]Rejection, error) {
	return a.FilterWithout(ctx, pod, names, nil)
}

// FilterWithout is Filter as if pods had left the nodes, which a scheduler would remove: those with the
// UIDs at the index of each node; nil: none from any.
func (a *Agent) FilterWithout(ctx context.Context, pod *v1.Pod, names []string, victims []sets.Set[types.UID]) ([]Rejection, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	nodes, indexes, err := a.nodesLocked(ctx, pod, names)
	if err != nil {
		return nil, err
	}
	rejections := make([]Rejection, len(names))
	for i := range rejections {
		rejections[i] = Rejection{"layer-extender has no such node", true}
	}
	state := framework.NewCycleState()
	result, status, _ := a.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() && !status.IsRejected() {
		return nil, status.AsError()
	}
	for i, node := range nodes {
		each := status
		switch {
		case !status.IsSuccess():
		case !result.AllNodes() && !result.NodeNames.Has(node.Node().Name):
			each = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "excluded by "+a.Plugin)
		case victims != nil:
			each = a.filterWithoutLocked(ctx, state.Clone(), pod, node.Snapshot(), victims[indexes[i]])
		default:
			each = a.framework.RunFilterPlugins(ctx, state, pod, node)
		}
		if !each.IsSuccess() && !each.IsRejected() {
			return nil, fmt.Errorf("node %s: %w", node.Node().Name, each.AsError())
		}
		rejections[indexes[i]] = Rejection{}
		if !each.IsSuccess() {
			rejections[indexes[i]] = Rejection{reason(each), each.Code() == fwk.UnschedulableAndUnresolvable}
		}
	}
	return rejections, nil
}

// filterWithoutLocked filters a node that victims have left. It changes the state and the node.
func (a *Agent) filterWithoutLocked(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, victims sets.Set[types.UID]) *fwk.Status {
	for _, victim := range slices.Clone(node.GetPods()) {
		if !victims.Has(victim.GetPod().UID) {
			continue
		}
		if err := node.RemovePod(klog.FromContext(ctx), victim.GetPod()); err != nil {
			return fwk.AsStatus(err)
		}
		if status := a.framework.RunPreFilterExtensionRemovePod(ctx, state, pod, victim, node); !status.IsSuccess() {
			return status
		}
	}
	return a.framework.RunFilterPlugins(ctx, state, pod, node)
}

// reason returns why a node is rejected; never empty.
func reason(status *fwk.Status) string {
	if text := strings.Join(status.Reasons(), ", "); text != "" {
		return text
	}
	return status.Code().String()
}

// assumed is an expected pod that the snapshot has, and the generation of its node before.
type assumed struct {
	pod        *v1.Pod
	node       *framework.NodeInfo
	generation int64
}

// updateLocked brings the snapshot up to date: the pods that are placed, and those that this agent
// expects, but for the one that is asked about. Other agents expect pods on other nodes.
func (a *Agent) updateLocked(ctx context.Context, pod *v1.Pod) error {
	for last := len(a.assumed) - 1; last >= 0; last-- {
		assumed := a.assumed[last]
		a.assumed = a.assumed[:last]
		err := forget(klog.FromContext(ctx), a.snapshot, assumed.pod)
		if assumed.node.Generation = assumed.generation; err != nil {
			return err
		}
	}
	if err := a.cluster.Update(a.snapshot); err != nil {
		return err
	}
	a.settleLocked(a.shownLocked)
	var errs []error
	a.expected.Each(func(expected *expectedpods.Pod) {
		if expected.Pod.UID == pod.UID {
			return
		}
		known, err := a.snapshot.Get(expected.Node)
		if err != nil {
			return // the node is gone
		}
		if err := assume(a.snapshot, expected.Info); err != nil {
			errs = append(errs, err)
			return
		}
		node := known.(*framework.NodeInfo) // what a snapshot is made of
		a.assumed = append(a.assumed, assumed{expected.Info.Pod, node, node.Generation})
		// A snapshot keeps the generation of the node, and plugins may remember by it what a node
		// has. Of 0 they remember nothing.
		node.Generation = 0
	})
	return errors.Join(errs...)
}

// nodesLocked returns the known nodes among those with the names, each with its index among the
// names. The pod that is asked about is on none of them, unless it is placed.
func (a *Agent) nodesLocked(ctx context.Context, pod *v1.Pod, names []string) (nodes []fwk.NodeInfo, indexes []int, err error) {
	if err := a.updateLocked(ctx, pod); err != nil {
		return nil, nil, err
	}
	nodes, indexes = make([]fwk.NodeInfo, 0, len(names)), make([]int, 0, len(names))
	all := a.snapshot.NodeInfos()
	for i, name := range names {
		if node, err := all.Get(name); err == nil {
			nodes, indexes = append(nodes, node), append(indexes, i)
		}
	}
	if unknown := len(names) - len(nodes); unknown > 0 {
		metrics.Unknown.WithLabelValues(a.Name).Add(float64(unknown))
	}
	return nodes, indexes, nil
}

// expectLocked has the pod count on a node until its binding shows: what the framework's Reserve
// does in a scheduler.
func (a *Agent) expectLocked(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	switch {
	case pod.UID == "":
		return
	case a.expected.Full():
		metrics.NotExpected.WithLabelValues(a.Name).Inc()
		return
	}
	if a.cluster.Placed(pod) != "" {
		return // it was bound while the request was on its way
	}
	pod, ok := expectedpods.Slim(pod)
	if !ok {
		metrics.NotExpected.WithLabelValues(a.Name).Inc()
		return
	}
	if status := a.framework.RunReservePluginsReserve(ctx, state, pod, node); !status.IsSuccess() {
		klog.FromContext(ctx).Error(status.AsError(), "Cannot count a pod on its best node", "node", klog.KRef("", node))
		a.framework.RunReservePluginsUnreserve(ctx, state, pod, node)
		return
	}
	a.expected.Add(pod, node)
}

// free returns the share of CPU and memory of a node that is not requested, on average. It
// is what kube-scheduler's default profile prefers, other things being equal.
func free(node fwk.NodeInfo) float64 {
	used, all := node.GetNonZeroRequested(), node.GetAllocatable()
	share := func(used, all int64) float64 { return 1 - float64(used)/float64(max(1, all)) }
	return (share(used.GetMilliCPU(), all.GetMilliCPU()) + share(used.GetMemory(), all.GetMemory())) / 2
}

// shownLocked returns the node on which the snapshot has a pod; empty if it has not. A binding may
// show in the cluster after the snapshot was taken: then the pod is expected once more.
func (a *Agent) shownLocked(pod *v1.Pod) (node string) {
	node = a.cluster.Placed(pod)
	if node == "" {
		return ""
	}
	info, err := a.snapshot.Get(node)
	if err != nil || !slices.ContainsFunc(info.GetPods(), func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID }) {
		return ""
	}
	return node
}

// settleLocked ends the expectation of pods that have a node, or whose time is over. node returns the
// node of a pod; empty if it has none.
func (a *Agent) settleLocked(node func(*v1.Pod) string) {
	a.expected.Settle(
		node,
		a.placed,
		func(expected *expectedpods.Pod) { a.undoLocked(expected, metrics.Over) })
}

// placed counts a pod that has a node. The plugin and the cache follow it themselves.
func (a *Agent) placed(expected *expectedpods.Pod, node string) {
	ended := metrics.Elsewhere
	if node == expected.Node {
		ended = metrics.There
	}
	metrics.Expected.WithLabelValues(a.Name, ended).Inc()
}

// end ends the expectation of a pod that is gone: it may have been bound and removed between two
// looks at the cluster.
func (a *Agent) end(pod *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if expected := a.expected.Take(pod.UID); expected != nil {
		a.placed(expected, pod.Spec.NodeName)
	}
}

// withdrawLocked forgets an earlier answer for a pod.
func (a *Agent) withdrawLocked(pod *v1.Pod) {
	if expected := a.expected.Take(pod.UID); expected != nil {
		a.undoLocked(expected, metrics.Again)
	}
}

func (a *Agent) undoLocked(expected *expectedpods.Pod, ended string) {
	a.framework.RunReservePluginsUnreserve(context.Background(), framework.NewCycleState(), expected.Pod, expected.Node)
	metrics.Expected.WithLabelValues(a.Name, ended).Inc()
}

// Expected returns how many pods are expected on a node.
func (a *Agent) Expected() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.expected.Len()
}

// Run ends expectations when their time is over, also while nobody asks, until the context
// is done.
func (a *Agent) Run(ctx context.Context) {
	tick := time.NewTicker(expectedpods.Timeout / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.tick(ctx)
		}
	}
}

// tick ends expectations whose time is over. A panic of the plugin ends neither the process
// nor the agent's lock: no request is there to be answered with it.
func (a *Agent) tick(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() {
		if value := recover(); value != nil {
			metrics.Panics.WithLabelValues(a.Name).Inc()
			klog.FromContext(ctx).Error(fmt.Errorf("panic: %v", value), "An agent panicked outside of a request", "agent", a.Name, "stack", string(debug.Stack()))
		}
	}()
	a.settleLocked(a.cluster.Placed) // the next snapshot has them
}

// Close ends the plugin.
func (a *Agent) Close() error { return a.framework.Close() }
