// Package packing is a kube-scheduler plugin that puts each pod where an objective over all
// nodes is best: it packs, spreads or consolidates pods.
package packing

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/lru"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme" // kube-scheduler decodes the arguments
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/internal/debugpage"
	"github.com/layer-locality/layer-locality/scheduler/internal/problems"
	"github.com/layer-locality/layer-locality/scheduler/packing/objective"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

const (
	// Name is the name of the plugin in a KubeSchedulerConfiguration.
	Name = "Packing"
	// DebugPath is where the objective of all nodes is served.
	DebugPath = "/debug/packing"
)

// remembered is of how many pods it is known that their demand has been counted. A pod that
// is tried again after so many others counts once more.
const remembered = 10_000

// What a pod that requests none of it counts as.
const (
	leastMilliCPU = 10
	leastMemory   = 16 << 20
)

// Packing scores nodes by what the objective becomes if the pod goes there.
type Packing struct {
	args      *config.PackingArgs
	kind      objective.Kind
	resources []v1.ResourceName
	all       fwk.SharedLister
	problems  *problems.Reporter

	mu     sync.Mutex
	demand objective.Demand
	seen   *lru.Cache // UIDs of pods whose demand has been counted
}

var (
	_ fwk.PreScorePlugin = &Packing{}
	_ fwk.ScorePlugin    = &Packing{}
)

// Factory makes the plugin, once for each profile that enables it.
type Factory struct{ page *debugpage.Page }

// NewFactory returns a Factory for one scheduler.
func NewFactory() *Factory { return &Factory{debugpage.New(Name)} }

// DebugHandler serves the objective of all nodes, and what a pod makes of it.
func (f *Factory) DebugHandler() http.Handler { return f.page }

// New makes the plugin of a profile; it is the factory function that kube-scheduler needs.
func (f *Factory) New(_ context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, ok := object.(*config.PackingArgs)
	if !ok {
		return nil, fmt.Errorf("arguments of %s: want PackingArgs, got %T", Name, object)
	}
	if err := validation.PackingArgs(args); err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	pl := &Packing{
		args: args, all: handle.SnapshotSharedLister(), problems: problems.New(Name), seen: lru.New(remembered),
		kind: map[string]objective.Kind{config.BinPack: objective.BinPack, config.LoadBalance: objective.LoadBalance, config.Consolidate: objective.Consolidate}[args.Objective],
	}
	for _, name := range args.Resources {
		pl.resources = append(pl.resources, v1.ResourceName(name))
	}
	f.page.Add(handle, pl)
	return pl, nil
}

// Name returns the name of the plugin.
func (pl *Packing) Name() string { return Name }

// demandOf returns what a pod demands of each resource: millicores, bytes, or pieces.
func (pl *Packing) demandOf(pod *v1.Pod) (demand objective.Vector) {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	for i, name := range pl.resources {
		quantity := requests[name]
		switch demand[i] = float64(quantity.Value()); name {
		case v1.ResourceCPU:
			if demand[i] = float64(quantity.MilliValue()); demand[i] == 0 {
				demand[i] = leastMilliCPU
			}
		case v1.ResourceMemory:
			if demand[i] == 0 {
				demand[i] = leastMemory
			}
		case v1.ResourcePods:
			demand[i] = 1
		}
	}
	return demand
}

// node is what a node has and uses of each resource.
type node struct{ capacity, used objective.Vector }

// nodeOf returns what a node has and what its pods request. ok is false if it has nothing.
func (pl *Packing) nodeOf(info fwk.NodeInfo) (n node, ok bool) {
	capacity, used := info.GetAllocatable(), info.GetRequested()
	for i, name := range pl.resources {
		switch name {
		case v1.ResourceCPU:
			n.capacity[i], n.used[i] = float64(capacity.GetMilliCPU()), float64(used.GetMilliCPU())
		case v1.ResourceMemory:
			n.capacity[i], n.used[i] = float64(capacity.GetMemory()), float64(used.GetMemory())
		case v1.ResourceEphemeralStorage:
			n.capacity[i], n.used[i] = float64(capacity.GetEphemeralStorage()), float64(used.GetEphemeralStorage())
		case v1.ResourcePods:
			n.capacity[i], n.used[i] = float64(capacity.GetAllowedPodNumber()), float64(len(info.GetPods()))
		default:
			n.capacity[i], n.used[i] = float64(capacity.GetScalarResources()[name]), float64(used.GetScalarResources()[name])
		}
		ok = ok || n.capacity[i] > 0
	}
	return n, ok
}

