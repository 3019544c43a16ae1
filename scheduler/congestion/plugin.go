// Package congestion is a kube-scheduler plugin that prefers nodes with little congestion, as
// somebody else states it in an annotation.
package congestion

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	_ "github.com/layer-locality/layer-locality/scheduler/apis/config/scheme" // kube-scheduler decodes the arguments
	"github.com/layer-locality/layer-locality/scheduler/apis/config/validation"
	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/internal/decimal"
	"github.com/layer-locality/layer-locality/scheduler/internal/pernode"
	"github.com/layer-locality/layer-locality/scheduler/internal/problems"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

const (
	// Name is the name of the plugin in a KubeSchedulerConfiguration.
	Name = "Congestion"
	// Annotation is the annotation of a Node with its congestion. The name is that of the
	// kube-safe-scheduler (IBM, 2019).
	Annotation = "congestion-factor"
)

// Congestion scores nodes by their congestion.
type Congestion struct {
	most     float64
	problems *problems.Reporter
	memory   pernode.Memory[stated]
}

var (
	_ fwk.PreScorePlugin = &Congestion{}
	_ fwk.ScorePlugin    = &Congestion{}
	_ fwk.SignPlugin     = &Congestion{}
)

// New makes the plugin of a profile; it is the factory function that kube-scheduler needs.
func New(_ context.Context, object runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
	args, ok := object.(*config.CongestionArgs)
	if !ok {
		return nil, fmt.Errorf("arguments of %s: want CongestionArgs, got %T", Name, object)
	}
	if err := validation.CongestionArgs(args); err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	return &Congestion{most: float64(args.MaxFactor), problems: problems.New(Name)}, nil
}

// Name returns the name of the plugin.
func (pl *Congestion) Name() string { return Name }

// PreScore logs how the nodes are scored.
func (pl *Congestion) PreScore(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	decisions.LogPlugin(ctx, Name, pod, nodes, func(info fwk.NodeInfo) int64 { return pl.of(info.Node()).score })
	return nil
}

// Score returns 100 for a node without congestion, 0 for one with the largest factor or more,
// in proportion between them. A node that states none, a negative one, or none that can be read, has
// none.
func (pl *Congestion) Score(ctx context.Context, _ fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	node := info.Node()
	stated := pl.of(node)
	if stated.problem != usage.None {
		pl.problems.Note(klog.FromContext(ctx), node, stated.problem, Annotation)
	}
	return stated.score, nil
}

// stated is what a node states.
type stated struct {
	score   int64
	problem usage.Problem
}

func (pl *Congestion) of(node *v1.Node) *stated {
	return pl.memory.Of(node, func() stated { return pl.read(node) })
}

func (pl *Congestion) read(node *v1.Node) stated {
	text, ok := node.Annotations[Annotation]
	if !ok {
		return stated{score: fwk.MaxScore}
	}
	factor, err := decimal.Parse(text)
	if err != nil {
		return stated{fwk.MaxScore, usage.Invalid}
	}
	return stated{score: score(max(factor, 0), pl.most)}
}

// score returns 1 - min(factor, most)/most as points from 0 to 100, rounded down; what is a
// whole number but for the last digit of a double stays.
func score(factor, most float64) int64 {
	return int64(float64(fwk.MaxScore)*(1-min(factor, most)/most) + 1e-9)
}

// ScoreExtensions returns nil: scores mean the same for every pod.
func (pl *Congestion) ScoreExtensions() fwk.ScoreExtensions { return nil }

// SignPod makes opportunistic batching possible: all pods are scored alike.
func (pl *Congestion) SignPod(context.Context, *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return nil, nil
}
