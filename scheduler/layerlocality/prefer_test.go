package layerlocality

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
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