// use returns the use of the node as shares, with what a pod demands. A resource of which it
// has nothing counts as not used.
func (n *node) use(demand objective.Vector) (use objective.Vector) {
	for i, capacity := range n.capacity {
		if capacity > 0 {
			use[i] = min(max((n.used[i]+demand[i])/capacity, 0), 1)
		}
	}
	return use
}

// fits reports whether a pod has room.
func (n *node) fits(demand objective.Vector) bool {
	for i, d := range demand {
		if d > 0 && n.used[i]+d > n.capacity[i] {
			return false
		}
	}
	return true
}

// measure returns what all nodes use, and their mean capacity.
func (pl *Packing) measure(infos []fwk.NodeInfo) (uses []objective.Vector, capacity objective.Vector) {
	uses = make([]objective.Vector, 0, len(infos))
	for _, info := range infos {
		if info.Node() == nil {
			continue // it is being removed
		}
		if n, ok := pl.nodeOf(info); ok {
			uses = append(uses, n.use(objective.Vector{}))
			for i, c := range n.capacity {
				capacity[i] += c
			}
		}
	}
	for i := range capacity {
		capacity[i] /= float64(max(1, len(uses)))
	}
	return uses, capacity
}

// values returns the objective with the pod on each of the nodes; not a number where it has
// no room. nothing has the indexes of nodes that have nothing of any resource.
func (pl *Packing) values(system *objective.System, infos []fwk.NodeInfo, demand objective.Vector) (values []float64, nothing []int) {
	values = make([]float64, len(infos))
	for i, info := range infos {
		n, ok := pl.nodeOf(info)
		switch {
		case ok && n.fits(demand):
			values[i] = system.Exchange(n.use(objective.Vector{}), n.use(demand))
			continue
		case !ok:
			nothing = append(nothing, i)
		}
		values[i] = math.NaN()
	}
	return values, nothing
}

// count counts what a pod demands, once, and returns how much pods differ.
func (pl *Packing) count(pod *v1.Pod, demand, capacity objective.Vector) (variability float64) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pod.UID != "" {
		if _, seen := pl.seen.Get(pod.UID); !seen {
			pl.demand.Add(demand)
		}
		pl.seen.Add(pod.UID, nil)
	}
	return pl.demand.Variability(capacity)
}

// scores are the points of nodes. The object identifies a node as its name does, and is found
// without reading the name.
type scores map[*v1.Node]int64

// Clone returns the same: nothing changes them.
func (s scores) Clone() fwk.StateData { return s }

const stateKey fwk.StateKey = Name

// PreScore computes the objective over all nodes of the cluster, for each feasible node as if
// the pod were there.
func (pl *Packing) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	all, err := pl.all.NodeInfos().List()
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("%s: listing nodes: %w", Name, err))
	}
	demand := pl.demandOf(pod)
	uses, capacity := pl.measure(all)
	system := objective.NewSystem(pl.kind, len(pl.resources), uses, pl.count(pod, demand, capacity))
	points := make(scores, len(nodes))
	values, nothing := pl.values(system, nodes, demand)
	for i, score := range objective.Scores(values) {
		points[nodes[i].Node()] = score
	}
	for _, i := range nothing {
		pl.problems.Note(klog.FromContext(ctx), nodes[i].Node(), usage.NoCapacity, pl.args.Resources[0])
	}
	state.Write(stateKey, points)
	decisions.LogPlugin(ctx, Name, pod, nodes, func(info fwk.NodeInfo) int64 { return points[info.Node()] })
	return nil
}

// Score looks up what PreScore computed for a node.
func (pl *Packing) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	data, err := state.Read(stateKey)
	if err != nil {
		return 0, fwk.AsStatus(fmt.Errorf("%s has to be enabled at preScore, too: enable it at multiPoint: %w", Name, err))
	}
	return data.(scores)[info.Node()], nil
}

// ScoreExtensions returns nil: the scores span the range already.
func (pl *Packing) ScoreExtensions() fwk.ScoreExtensions { return nil }
