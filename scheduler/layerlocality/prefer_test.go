package layerlocality

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// preferred runs PreFilter and returns the nodes it names for kube-scheduler.
func (s *suite) preferred(state fwk.CycleState, p *v1.Pod) []string {
	s.t.Helper()
	if result, status := s.plugin.PreFilter(s.ctx, state, p, nil); result != nil || !status.IsSkip() {
		s.t.Fatalf("PreFilter: %v, %v; want no restriction", result, status)
	}
	data, err := state.Read(preferredNodesKey)
	if err != nil {
		return nil
	}
	return data.Clone().(interface{ PreferredNodes() []string }).PreferredNodes()
}

func TestPreferredNodes(t *testing.T) {
	var all []*v1.Node
	for i := range 100 {
		all = append(all, node(fmt.Sprintf("n%02d", i)))
	}
	s := newSuite(t, args(), all)
	for i := range 50 {
		s.agent.Sink.SetImages("test", all[i].Name, []index.Image{nodeImage("quay.io/base:1", layers{"base": 100})})
	}
	s.agent.Sink.SetImages("test", "n70", []index.Image{nodeImage("quay.io/a:1", layers{"base": 100, "top": 100})})

	counts := map[string]int{}
	for range 50 {
		names := s.preferred(framework.NewCycleState(), pod("p", "quay.io/a:1"))
		if len(names) != 32 || names[0] != "n70" {
			t.Fatalf("%d nodes, %v; want 32, the holder of the whole image first", len(names), names)
		}
		for _, n := range names {
			counts[n]++
		}
	}
	if len(counts) != 51 {
		t.Errorf("%d different nodes, want all 51 that have something: %v", len(counts), counts)
	}
	delete(counts, "n70")
	var times []int
	for _, n := range counts {
		times = append(times, n)
	}
	if slices.Max(times) > 2*slices.Min(times) {
		t.Errorf("equal nodes are named %d to %d times", slices.Min(times), slices.Max(times))
	}
	if names := s.preferred(framework.NewCycleState(), pod("q", "quay.io/unknown:1")); names != nil {
		t.Errorf("an image that nobody has: %v, want no preference", names)
	}
}

// Nodes that cannot take the pod take no place among the preferred ones: 50 others hold nearly as much.
func TestPreferredNodesFit(t *testing.T) {
	for name, spoil := range map[string]func(p *v1.Pod, n *v1.Node, rich bool) []*v1.Pod{
		"cordoned": func(_ *v1.Pod, n *v1.Node, rich bool) []*v1.Pod {
			n.Spec.Unschedulable = rich
			return nil
		},
		"tainted": func(_ *v1.Pod, n *v1.Node, rich bool) []*v1.Pod {
			if rich {
				n.Spec.Taints = []v1.Taint{{Key: "gpu", Effect: v1.TaintEffectNoSchedule}}
			}
			return nil
		},
		"another pool by its selector": func(p *v1.Pod, n *v1.Node, rich bool) []*v1.Pod {
			if !rich {
				n.Labels = map[string]string{"pool": "b"}
			}
			p.Spec.NodeSelector = map[string]string{"pool": "b"}
			return nil
		},
		"another pool by affinity": func(p *v1.Pod, n *v1.Node, rich bool) []*v1.Pod {
			if rich {
				n.Labels = map[string]string{"pool": "a"}
			}
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: "pool", Operator: v1.NodeSelectorOpNotIn, Values: []string{"a"}}},
			}}}}}
			return nil
		},
		"full": func(p *v1.Pod, n *v1.Node, rich bool) []*v1.Pod {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
			if !rich {
				return nil
			}
			return []*v1.Pod{on(pod("full-"+n.Name, "x"), n.Name, "9500m")}
		},
		"without a device": func(p *v1.Pod, n *v1.Node, rich bool) []*v1.Pod {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
			if !rich {
				n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4")
			}
			return nil
		},
	} {
		p := pod("p", "quay.io/a:1")
		var all []*v1.Node
		var there []*v1.Pod
		for i := range 200 {
			n := node(fmt.Sprintf("n%03d", i))
			there = append(there, spoil(p, n, i < 100)...)
			all = append(all, n)
		}
		s := newSuite(t, args(), all, there...)
		for i, n := range all[:150] {
			if i < 100 { // all of it
				s.agent.Sink.SetImages("test", n.Name, []index.Image{nodeImage("quay.io/a:1", layers{"base": 300, "top": 10})})
			} else { // the base
				s.agent.Sink.SetImages("test", n.Name, []index.Image{nodeImage("quay.io/b:1", layers{"base": 300})})
			}
		}
		names := s.preferred(framework.NewCycleState(), p)
		if len(names) != 32 || slices.ContainsFunc(names, func(n string) bool { return n < "n100" || n >= "n150" }) {
			t.Errorf("%s: %d nodes, %v; want 32 of those that hold the base", name, len(names), names)
		}
	}
}

// With PreFilter, PreScore scores by what PreFilter measured: the nodes that were preferred
// are those that score.
func TestPreFilterMeasures(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	state := framework.NewCycleState()
	p := pod("p", "quay.io/a:1")
	if got := s.preferred(state, p); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("preferred %v, want n1", got)
	}
	s.agent.Sink.SetImages("test", "n1", nil)
	if scores, _ := s.scoresIn(state, p, s.nodes); scores["n1"] != 100 || scores["n2"] != 0 {
		t.Errorf("scores %v, want those of the moment of PreFilter", scores)
	}
	observed := func() float64 { return metricValue(t, s.plugin.metrics.images.WithLabelValues("layers")) }
	before := observed()
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	state = framework.NewCycleState()
	s.preferred(state, p)
	s.scoresIn(state, p, s.nodes)
	if got := observed() - before; got != 1 {
		t.Errorf("the image counted %.0f times", got)
	}
}

// A pod that fits on one node only had no choice: nothing was saved.
func TestNoChoice(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	before := metricValue(t, s.plugin.metrics.missing.WithLabelValues("default-scheduler", "chosen"))
	state := framework.NewCycleState()
	p := pod("p", "quay.io/a:1")
	s.preferred(state, p)
	s.plugin.Reserve(s.ctx, state, p, "n2")
	if got := metricValue(t, s.plugin.metrics.missing.WithLabelValues("default-scheduler", "chosen")) - before; got != 0 {
		t.Errorf("%.0f bytes counted", got)
	}
}

func metricValue(t *testing.T, counter metrics.CounterMetric) float64 {
	t.Helper()
	v, err := testutil.GetCounterMetricValue(counter)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
