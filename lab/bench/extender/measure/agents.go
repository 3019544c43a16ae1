package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/handler"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/congestion"
	"github.com/layer-locality/layer-locality/scheduler/packing"
	"github.com/layer-locality/layer-locality/scheduler/safe"
	"github.com/layer-locality/layer-locality/scheduler/template"
)

// goalMillis is how long an agent may take for its answer.
const goalMillis = 5

// agentMeasured is what was measured of a verb of an agent.
type agentMeasured struct {
	Agent string `json:"agent"`
	Verb  string `json:"verb"`
	Nodes int    `json:"nodes"`
	served
}

// agentKinds are the agents besides layers, packing once for each objective.
func agentKinds() []agent.Kind {
	with := func(make frameworkruntime.PluginFactory, change func(runtime.Object)) frameworkruntime.PluginFactory {
		return func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			change(args)
			return make(ctx, args, handle)
		}
	}
	all := []agent.Kind{
		{Name: "safe-overload", Plugin: safe.Name, New: safe.NewFactory().New, RoundsDown: true},
		{Name: "safe-balance", Plugin: safe.Name, ScoresOnly: true, New: with(safe.NewFactory().New, func(args runtime.Object) {
			args.(*config.SafeArgs).Score = config.ScoreBalance
		})},
		{Name: "congestion", Plugin: congestion.Name, New: congestion.New},
		{Name: "template", Plugin: template.Name, New: template.New},
	}
	for _, objective := range []string{config.BinPack, config.LoadBalance, config.Consolidate} {
		all = append(all, agent.Kind{Name: "packing-" + objective, Plugin: packing.Name, Expects: true, New: with(packing.NewFactory().New, func(args runtime.Object) {
			args.(*config.PackingArgs).Objective = objective
		})})
	}
	return all
}

// measureAgents has each agent, alone in a process, answer for pods whose requests differ, on
// nodes that state what they use.
func (o *options) measureAgents(ctx context.Context, nodes []*v1.Node) ([]agentMeasured, error) {
	asked, err := schedulercache.NewSnapshot(nil, nodes).NodeInfos().List()
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(3, 3))
	var all []agentMeasured
	for _, kind := range agentKinds() {
		verbs := []string{handler.Priorities}
		if kind.Name == "safe-overload" {
			verbs = append(verbs, handler.Predicates)
		}
		for _, verb := range verbs {
			result, err := o.alone(ctx, kind.Name, len(nodes), func(extender fwk.Extender) (err error) {
				for i := range o.pods {
					pod := podOf(fmt.Sprint("pod-", i), "registry.example/app:v1")
					pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{
						v1.ResourceCPU: *resource.NewMilliQuantity(random.Int64N(2000), resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(random.Int64N(4<<30), resource.BinarySI),
					}
					if verb == handler.Predicates {
						_, _, _, err = extender.Filter(pod, asked)
					} else {
						_, _, err = extender.Prioritize(pod, asked)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", verb, kind.Name, err)
			}
			all = append(all, agentMeasured{Agent: kind.Name, Verb: verb, Nodes: len(nodes), served: result})
		}
	}
	return all, nil
}

// stateUse has nodes state what they use and how congested they are.
func stateUse(random *rand.Rand, nodes []*v1.Node) {
	for _, node := range nodes {
		cpu, memory := float64(node.Status.Allocatable.Cpu().MilliValue()), float64(node.Status.Allocatable.Memory().Value())
		node.Annotations = map[string]string{"congestion-factor": fmt.Sprint(random.IntN(120))}
		for of, capacity := range map[string]float64{"cpu": cpu, "memory": memory} {
			node.Annotations["mean-free-"+of] = fmt.Sprintf("%.0f", capacity*random.Float64())
			node.Annotations["std-free-"+of] = fmt.Sprintf("%.0f", capacity*random.Float64()/4)
			node.Annotations["forcasted-free-"+of] = fmt.Sprintf("%.0f", capacity*random.Float64())
		}
	}
}

// report prints what was measured, and how many agents are slower than the goal.
func report(all []agentMeasured) {
	slow := slices.DeleteFunc(slices.Clone(all), func(m agentMeasured) bool { return m.AnswerMillis <= goalMillis })
	for _, m := range all {
		fmt.Printf("agent=%s verb=%s nodes=%d answer_ms=%.2f p99_ms=%.2f answer_cpu_ms=%.2f rss_mib=%d\n", m.Agent, m.Verb, m.Nodes, m.AnswerMillis, m.P99Millis, m.AnswerCPUMillis, m.MiB)
	}
	fmt.Printf("agents slower than the goal of %d ms: %d of %d\n", goalMillis, len(slow), len(all))
}
